"""What commands over the run found: every `NAME/NAME.json` that tells its findings is a section of the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.report.page.numbers import Json, evenly, plain
from cascadice.report.page.samples import data_uri

ORDER = ("detect", "choose", "reward", "forget")
ROWS = 500  # of a section's table
PICTURE_BYTES = 800_000
HALF = 0.5  # of the receivers: a vote, as `cascadice detect` counts it


def read(folder: Path, run: str, notes: list[str]) -> list[Json]:
    """The sections, in the order in which people ask."""
    found = []
    for path in sorted(folder.glob("*/*.json"), key=_order):
        if path.stem != path.parent.name or path.stem == "influence":
            continue
        try:
            content = files.read_json(path)
            if content.get("run") != run:
                raise ValueError("it is of another run.")
            found.append(_section(path, content))
        except (ValueError, TypeError, OSError) as error:
            notes.append(f"What `cascadice {path.stem}` found is not shown: {error}")
    return found


def _order(path: Path) -> tuple[int, str]:
    return (ORDER.index(path.stem) if path.stem in ORDER else len(ORDER), path.stem)


def _section(path: Path, content: Json) -> Json:
    columns, rows = _table(content.get("table"))
    return {
        "name": path.stem,
        "title": str(content.get("title", path.stem)),
        "findings": [str(sentence) for sentence in content.get("findings", ())],
        "columns": [str(column) for column in columns],
        "rows": [[_cell(cell) for cell in rows[place]] for place in evenly(len(rows), ROWS)],
        "count": len(rows),
        "flagged": _voted(content.get("votes")),
        "picture": _picture(path, content.get("figure")),
    }


def _table(given: Any) -> tuple[list[Any], list[list[Any]]]:
    table = given if isinstance(given, dict) else {"columns": [], "rows": []}
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("its table must have lists of columns and of rows.")
    return columns, rows


def _cell(cell: Any) -> Any:
    return plain(cell) if cell is None or isinstance(cell, (bool, int, float, str)) else str(cell)


def _voted(votes: Any) -> list[int]:
    """Whom at least half of its receivers flag, from their votes round by round."""
    last = votes[-1] if isinstance(votes, list) and votes else []
    return [node for node, share in enumerate(last) if share is not None and share >= HALF]


def _picture(path: Path, name: Any) -> str | None:
    """The section's figure, if it is a PNG beside the JSON and not too large for the page."""
    if not isinstance(name, str):
        return None
    there = path.parent / Path(name).name
    if not there.exists() or there.stat().st_size > PICTURE_BYTES:
        return None
    content = there.read_bytes()
    return data_uri(content) if content.startswith(b"\x89PNG") else None


def flagged(told: Sequence[Json]) -> list[int]:
    """Participants that were flagged by the command that looks for them."""
    return next((section["flagged"] for section in told if section["name"] == "detect"), [])
