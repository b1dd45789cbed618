"""What `python -m cascadice_experiments.STUDY --out DIR` measured, as plain data for the page of results."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.applications.plain import Json
from cascadice.report.page.results import RESULT, of_results, picture_uri, searchable, smallest_picture, word_of

STUDIES = {
    "anomalies": "How reliably do neighbours tell attackers from honest participants?",
    "collaboration": "What does a participant gain by choosing whom to average with?",
    "incentives": "Does the ledger pay participants what their data contributed?",
    "unlearning": "How close does each level of forgetting come to models that never used the data, and at what cost?",
}
SHOWN = 25  # rows in the section; longer tables go to the page's searchable table
DEVIATION = "_deviation"  # suffix of a measure's standard deviation


def is_study(folder: Path) -> bool:
    """Whether the folder holds the result of a study, not of `cascadice reproduce`."""
    try:
        result = files.read_json(folder / RESULT)
    except (ValueError, OSError):
        return False  # collect_results says what is wrong with it
    return result.get("experiment") in STUDIES and "title" not in result


def collect_study(folder: Path) -> Json:
    """Collect a study's table and figure; its points are named, not shown."""
    result = files.read_json(folder / RESULT)
    name, measured = result["experiment"], result.get("results")
    if not isinstance(measured, list) or not all(isinstance(entry, dict) for entry in measured):
        raise ValueError(f"{folder / RESULT} must list its results; was it written by another program?")
    columns, rows = table([row for entry in measured for row in _rows(entry)])
    long, picture = len(rows) > SHOWN, smallest_picture(folder, [f"{name}.png", f"{name}.svg"])
    texts = {column: [row[place] or None for row in rows] for place, column in enumerate(columns)}
    section = {
        "name": name,
        "title": STUDIES[name],
        "claim": "",
        "findings": [f"{len(rows)} rows; mean ± standard deviation where a measurement was repeated."],
        "columns": columns,
        "rows": [] if long else rows,
        "count": len(rows),
        "command": f"python -m cascadice_experiments.{name}",
        "made": "",
        "points": {"what": "rows", **searchable(texts, key=_by_number)} if long else None,
        "picture": picture and picture_uri(picture),
    }
    points = ", ".join(sorted(path.name for path in folder.glob("*.parquet")))
    return of_results(folder, STUDIES[name], [section], [f"Every point measured is in {points}."] if points else [])


def table(rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """The columns, in order of first appearance, and the cells of every row; "" where a row lacks a column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[row.get(name, "") for name in columns] for row in rows]


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text.split()[0]), text
    except (ValueError, IndexError):
        return float("inf"), text


def _rows(entry: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """One row for an entry; if the entry has named `rows` of its own, one row for each."""
    if not isinstance(entry.get("rows"), Mapping):
        yield dict(_cells(entry))
        return
    shared = {name: value for name, value in entry.items() if not isinstance(value, (Mapping, list)) or "mean" in value}
    others = {key: value for key, value in entry.items() if isinstance(value, Mapping) and key != "rows"}
    for name, own in entry["rows"].items():
        more = {key: value[name] for key, value in others.items() if name in value}
        yield dict(_cells({**shared, "of": name, **own, **more}))


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
    """A value ± its standard deviation, if known; None for what does not fit into a cell."""
    if isinstance(value, Mapping):
        return _cell(value["mean"], value.get("sd", value.get("std")))
    if isinstance(value, list):
        numbers = [number for number in value if isinstance(number, float)]
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return _cell(statistics.fmean(numbers), spread) if numbers and len(numbers) == len(value) else None
    if isinstance(value, float):
        return f"{value:.4g}" + (f" ± {deviation:.2g}" if deviation else "")
    return word_of(value)
