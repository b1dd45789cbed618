"""The page: one HTML file with its data, pictures and scripts, which needs no network."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from cascadice import files
from cascadice.applications.plain import Json
from cascadice.names import CONTROLS, visible
from cascadice.report.page.collecting import collect
from cascadice.report.page.comparing import compare
from cascadice.report.page.results import collect_results

RUN_SCRIPTS = (
    "basics.js", "page.js", "charts.js", "estimates.js", "network.js", "panel.js", "matrices.js", "sections.js",
    "saving.js", "table.js", "controls.js", "start.js",
)  # fmt: skip
RESULTS_SCRIPTS = ("basics.js", "results.js", "sections.js", "table.js", "start.js")
REPORT = "report.html"
LARGEST = 10_000_000  # bytes of a page
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
# those that JSON leaves as they are
ESCAPES |= {code: written.replace("\\", "\\\\") for code, written in CONTROLS.items()}
CONTROL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u00([01][0-9a-f])")  # not after a backslash, which would be text


def page(data: Json) -> str:
    """Make the HTML page of what `collect` returned; with `live` in the data, it asks its server for newer data."""
    from plotly.offline import get_plotlyjs

    live, library = "live" in data, f"<script>{get_plotlyjs()}</script>"
    scripts = (*RUN_SCRIPTS, "live.js") if live else RUN_SCRIPTS
    return _fill_page(data, "run.html", scripts, library, connect="'self'" if live else "'none'")


def page_of_results(data: Json) -> str:
    """Make the HTML page of what `collect_results` returned."""
    return _fill_page(data, "results.html", RESULTS_SCRIPTS)


def _fill_page(data: Json, body: str, scripts: Sequence[str], library: str = "", connect: str = "'none'") -> str:
    slots = {
        "title": html.escape(visible(f"{data['folder']} · cascadice")),
        "style": _asset("page.css"),
        "connect": connect,
        "body": _fill(_asset(body), {"table": _asset("table.html")}),
        "library": library,
        "data": json_in_html(data),
        "program": "\n".join(_asset(name) for name in scripts),
    }
    return _fill(_asset("page.html"), slots)


def _fill(text: str, slots: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], text)


def write(
    folder: files.Folder, out: files.Folder | None = None, other: files.Folder | None = None
) -> tuple[Path, Json]:
    """Write the page of a run, and with `other` its comparison with another run.

    Args:
        folder: The folder of a run.
        out: The file to write; report.html in the run's folder unless given.
        other: The folder of a run to compare with.

    Returns:
        The path of the page, and what `collect` returned.

    Raises:
        ValueError: If there is no run, or the two cannot be compared.

    Example:
        >>> path, data = write("runs/demo", other="runs/demo-attacked")  # doctest: +SKIP
    """
    data = collect(folder)
    if other is not None:
        data["sections"].insert(0, compare(folder, other))
    return _write(page(data), folder, out), data


def write_results(folder: files.Folder, out: files.Folder | None = None) -> tuple[Path, Json]:
    """Write the page of reproduced figures or of a study.

    Args:
        folder: The folder of a figure or a study, or the `--out` of `cascadice reproduce`.
        out: The file to write; report.html in the folder unless given.

    Returns:
        The path of the page, and what it shows.

    Example:
        >>> path, data = write_results("out/reproduce")  # doctest: +SKIP
    """
    data = collect_results(folder)
    return _write(page_of_results(data), folder, out), data


def _write(text: str, folder: files.Folder, out: files.Folder | None) -> Path:
    path = Path(out or Path(folder) / REPORT)
    with files.replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def json_in_html(data: Json) -> str:
    """JSON in which no HTML parser can see markup, and control characters are text."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)
    return CONTROL_IN_JSON.sub(r"\1\\\\x\2", text)


def _asset(name: str) -> str:
    return (resources.files("cascadice.report.page") / name).read_text(encoding="utf-8")
