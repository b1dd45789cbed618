"""Writes the notebooks in this folder from the scripts in `examples/`.

The scripts are the source: the docstring becomes the text, each paragraph of code a cell. Notebooks are kept without
outputs, which would differ between machines. `make notebooks` writes and executes all of them.
"""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
CHOSEN = [
    "first_network",
    "lenet_fashion",
    "own_model_and_loss",
    "own_data",
    "watch_your_own_loop",
    "lora_language_model",
]
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def source(name: str) -> str:
    """The script that this notebook is made from."""
    return (HERE.parent / f"{name}.py").read_text()


def cells(script: str) -> list[tuple[str, str]]:
    """A docstring as text, then the paragraphs of code; imports and what is indented belong to the one above."""
    _, docstring, code = re.split(r'^"""|"""$', script, maxsplit=2, flags=re.MULTILINE)
    title, _, text = docstring.partition("\n")
    paragraphs = re.split(r"\n\n+(?=\S)(?!(?:from|import) )", code.strip())
    return [("markdown", f"# {title}\n{text}".strip()), *(("code", part) for part in paragraphs)]


def notebook(name: str) -> str:
    """The notebook as the text of its file."""
    made = []
    for i, (kind, text) in enumerate(cells(source(name))):
        cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}}
        cell |= {"execution_count": None, "outputs": []} if kind == "code" else {}
        made.append(cell | {"source": text.splitlines(keepends=True)})
    whole = {"cells": made, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def execute(name: str) -> str:
    """Run a notebook in a kernel, as Jupyter would; what it printed."""
    import nbformat
    from nbclient import NotebookClient

    ran = nbformat.reads(notebook(name), as_version=4)
    NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(HERE)}}).execute()
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


if __name__ == "__main__":
    for name in CHOSEN:
        (HERE / f"{name}.ipynb").write_text(notebook(name))
