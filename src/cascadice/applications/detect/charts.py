"""The charts of `cascadice detect` on the page: who flags whom, and the votes over time."""

import numpy as np

from cascadice.applications.charts import across, axis, chart, lines, matrix, matrix_axes, named
from cascadice.applications.detect.idea import MAJORITY
from cascadice.applications.plain import Json

ABOVE = "Orange: above the threshold. Grey: below it. Empty: not heard."
SCALE = [[0, "--line"], [0.499, "--grey"], [0.5, "--four"], [1, "--harmed"]]  # the threshold is in the middle


def charts(results: Json) -> list[Json]:
    """The charts of `detect.json`; none if nobody could judge."""
    if not np.isfinite(np.array(results["votes"], dtype=float)).any():
        return []
    strength = np.where(np.array(results["heard"]), np.array(results["strength"], dtype=float), np.nan).T
    hover = "evidence of %{y} against %{x}: %{z:.2f} of the threshold"
    heat = matrix(strength, range(len(strength)), hover, "evidence / threshold", zmin=0, zmax=2, colorscale=SCALE)
    votes, injected = results["votes"], {int(node): fault for node, fault in results["known"].items()}
    flagged = {node for node, share in enumerate(votes[-1]) if share is not None and share >= MAJORITY}
    shown = {node: named(node, injected) for node in sorted(flagged | set(injected))}
    return [
        chart("Who flags whom", [heat], "Evidence by receiver and source.", ABOVE, **matrix_axes()),
        chart(
            "Votes over time", lines(results["rounds"], votes, shown), "Share of receivers that flag each.",
            "Flagged: at least half of the receivers (dotted line).", xaxis=axis("round"), shapes=[across(MAJORITY)],
            yaxis=axis("share of receivers that flag it", range=[-0.03, 1.03]),
        ),
    ]  # fmt: skip
