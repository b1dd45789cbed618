"""All that the page of what `cascadice reproduce` made shows, as plain data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cascadice_experiments.figures.pages import ERROR, PARTS, PICTURES, POINTS, RESULT, how, place, table

import cascadice
from cascadice import files
from cascadice.report.page.numbers import Json, evenly, short
from cascadice.report.page.samples import data_uri

GOES_ON = "The same `cascadice reproduce` command goes on."
NEEDED = ("title", "findings", "summary", "settings", "seconds", "device", "version")
PICTURE_BYTES = 5_500_000  # of all pictures together
CELLS = 200_000  # of all tables of points together


def collect_results(folder: files.Folder) -> Json:
    """What there is to show of a result in a folder, or of all results in the folders within.

    Anything of a result but its result.json may be absent; what cannot be read is told in `notes`.
    """
    home, notes = Path(folder), list[str]()
    found = {where: result for where in places(home) if (result := read(where, notes))}
    if not found:
        absent = f"{home} holds no result: {RESULT} is not there. Name the folder that `cascadice reproduce` wrote."
        raise ValueError(notes[0] if notes else absent)
    notes += [text] if (text := unfinished(home)) else []
    pictures = _pictures(list(found), notes)
    sections = [_section(where, result, len(found), notes) for where, result in found.items()]
    alone = len(sections) == 1
    return {
        "version": cascadice.__version__,
        "title": sections[0]["title"] if alone else f"The paper, reproduced: {len(sections)} results",
        "folder": home.absolute().name,
        "path": str(home),
        "results": [{**section, "picture": pictures.get(section["name"])} for section in sections],
        "notes": notes,
    }


def places(folder: Path) -> list[Path]:
    """The folders of results: this one, or those in it, in the order of the paper."""
    if (folder / RESULT).exists():
        return [folder]
    return sorted((path.parent for path in folder.glob(f"*/{RESULT}")), key=lambda path: place(path.name))


def unfinished(folder: Path) -> str:
    """Which figures in a folder, or of the folder itself, were begun and have no result; empty if there are none."""
    begun = [path for path in (folder, *sorted(folder.glob("*/"))) if not (path / RESULT).exists()]
    named = [
        path.absolute().name + (f" (failed, see {path / ERROR})" if (path / ERROR).exists() else "")
        for path in begun
        if (path / ERROR).exists() or (path / PARTS).is_dir()
    ]
    return f"Not finished: {', '.join(named)}. {GOES_ON}" if named else ""


def read(folder: Path, notes: list[str]) -> Json | None:
    """The result in a folder; why it cannot be shown is told in the notes."""
    try:
        result = files.read_json(folder / RESULT)
        if absent := [name for name in NEEDED if name not in result]:
            raise ValueError(f"its {RESULT} says nothing of {', '.join(absent)}; was it written by another program?")
    except (ValueError, OSError) as error:
        notes.append(f"The result in {folder.name} is not shown: {error}")
        return None
    return result


def _section(folder: Path, result: Json, among: int, notes: list[str]) -> Json:
    columns, *rows = table(result["summary"])
    name = folder.absolute().name
    command, _, made = how(name, result).partition(" (")
    return {
        "name": name,
        "title": str(result["title"]),
        "claim": str(result.get("claim", "")),
        "shows": [str(label) for label in result.get("shows", ())],
        "findings": [str(sentence) for sentence in result["findings"]],
        "columns": columns,
        "rows": rows,
        "count": len(rows),
        "command": command,
        "made": made.removesuffix(")"),
        "points": _points(folder, CELLS // among, notes),
    }


def _pictures(folders: list[Path], notes: list[str]) -> dict[str, str]:
    """Each result's figure, as PNG or SVG, whichever is smaller; as many as there is room for."""
    found, room = dict[str, str](), PICTURE_BYTES
    for folder in folders:
        there = [path for name in PICTURES if (path := folder / name).exists()]
        name, smallest = folder.absolute().name, min(there, key=lambda path: path.stat().st_size, default=None)
        if smallest is None:
            notes.append(f"The figure of {name} is not there.")
        elif smallest.stat().st_size > room:
            notes.append(f"The figure of {name} is too large for the page; see {smallest}.")
        else:
            room -= smallest.stat().st_size
            found[name] = data_uri(smallest.read_bytes(), "svg+xml" if smallest.suffix == ".svg" else "png")
    return found


def _points(folder: Path, cells: int, notes: list[str]) -> Json | None:
    """Every single point, column by column; of too many some, spread evenly."""
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / POINTS
    try:
        found = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = "it is not there" if not path.exists() else str(error).splitlines()[0]
        notes.append(f"The points of {folder.absolute().name} are not shown: {reason.rstrip('.')}.")
        return None
    if not found.num_rows or not found.num_columns:
        return None
    kept = evenly(found.num_rows, max(1, cells // found.num_columns))
    note = "" if len(kept) == found.num_rows else f"{len(kept):,} of {found.num_rows:,} rows; all are in {path}."
    columns = {name: _column(found[name].take(pa.array(kept)).to_pylist()) for name in found.column_names}
    words = {name: known for name, (_, known) in columns.items() if known is not None}
    values = [values for values, _ in columns.values()]
    return {"columns": found.column_names, "values": values, "words": words, "sums": [], "note": note}


def _column(values: list[Any]) -> tuple[list[Any], list[str] | None]:
    """Numbers as they are; anything else by its place among all that occurs, and those words."""
    given = [value for value in values if value is not None]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        return values, None
    if all(isinstance(value, float) for value in given):
        return short([float("nan") if value is None else value for value in values]), None
    words = sorted({_word(value) for value in given})
    number: Mapping[str, int] = {word: number for number, word in enumerate(words)}
    return [None if value is None else number[_word(value)] for value in values], words


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
