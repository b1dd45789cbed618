"""The page itself: one file that holds its data, its pictures and its program, and asks nothing of the network."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from cascadice import files
from cascadice.report.page.collecting import collect
from cascadice.report.page.numbers import Json
from cascadice.report.page.results import collect_results

OF_A_RUN = ("basics.js", "page.js", "charts.js", "network.js", "sections.js", "table.js", "start.js")
OF_RESULTS = ("basics.js", "results.js", "sections.js", "table.js", "start.js")
REPORT = "report.html"
LARGEST = 10_000_000  # bytes, of a page
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(data: Json) -> str:
    """The page of what `collect` found, as HTML; with `live` in the data, one that asks its server for newer data."""
    live = ("live.js",) if "live" in data else ()
    library = f"<script>{_plotly()}</script>"
    return _page(data, "run.html", (*OF_A_RUN, *live), library, connect="'self'" if live else "'none'")


def page_of_results(data: Json) -> str:
    """The page of what `collect_results` found, as HTML."""
    return _page(data, "results.html", OF_RESULTS)


def _page(data: Json, body: str, program: Sequence[str], library: str = "", connect: str = "'none'") -> str:
    slots = {
        "title": html.escape(f"{data['folder']} · cascadice"),
        "style": _asset("page.css"),
        "connect": connect,
        "body": _filled(_asset(body), {"table": _asset("table.html")}),
        "library": library,
        "data": json_in_html(data),
        "program": "\n".join(_asset(name) for name in program),
    }
    return _filled(_asset("page.html"), slots)


def _filled(text: str, slots: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], text)


def write(folder: files.Folder, out: files.Folder | None = None) -> tuple[Path, Json]:
    """Write the page of the run in a folder into `out` (its report.html); the path, and what is on the page."""
    data = collect(folder)
    return _written(page(data), folder, out), data


def write_results(folder: files.Folder, out: files.Folder | None = None) -> tuple[Path, Json]:
    """Write the page of what `cascadice reproduce` made into `out` (its report.html), as `write` does of a run."""
    data = collect_results(folder)
    return _written(page_of_results(data), folder, out), data


def _written(text: str, folder: files.Folder, out: files.Folder | None) -> Path:
    path = Path(folder) / REPORT if out is None else Path(out)
    with files.aside(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def json_in_html(data: Json) -> str:
    """JSON that no HTML parser can mistake for markup."""
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)


def _asset(name: str) -> str:
    return (resources.files("cascadice.report.page") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
