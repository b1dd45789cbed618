"""The page itself: one file that holds its data, its pictures and its program, and asks nothing of the network."""

import html
import json
import re
from importlib import resources
from pathlib import Path

from cascadice import store
from cascadice.report.page.collecting import collect
from cascadice.report.page.numbers import Json

PROGRAM = ("page.js", "charts.js", "network.js", "sections.js", "table.js")
LARGEST = 10_000_000  # bytes, of a page
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(data: Json) -> str:
    """The page of what `collect` found, as HTML."""
    slots = {
        "title": html.escape(f"{data['folder']} · cascadice"),
        "style": _asset("page.css"),
        "plotly": _plotly(),
        "data": json_in_html(data),
        "program": "\n".join(_asset(name) for name in PROGRAM),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], _asset("page.html"))


def write(folder: store.Folder, out: store.Folder | None = None) -> tuple[Path, Json]:
    """Write the page of the run in a folder into `out` (its report.html); the path, and what is on the page."""
    data = collect(folder)
    path = Path(folder) / "report.html" if out is None else Path(out)
    with store.aside(path) as draft:
        draft.write_text(page(data), encoding="utf-8")
    return path, data


def json_in_html(data: Json) -> str:
    """JSON that no HTML parser can mistake for markup."""
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)


def _asset(name: str) -> str:
    return (resources.files("cascadice.report.page") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
