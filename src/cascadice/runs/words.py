"""A summary of influence in words and small tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from cascadice.runs.progress import say
from cascadice.runs.summary import EvaluationResult, InfluenceSummary, Ranked, SampleScore, ranked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST = 5  # helpful and harmful participants and samples to name


def print_summary(
    console: "Console", summary: InfluenceSummary, classes: Sequence[str] = (), labels: Tensor | None = None
) -> None:
    """Print who helped and who harmed, how far influence reached, and how close the estimates are to the truth.

    Args:
        classes: The names of the classes, where samples have labels.
        labels: The label of each training sample, where samples have labels.
    """
    say(console, f"Influence of the updates in {_rounds(summary.rounds)}, as a change of the weighted mean test loss:")
    say(console, "negative influence lowered the loss (helped), positive influence raised it (harmed).")
    for kind, totals in [*summary.participants.items()][:1]:
        title = f"Who helped and who harmed ({kind}, summed over rounds)"
        _print_table(console, title, _participants(ranked(totals, MOST), summary))
        if idle := [_name(node, summary) for node, value in enumerate(totals) if value == 0]:
            say(console, f"no influence: {', '.join(idle)}")
    if summary.by_hop:
        _print_table(console, "How far influence reaches (mean absolute influence of an update)", _decay(summary))
    for kind, samples in [*summary.samples.items()][:1]:
        title = f"The most helpful and the most harmful samples ({kind})"
        _print_table(console, title, _samples(samples, summary, classes, labels))
    if summary.agreements or summary.sample_agreements:
        _print_table(console, "How close the estimates are to the truth, update by update", _agreements(summary))
    if summary.test_results:
        metric = summary.test_results[0].metric
        say(console, f"mean test {metric} of the participants: {in_words(summary.test_results)}")


def in_words(results: Sequence[EvaluationResult]) -> str:
    """The test results in words: "0.412 (round 3) -> 0.873 (round 39)"."""
    return " -> ".join(f"{result.mean:.3f} (round {result.t})" for result in results)


def _print_table(console: "Console", title: str, table: "Table") -> None:
    console.print()
    console.print(title, style="bold", highlight=False, soft_wrap=True, markup=False)
    console.print(table)


def _rounds(rounds: Sequence[int]) -> str:
    return f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from {rounds[0]} to {rounds[-1]}"


def _name(node: int, summary: InfluenceSummary) -> str:
    return f"participant {node}" + (f" ({summary.injected[node]})" if node in summary.injected else "")


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _participants(sides: Ranked, summary: InfluenceSummary) -> "Table":
    table = _table("", "influence")
    for verb, side in zip(("helped", "harmed"), sides, strict=True):
        for node, value in side:
            table.add_row(f"{verb}  {_name(node, summary)}", f"{value:+.4f}")
    return table


def _decay(summary: InfluenceSummary) -> "Table":
    table = _table("", *summary.by_hop)
    for hop in range(max(map(len, summary.by_hop.values()))):
        name = "on itself, before gossip" if hop == 0 else f"{hop} hop{'s' * (hop > 1)}"
        table.add_row(name, *(f"{values[hop]:.5f}" for values in summary.by_hop.values()))
    return table


def _samples(
    samples: Sequence[SampleScore], summary: InfluenceSummary, classes: Sequence[str], labels: Tensor | None
) -> "Table":
    table = _table("", "sample", "label", "uses", "influence")
    sides = {"helped": samples[:MOST], "harmed": samples[: -MOST - 1 : -1]}
    for verb, side in sides.items():
        for one in (one for one in side if (one.value < 0) == (verb == "helped") and one.value != 0):
            label = "" if labels is None or not classes else classes[int(labels[one.sample])]
            owner = f"{verb}  of {_name(one.node, summary)}"
            table.add_row(owner, str(one.sample), label, str(one.uses), f"{one.value:+.4f}")
    return table


def _agreements(summary: InfluenceSummary) -> "Table":
    table = _table("", "Pearson", "Spearman", "relative RMSE")
    named = [*summary.agreements.items()]
    named += [(f"{kind}, of samples", a) for kind, a in summary.sample_agreements.items()]
    for kind, a in named:
        table.add_row(kind, f"{a.pearson:.4f}", f"{a.spearman:.4f}", f"{a.relative_rmse:.3f}")
    return table
