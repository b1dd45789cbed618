"""Everything that was reproduced on one page: self-contained HTML, and Markdown beside the pictures."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cascadice.store import aside, read_json

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; background: #fff; border-radius: 4px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .15rem .7rem .15rem 0; border-bottom: 1px solid #8884; white-space: nowrap; }
.claim { border-left: 4px solid #0072B2; padding-left: .8rem; }
.note { opacity: .75; font-size: 13px; }
"""


def write(out: Path) -> None:
    """Write index.html and index.md from the results that are in the folder."""
    results = {path.parent.name: read_json(path) for path in sorted(out.glob("*/result.json"))}
    ordered = dict(sorted(results.items(), key=lambda item: place(item[0])))
    for name, text in (("index.html", page(out, ordered)), ("index.md", markdown(ordered))):
        with aside(out / name) as draft:
            draft.write_text(text, encoding="utf-8")


def place(name: str) -> tuple[int, str]:
    """Where a figure comes on the page: as in the registry."""
    from cascadice.experiments.figures.registry import FIGURES

    return (list(FIGURES).index(name) if name in FIGURES else len(FIGURES)), name


def page(out: Path, results: Mapping[str, Mapping[str, Any]]) -> str:
    """One HTML file with its pictures inside."""
    contents = "".join(f'<li><a href="#{n}">{escape(r["title"])}</a></li>' for n, r in results.items())
    sections = "".join(_section(out / name / "figure.png", name, result) for name, result in results.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>The paper, reproduced</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>The paper, reproduced</h1><ol>{contents}</ol>{sections}</body></html>\n"
    )


def _section(picture: Path, name: str, result: Mapping[str, Any]) -> str:
    image = b64encode(picture.read_bytes()).decode()
    findings = "".join(f"<li>{escape(text)}</li>" for text in result["findings"])
    header, *rows = table(result["summary"])
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    claim = f'<p class="claim">The paper: {escape(result["claim"])}</p>' if result["claim"] else ""
    return (
        f'<section><h2 id="{name}">{escape(result["title"])}</h2>{claim}<ul>{findings}</ul>'
        f'<img alt="{escape(result["title"])}" src="data:image/png;base64,{image}">'
        f'<details><summary>{len(rows)} rows</summary><div class="wide"><table><tr>{head}</tr>{body}</table></div>'
        f'</details><p class="note">{escape(how(name, result))}</p></section>'
    )


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The same as text, with links to the pictures."""
    lines = ["# The paper, reproduced", ""]
    for name, result in results.items():
        lines += [f"## {result['title']}", ""]
        lines += [f"The paper: {result['claim']}", ""] if result["claim"] else []
        lines += [*(f"- {finding}" for finding in result["findings"]), "", f"![{result['title']}]({name}/figure.png)"]
        header, *rows = table(result["summary"])
        bars = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
        lines += ["", *bars, "", how(name, result), ""]
    return "\n".join(lines)


def how(name: str, result: Mapping[str, Any]) -> str:
    """With what, how long, and by which command."""
    quick = result["settings"]["quick"]
    scale = "quick: fewer participants, rounds and points than the paper" if quick else "the paper's settings"
    mixed = " --mixing FILE.csv" if result["settings"]["mixing"] else ""
    command = f"cascadice reproduce {name}{' --quick' * quick}{mixed}"
    return f"{command} ({scale}; {result['seconds']:.0f} s on {result['device']}, cascadice {result['version']})"


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and the rows as texts; columns that nobody fills are left out."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
    return [[name.replace("_", " ") for name in names], *([cell(row[name]) for name in names] for row in rows)]


def cell(value: Any) -> str:
    """A number to four digits; of three, the value and its ends."""
    if isinstance(value, list):
        middle, *ends = (cell(entry) for entry in value)
        return f"{middle} ({' to '.join(ends)})"
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
