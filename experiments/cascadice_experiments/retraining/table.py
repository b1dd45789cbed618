"""The results of a case as lines on the console and as a table in Markdown."""

from collections.abc import Container, Iterator, Mapping
from statistics import mean, stdev
from typing import Any


def spearman(result: Mapping[str, Any], condition: str, estimate: str) -> list[float]:
    """Spearman of an estimate in a condition, a value for each seed."""
    rows = result["rows"]
    return [row["spearman"] for row in rows if (row["condition"], row["estimate"]) == (condition, estimate)]


def cells(result: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """The conditions, and for each estimate its mean and spread over seeds in each of them."""
    conditions = list(dict.fromkeys(row["condition"] for row in result["rows"]))
    estimates = dict.fromkeys(row["estimate"] for row in result["rows"])
    return conditions, {e: [_spread(spearman(result, c, e)) for c in conditions] for e in estimates}


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def lines(result: Mapping[str, Any], only: Container[str] | None = None) -> Iterator[str]:
    """A Markdown table: LDS of each estimate in each condition, its cost, and the accuracy beside it.

    Args:
        only: The conditions to show; all unless given.
    """
    kept = [row for row in result["rows"] if only is None or row["condition"] in only]
    conditions, rows = cells({**result, "rows": kept})
    accuracy = _spread(result["accuracy"])
    yield f"{result['case']} (test accuracy {accuracy}, {len(result['accuracy'])} seeds)"
    yield "| summed over the run | " + " | ".join(conditions) + " | trainings |"
    yield "|---" * (len(conditions) + 2) + "|"
    for estimate, values in rows.items():
        yield f"| {estimate} | " + " | ".join(values) + f" | {result['costs'][estimate]:.1f} |"
