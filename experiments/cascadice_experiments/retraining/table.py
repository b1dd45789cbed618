"""The results of a case as lines on the console and as a table in Markdown."""

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import groupby
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cascadice.influence.uncertainty import half_width


def read(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, one for each case; seeds that were measured separately are merged."""
    found = sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda result: result["case"])
    return [_together(list(parts)) for _, parts in groupby(found, lambda result: result["case"])]


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    parts.sort(key=lambda part: part["rows"][0]["seed"])
    costs = {e: mean(part["costs"][e] for part in parts if e in part["costs"]) for part in parts for e in part["costs"]}
    by_seed = ("accuracy", "rows", "retrained", "scores")  # the last two are not in results of earlier versions
    lists = {name: [entry for part in parts for entry in part.get(name, ())] for name in by_seed}
    return {**parts[0], **lists, "costs": costs}


def spearman(result: Mapping[str, Any], condition: str, estimate: str) -> list[float]:
    """Spearman of an estimate in a condition, a value for each seed."""
    rows = result["rows"]
    return [row["spearman"] for row in rows if (row["condition"], row["estimate"]) == (condition, estimate)]


def cells(result: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """The conditions, and for each estimate its mean and spread over seeds in each of them."""
    conditions = list(dict.fromkeys(row["condition"] for row in result["rows"]))
    estimates = dict.fromkeys(row["estimate"] for row in result["rows"])
    return conditions, {e: [spread(spearman(result, c, e)) for c in conditions] for e in estimates}


def paired(result: Mapping[str, Any], condition: str, first: str, second: str) -> tuple[float, float, float]:
    """How far one estimate's Spearman is above another's: the mean over seeds, and the ends of its 95 % interval."""
    return above(by_seed(result, condition, first), by_seed(result, condition, second))


def by_seed(result: Mapping[str, Any], condition: str, estimate: str) -> dict[int, float]:
    """Spearman of an estimate in a condition, by seed."""
    rows = result["rows"]
    return {
        row["seed"]: row["spearman"] for row in rows if (row["condition"], row["estimate"]) == (condition, estimate)
    }


def above(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, float, float]:
    """How far one is above the other: the mean over the seeds that both have, and the ends of its 95 % interval."""
    return interval([value - second[seed] for seed, value in first.items() if seed in second])


def interval(gaps: list[float]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval; NaN where there is none."""
    if len(gaps) < 2:
        return (gaps[0] if gaps else nan), nan, nan
    half = half_width(len(gaps)) * stdev(gaps) / len(gaps)  # of the mean, not of the sum
    return mean(gaps), mean(gaps) - half, mean(gaps) + half


def paired_lines(result: Mapping[str, Any], first: str, second: str) -> Iterator[str]:
    """A line for each condition in which both estimates were measured."""
    for condition in cells(result)[0]:
        gap, low, high = paired(result, condition, first, second)
        if gap == gap:
            interval = f", {low:+.2f} to {high:+.2f}" if low == low else " (one seed)"
            yield f"{result['case']}, {condition}: {gap:+.2f}{interval}"


def side_by_side(
    results: Sequence[Mapping[str, Any]], head: str, name: Callable[[Mapping[str, Any]], tuple[str, str]],
    estimates: Mapping[str, str],
) -> list[list[str]]:  # fmt: skip
    """The cells of a table of networks that differ in one setting: a row for each, with the LDS of each estimate.

    Further rows say by how much each network is above the first, seed by seed, with its 95 % interval.

    Args:
        head: The head of the first column.
        name: What to call a network with these settings: in the first column, and in short.
        estimates: The estimates to show, and what to call them.
    """
    conditions = dict.fromkeys(c for result in results for c in cells(result)[0])
    columns = [
        (c, e) for c in reversed(conditions) for e in estimates if any(spearman(result, c, e) for result in results)
    ]
    rows = [[head, "test accuracy", *(f"{c}, {estimates[e]}" for c, e in columns)]]
    for result in results:
        values = [spread(spearman(result, c, e)) for c, e in columns]
        rows.append([name(result["settings"])[0], spread(result["accuracy"]), *values])
    for result in results[1:]:
        gaps = [_gap(above(by_seed(result, c, e), by_seed(results[0], c, e))) for c, e in columns]
        one, other = (name(each["settings"])[1] for each in (result, results[0]))
        rows.append([f"{one} above {other}, seed by seed", "", *gaps])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """These cells as a table in Markdown."""
    for place, row in enumerate(rows):
        yield f"| {' | '.join(row)} |".replace("|  |", "| |")
        if place == 0:
            yield "|---" * len(row) + "|"


def _gap(found: tuple[float, float, float]) -> str:
    gap, low, high = found
    if gap != gap:
        return ""
    return f"{gap:+.2f} ({low:+.2f} to {high:+.2f})" if low == low else f"{gap:+.2f}"


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def lines(result: Mapping[str, Any], only: Container[str] | None = None) -> Iterator[str]:
    """A Markdown table: LDS of each estimate in each condition, its cost if it is known, and the accuracy beside it.

    Args:
        only: The conditions to show; all unless given.
    """
    kept = [row for row in result["rows"] if only is None or row["condition"] in only]
    conditions, rows = cells({**result, "rows": kept})
    accuracy = spread(result["accuracy"])
    yield f"{result['case']} (test accuracy {accuracy}, {len(result['accuracy'])} seeds)"
    costs = result["costs"]
    columns = ["summed over the run", *conditions, *(["trainings"] if costs else [])]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for estimate, values in rows.items():
        cost = [f"{costs[estimate]:.1f}" if estimate in costs else "–"] if costs else []
        yield f"| {' | '.join([estimate, *values, *cost])} |"
