"""The charts of `cascadice reward` on the page: payments, what they are for, and how it grew."""

import numpy as np

from cascadice.applications.charts import COLOURS, axis, bars, chart, contributions, line, noted_bounds, participants
from cascadice.applications.plain import Json


def charts(results: Json) -> list[Json]:
    """The charts of what is in `reward.json`."""
    updates = np.array(results["contributions"], dtype=float)
    injected = {row[0]: row[-1] for row in results["table"]["rows"] if row[-1]}
    nodes = updates.shape[1]
    numbers = results.get("members") or list(range(nodes))  # of one process among several
    bounds = noted_bounds(results.get("intervals", {}).get("payments"))
    paid = bars(results["payments"], "--two", "participant %{y}: %{x:.2f}<extra></extra>", bounds, numbers)
    note = "Lines are 95 % intervals, from how much everybody's credit varies between rounds." if bounds else ""
    colours = iter(COLOURS * nodes)
    lines = [
        line(results["rounds"], total, f"{injected[k]} {k}" if k in injected else f"participant {k}",
             next(colours) if k in injected else "--grey", k in injected)
        for k, total in zip(numbers, updates.cumsum(0).T, strict=True)
    ]  # fmt: skip
    who = participants(nodes, injected, numbers=numbers, autorange="reversed")
    return [
        chart("Payments", [paid], "Payment of each participant.", note, height=max(300, 20 * nodes + 80),
              xaxis=axis("payment"), yaxis=who),
        contributions(updates, injected, "What they are paid for", "the ledger", numbers),
        chart("Contributions so far", lines, "Influence of each participant, added up round by round.",
              xaxis=axis("round"), yaxis=axis("change in loss so far (negative helped)")),
    ]  # fmt: skip
