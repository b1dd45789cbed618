"""The charts of `cascadice reward` on the page: payments, what they are for, and how it grew."""

import numpy as np

from cascadice.applications import charts as plots
from cascadice.applications.plain import Json
from cascadice.influence.uncertainty import bounds_of_totals


def charts(results: Json) -> list[Json]:
    """The charts of `reward.json`."""
    updates, injected = np.array(results["contributions"], dtype=float), plots.injected_in(results["table"])
    nodes, rounds = updates.shape[1], results["rounds"]
    numbers = results.get("members") or list(range(nodes))  # of one process among several
    bounds = plots.saved_bounds(results.get("intervals", {}).get("payments"))
    paid = plots.bars(results["payments"], "--two", "participant %{y}: %{x:.2f}<extra></extra>", bounds, numbers)
    note = "Lines are 95 % intervals, from how much everybody's credit varies between rounds." if bounds else ""
    so_far = plots.lines(rounds, updates.cumsum(0), {k: plots.named(k, injected) for k in injected}, numbers)
    what_for = updates.sum(0), bounds_of_totals(updates), injected, "What they are paid for", "the ledger", numbers
    return [
        plots.chart(
            "Payments", [paid], "Payment of each participant.", note, height=max(300, 20 * nodes + 80),
            xaxis=plots.axis("payment"),
            yaxis=plots.participants(nodes, injected, numbers=numbers, autorange="reversed"),
        ),
        plots.contributions(*what_for),
        plots.chart(
            "Contributions so far", so_far, "Influence of each participant, added up round by round.",
            xaxis=plots.axis("round"), yaxis=plots.axis(f"{plots.LOSS}, so far"),
        ),
    ]  # fmt: skip
