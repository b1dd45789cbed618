"""Everything that was reproduced on one page: HTML as of `cascadice report`, and Markdown beside the pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascadice.files import aside

MANIFEST, RESULT, POINTS, PARTS, ERROR = "reproduction.json", "result.json", "points.parquet", "parts", "error.txt"
PICTURES = ("figure.png", "figure.svg")


def write(out: Path) -> None:
    """Write report.html and index.md from the results that are in the folder, if there are any."""
    from cascadice.report.page import write_results
    from cascadice.report.page.results import places, read

    results = {folder.name: result for folder in places(out) if (result := read(folder, []))}
    if not results:
        return
    with aside(out / "index.md") as draft:
        draft.write_text(markdown(results), encoding="utf-8")
    write_results(out)


def place(name: str) -> tuple[int, str]:
    """Where a figure comes on the page: as in the registry."""
    from cascadice_experiments.figures.registry import FIGURES

    return (list(FIGURES).index(name) if name in FIGURES else len(FIGURES)), name


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
    """A number to four digits; of three, the value and its ends, if they are others."""
    if isinstance(value, list):
        middle, *ends = (cell(entry) for entry in value)
        return middle if {*ends} == {middle} else f"{middle} ({' to '.join(ends)})"
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
