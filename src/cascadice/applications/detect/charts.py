"""The charts of `cascadice detect` on the page: who flags whom, and the votes over time."""

import numpy as np

from cascadice.applications.charts import COLOURS, axis, chart, line, matrix, matrix_axes
from cascadice.applications.detect.idea import MAJORITY
from cascadice.applications.plain import Json

ABOVE = "Orange: above the threshold."
SCALE = [[0, "--card"], [0.499, "--line"], [0.5, "--four"], [1, "--harmed"]]  # the threshold is in the middle


def charts(results: Json) -> list[Json]:
    """The charts of what is in `detect.json`; none if nobody could judge."""
    if not np.isfinite(np.array(results["votes"], dtype=float)).any():
        return []
    strength = np.where(np.array(results["heard"]), np.array(results["strength"], dtype=float), np.nan).T
    bar = {
        "title": {"text": "evidence / threshold", "side": "right", "font": {"size": 12}},
        "thickness": 10,
        "outlinewidth": 0,
    }
    hover = "evidence of %{y} against %{x}: %{z:.2f} of the threshold"
    heat = matrix(strength, range(len(strength)), hover, zmin=0, zmax=2, colorscale=SCALE, colorbar=bar)
    rounds, votes, injected = results["rounds"], np.array(results["votes"], dtype=float), results["known"]
    colours, lines = iter(COLOURS * len(votes.T)), []
    for node, share in enumerate(votes.T):
        strong = bool(share[-1] >= MAJORITY) or str(node) in injected
        name = f"{node} ({injected[str(node)]})" if str(node) in injected else f"participant {node}"
        lines.append(line(rounds, share, name, next(colours) if strong else "--grey", strong))
    half = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": MAJORITY, "y1": MAJORITY}]
    half[0]["line"] = {"color": "--grey", "dash": "dot", "width": 1}
    votes_axis = axis("share of receivers that flag it", range=[-0.03, 1.03])
    return [
        chart("Who flags whom", [heat], "Evidence by receiver and source.", ABOVE, **matrix_axes()),
        chart(
            "Votes over time", sorted(lines, key=lambda one: one["showlegend"]), "Share of receivers that flag each.",
            "Flagged: at least half of the receivers (dotted line).", xaxis=axis("round"), yaxis=votes_axis,
            shapes=half,
        ),
    ]  # fmt: skip
