"""What `python -m cascadice_experiments.STUDY --out DIR` measured, as plain data for the page of results."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import cascadice
from cascadice import files
from cascadice.report.page.samples import data_uri

RESULT = "result.json"
STUDIES = ("anomalies", "collaboration", "incentives", "unlearning")
SHOWN = 25  # rows at once; of more, the page's table shows as many at a time
DEVIATION = "_deviation"  # of the measure that it follows


def is_study(folder: Path) -> bool:
    """Whether a study's result is in the folder, and not that of `cascadice reproduce`."""
    if not (folder / RESULT).exists():
        return False
    try:
        found = files.read_json(folder / RESULT)
    except (ValueError, OSError):
        return False  # whoever shows results says what is wrong with it
    return found.get("experiment") in STUDIES and "title" not in found


def collect_study(folder: Path) -> dict[str, Any]:
    """The study's table and its figure; points are named, not shown."""
    result = files.read_json(folder / RESULT)
    name, measured = result["experiment"], result.get("results")
    if not isinstance(measured, list) or not all(isinstance(entry, dict) for entry in measured):
        raise ValueError(f"{folder / RESULT} must list its results; was it written by another program?")
    columns, rows = table([row for entry in measured for row in _rows(entry)])
    title, _, _ = (import_module(f"cascadice.experiments.{name}").__doc__ or name).partition("\n")
    points = ", ".join(sorted(path.name for path in folder.glob("*.parquet")))
    section = {
        "name": name, "title": title, "claim": "", "shows": [], "columns": columns,
        "rows": rows if len(rows) <= SHOWN else [], "count": len(rows),
        "findings": [f"{len(rows)} rows: mean ± standard deviation, where something was repeated."],
        "command": f"python -m cascadice_experiments.{name}", "made": "",
        "points": _listing(columns, rows) if len(rows) > SHOWN else None,
        "picture": _picture(folder, name),
    }  # fmt: skip
    return {
        "version": cascadice.__version__, "title": title, "folder": folder.absolute().name, "path": str(folder),
        "results": [section], "notes": [f"Every single point is in {points}."] if points else [],
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Columns in the order in which rows first name them, and every row's cells; empty where a row has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[row.get(name, "") for name in columns] for row in rows]


def _listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """All rows for the page's table, column by column: a cell is its place among the words of its column."""
    texts = list(zip(*rows, strict=True))
    words = [sorted(set(column) - {""}, key=_by_number) for column in texts]
    values = [
        [known.index(cell) if cell else None for cell in column] for column, known in zip(texts, words, strict=True)
    ]
    named = dict(zip(columns, words, strict=True))
    return {"what": "rows", "columns": list(columns), "values": values, "words": named, "sums": [], "note": ""}


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text.split()[0]), text
    except (ValueError, IndexError):
        return float("inf"), text


def _rows(entry: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A row for each thing measured; an entry that has `rows` of its own, by name, is as many."""
    if not isinstance(entry.get("rows"), Mapping):
        yield dict(_cells(entry))
        return
    shared = {name: value for name, value in entry.items() if not isinstance(value, (Mapping, list)) or "mean" in value}
    for name, own in entry["rows"].items():
        more = {key: value[name] for key, value in entry.items() if isinstance(value, Mapping) and name in value}
        yield dict(
            _cells({**shared, "of": name, **own, **{key: value for key, value in more.items() if key != "rows"}})
        )


def _cells(entry: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    for name, value in entry.items():
        column = f"{within}{name}".replace("_", " ")
        if name.endswith(DEVIATION) and name.removesuffix(DEVIATION) in entry:
            continue
        if isinstance(value, Mapping) and "mean" not in value:
            yield from _cells(value, f"{column}: ")
        elif (text := _cell(value, entry.get(f"{name}{DEVIATION}"))) is not None:
            yield column, text


def _cell(value: Any, deviation: float | None) -> str | None:
    """A value, with its spread where there is one; None for what does not fit into a cell."""
    if isinstance(value, Mapping):
        return _cell(value["mean"], value.get("sd", value.get("std")))
    if isinstance(value, list):
        numbers = [number for number in value if isinstance(number, float)]
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return _cell(statistics.fmean(numbers), spread) if numbers and len(numbers) == len(value) else None
    if isinstance(value, float):
        return f"{value:.4g}" + (f" ± {deviation:.2g}" if deviation else "")
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _picture(folder: Path, name: str) -> str | None:
    there = [path for suffix in ("png", "svg") if (path := folder / f"{name}.{suffix}").exists()]
    if not there:
        return None
    smallest = min(there, key=lambda path: path.stat().st_size)
    return data_uri(smallest.read_bytes(), "svg+xml" if smallest.suffix == ".svg" else "png")
