"""The pages that show everything reproduced in a folder: report.html, and index.md beside the pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cascadice.files import replacing
from cascadice.report.page import write_results
from cascadice.report.page.results import command_line, provenance, read_result, result_folders, text_table


def write(out: Path) -> None:
    """Write report.html and index.md from the results in a folder, if it has any."""
    results = {folder.name: result for folder in result_folders(out) if (result := read_result(folder, []))}
    if not results:
        return
    with replacing(out / "index.md") as draft:
        draft.write_text(markdown(results), encoding="utf-8")
    write_results(out)


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The results as Markdown, with links to the pictures."""
    lines = ["# The paper, reproduced", ""]
    for name, result in results.items():
        lines += [f"## {result['title']}", ""]
        lines += [f"The paper: {result['claim']}", ""] if result["claim"] else []
        lines += [*(f"- {finding}" for finding in result["findings"]), "", f"![{result['title']}]({name}/figure.png)"]
        header, *rows = text_table(result["summary"])
        table = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
        lines += ["", *table, "", f"{command_line(name, result)} ({provenance(result)})", ""]
    return "\n".join(lines)
