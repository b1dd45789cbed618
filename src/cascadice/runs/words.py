"""InfluenceSummary about influence, in words and small tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from cascadice.runs.summary import InfluenceSummary, Judged, Ranked, Sampled, ranked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST = 5  # helpers and harmers to name


def tell(
    console: "Console", found: InfluenceSummary, classes: Sequence[str] = (), labels: Tensor | None = None
) -> None:
    """Print who helped and who harmed, how far influence went, and how near the estimates are to the truth.

    `labels` are those of the training samples, by place, and `classes` their names, where samples have them.
    """
    _say(console, f"influence of updates in {_rounds(found.rounds)}; negative helped, positive harmed")
    for kind, totals in [*found.participants.items()][:1]:
        _show(console, f"who helped and who harmed: {kind}, summed", _participants(ranked(totals, MOST), found))
        if idle := [_name(node, found) for node, value in enumerate(totals) if value == 0]:
            _say(console, f"neither helped nor harmed: {', '.join(idle)}")
    if found.by_hop:
        _show(console, "how far it goes: mean size of an update's influence, hop by hop", _decay(found))
    for kind, samples in [*found.samples.items()][:1]:
        _show(console, f"samples that helped and harmed most: {kind}", _samples(samples, found, classes, labels))
    if found.agreements or found.sample_agreements:
        _show(console, "how near the estimates are to the truth, update by update", _agreements(found))
    if found.judged:
        _say(console, f"the network's test {found.judged[0].measure}: {accuracy(found.judged)}")


def accuracy(judged: Sequence[Judged]) -> str:
    """How good the network was over the rounds that were looked at."""
    return " -> ".join(f"{j.mean:.3f} (round {j.t})" for j in judged)


def _say(console: "Console", text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _show(console: "Console", title: str, table: "Table") -> None:
    console.print()
    console.print(title, style="bold", highlight=False, soft_wrap=True, markup=False)
    console.print(table)


def _rounds(rounds: Sequence[int]) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"


def _name(node: int, found: InfluenceSummary) -> str:
    return f"participant {node}" + (f" ({found.known[node]})" if node in found.known else "")


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _participants(sides: Ranked, found: InfluenceSummary) -> "Table":
    table = _table("", "influence")
    for word, side in zip(("helped", "harmed"), sides, strict=True):
        for node, value in side:
            table.add_row(f"{word}  {_name(node, found)}", f"{value:+.4f}")
    return table


def _decay(found: InfluenceSummary) -> "Table":
    table = _table("", *found.by_hop)
    for hop in range(max(map(len, found.by_hop.values()))):
        name = "on oneself, before gossip" if hop == 0 else f"{hop} hop{'s' * (hop > 1)}"
        table.add_row(name, *(f"{values[hop]:.5f}" for values in found.by_hop.values()))
    return table


def _samples(
    samples: Sequence[Sampled], found: InfluenceSummary, classes: Sequence[str], labels: Tensor | None
) -> "Table":
    table = _table("", "sample", "label", "uses", "influence")
    sides = {"helped": samples[:MOST], "harmed": samples[: -MOST - 1 : -1]}
    for word, side in sides.items():
        for one in (one for one in side if (one.value < 0) == (word == "helped") and one.value != 0):
            label = "" if labels is None or not classes else classes[int(labels[one.sample])]
            where = f"{word}  of {_name(one.node, found)}"
            table.add_row(where, str(one.sample), label, str(one.uses), f"{one.value:+.4f}")
    return table


def _agreements(found: InfluenceSummary) -> "Table":
    table = _table("", "Pearson", "Spearman", "relative RMSE")
    named = [*found.agreements.items()]
    named += [(f"{kind}, of samples", a) for kind, a in found.sample_agreements.items()]
    for kind, a in named:
        table.add_row(kind, f"{a.pearson:.4f}", f"{a.spearman:.4f}", f"{a.relative_rmse:.3f}")
    return table
