"""The charts of `cascadice reward` on the page: payments, what they are for, and how it grew."""

import numpy as np

from cascadice.applications.charts import (
    LOSS,
    axis,
    bars,
    chart,
    contributions,
    injected_in,
    lines,
    named,
    participants,
    saved_bounds,
)
from cascadice.applications.plain import Json
from cascadice.influence.uncertainty import bounds_of_totals


def charts(results: Json) -> list[Json]:
    """The charts of `reward.json`."""
    updates, injected = np.array(results["contributions"], dtype=float), injected_in(results["table"])
    nodes = updates.shape[1]
    numbers = results.get("members") or list(range(nodes))  # of one process among several
    bounds = saved_bounds(results.get("intervals", {}).get("payments"))
    paid = bars(results["payments"], "--two", "participant %{y}: %{x:.2f}<extra></extra>", bounds, numbers)
    note = "Lines are 95 % intervals, from how much everybody's credit varies between rounds." if bounds else ""
    faulty = {k: named(k, injected) for k in injected}
    return [
        chart("Payments", [paid], "Payment of each participant.", note, height=max(300, 20 * nodes + 80),
              xaxis=axis("payment"), yaxis=participants(nodes, injected, numbers=numbers, autorange="reversed")),
        contributions(updates.sum(0), bounds_of_totals(updates), injected, "What they are paid for", "the ledger",
                      numbers),
        chart("Contributions so far", lines(results["rounds"], updates.cumsum(0), faulty, numbers),
              "Influence of each participant, added up round by round.", xaxis=axis("round"),
              yaxis=axis(f"{LOSS}, so far")),
    ]  # fmt: skip
