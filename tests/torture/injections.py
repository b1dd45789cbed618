"""Names that are markup, code or commands of a terminal: in class names, folders and results, on console and page."""

import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from data.small_files import write_pack
from hypothesis import strategies as st

from torture.children import Ended, call
from torture.data_files import RUN
from torture.mutations import drawn
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

PAYLOADS = [
    "<script>alert(1)</script>", "</script><script>alert(1)//", "<img src=x onerror=alert(1)>",
    "'><svg onload=alert(1)>", "<!--", "<!--<script>", "]]>", "javascript:alert(1)", "{{data}}", "${alert(1)}",
    "&lt;b&gt;", "\u2028\u2029", "\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\r\nnew line", "\x08\x08\x08",
    "\u202egnp.exe", "[/b]", "[/", "[link=x]y", "[bold red]x[/]", "%(name)s", "$x^2$", "\\frac{", "__proto__",
    "constructor", "search", "e\u0301", "𝕏" * 40, "", " ",
]  # fmt: skip
ASK = "influence RUN --kind shares --samples --hops 1 --data-root ROOT"


class Active(HTMLParser):
    """Counts what a page could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts, self.handlers = 0, 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag in ("script", "iframe", "object", "embed", "svg", "base", "link", "meta")
        self.handlers += sum(name.startswith("on") or "javascript:" in (value or "") for name, value in attributes)


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """One or two payloads, in one of the places that names come from."""
    plain = {where: Active(_show(stage, where, "plain")[1]) for where in PLACES}
    strategy = st.tuples(st.sampled_from(list(PLACES)), st.sampled_from(PAYLOADS), st.sampled_from(PAYLOADS))
    for where, first, second in drawn(strategy, seed):
        yield _judged(f"{where}: {first + second!r}", _show(stage, where, first + second), plain[where])


def _class_names(place: Path, payload: str) -> list[Ended]:
    """A data set whose classes have such names: trained on, asked about, reported."""
    names = np.array([f"{payload}{number}" for number in range(10)])
    write_pack(place / "root" / "cifar10" / "cifar10.npz", 10, classes=names)
    data = ["--data", "cifar10", "--data-root", str(place / "root"), "--out", str(place / "run")]
    lines = [[word for word in RUN.split() if word != "--quiet"] + data]
    lines += [[{"RUN": str(place / "run"), "ROOT": str(place / "root")}.get(word, word) for word in ASK.split()]]
    return [call(*line) for line in [*lines, ["report", place / "run"]]]


def _folder(place: Path, payload: str) -> list[Ended]:
    """A run in a folder of such a name."""
    name = re.sub(r"[/\x00]", "_", payload)[:60].strip() or "_"
    (place / "run").rename(place / f"r{name}")
    (place / "run").symlink_to(f"r{name}")
    return [call("report", place / f"r{name}"), call("detect", place / f"r{name}", "--overwrite")]


def _results(place: Path, payload: str) -> list[Ended]:
    """Results that say such things, under such names."""
    for path in (place / "run").glob("*/*.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(_filled(content, payload)))
    name = re.sub(r"[/\x00]", "_", payload)[:60].strip(". ") or "_"
    (place / "run" / name).mkdir(exist_ok=True)
    run = json.loads((place / "run" / "manifest.json").read_text()).get("fingerprint")
    (place / "run" / name / f"{name}.json").write_text(json.dumps({"run": run, "title": payload}))
    return [call("report", place / "run")]


def _settings(place: Path, payload: str) -> list[Ended]:
    """Settings with such values."""
    path = place / "run" / "config.json"
    return [
        call("report", place / "run"),
        *(call("run", "demo", flag, payload, "--rounds", "1", "--out", place / "new")
          for flag in ("--data", "--topology", "--model-options", "--mixing", "--participants", "--corruptions")),
        _with(path, {"data_root": payload, "device": payload}) or call("report", place / "run"),
    ]  # fmt: skip


def _with(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _filled(content: Any, payload: str) -> Any:
    if isinstance(content, dict):
        return {
            name: value if name in ("run", "format") else _filled(value, payload) for name, value in content.items()
        }
    if isinstance(content, list):
        return [_filled(entry, payload) for entry in content]
    return payload if isinstance(content, str) else content


PLACES = {"class names": _class_names, "folder": _folder, "results": _results, "settings": _settings}


def _show(stage: Stage, where: str, payload: str) -> tuple[list[Ended], str]:
    with stage.empty() if where == "class names" else stage.copy() as place:
        ends = PLACES[where](place, payload)
        page = place / "run" / "report.html"
        return ends, page.read_text(errors="replace") if page.exists() else ""


def _judged(what: str, shown: tuple[list[Ended], str], plain: Active) -> Attempt:
    ends, text = shown
    for ended in ends:
        if ended.crashed:
            return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        raw = {c for c in ended.said if unicodedata.category(c) == "Cc" and c not in "\n\t"}
        if raw:
            return Attempt(what, Outcome.SILENT, f"control characters {raw} on the console: {ended.said[-600:]!r}")
    if text:
        found = Active(text)
        if (found.scripts, found.handlers) != (plain.scripts, plain.handlers):
            return Attempt(what, Outcome.SILENT, f"the page has {found.scripts} scripts for {plain.scripts}")
    return Attempt(what, Outcome.HELD)
