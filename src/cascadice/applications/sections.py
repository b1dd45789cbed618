"""What an application shows on the report page: the question it answers, its command, and its results as plain data.

Each application's `section.py` defines one `SECTION`; `report/page/sections.py` lists them in the order of the page.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cascadice.applications.plain import Json, data_uri, evenly, plain

ROWS = 500  # most rows of a section's table on the page
PICTURE_BYTES = 800_000


class Section(NamedTuple):
    """An application's part of the page.

    `question` and `command` are offered while its results are missing; "{run}" in the command is the run's folder.
    `build(results, folder)` makes plain data of the JSON that the command wrote into the folder.
    """

    question: str
    command: str
    build: Callable[[Json, Path], Json]


def build_section(results: Json, folder: Path, lead: str = "") -> Json:
    """Build the parts that every section has: title, findings, table and figure.

    Args:
        results: What the command wrote as JSON.
        folder: Where it wrote it; the figure lies beside.
        lead: What the numbers mean: their units, their signs, and the terms used.

    Returns:
        Plain data. `flagged` lists the participants to mark in the network; None if the application flags nobody.

    Raises:
        ValueError: If the table is not made of lists.
    """
    columns, rows = _table(results.get("table"))
    return {
        "name": folder.name,
        "title": str(results.get("title", folder.name)),
        "lead": lead,
        "findings": [str(sentence) for sentence in results.get("findings", ())],
        "columns": [str(column) for column in columns],
        "rows": [[_cell(cell) for cell in rows[place]] for place in evenly(len(rows), ROWS)],
        "count": len(rows),
        "flagged": None,
        "picture": _picture(folder, results.get("figure")),
    }


def _table(table: Any) -> tuple[list[Any], list[list[Any]]]:
    table = table if isinstance(table, dict) else {"columns": [], "rows": []}
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("its table must have a list of columns and a list of rows.")
    return columns, rows


def _cell(cell: Any) -> Any:
    return plain(cell) if cell is None or isinstance(cell, (bool, int, float, str)) else str(cell)


def _picture(folder: Path, name: Any) -> str | None:
    """The figure as a data URI, if it is a PNG in this folder and small enough for the page."""
    path = folder / Path(name).name if isinstance(name, str) else folder
    if not path.is_file() or path.stat().st_size > PICTURE_BYTES:
        return None
    content = path.read_bytes()
    return data_uri(content) if content.startswith(b"\x89PNG") else None
