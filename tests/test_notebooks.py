"""The notebooks are their scripts, cell by cell, and print in a kernel what the scripts promise."""

import re
import runpy
from pathlib import Path

import pytest
from test_examples import PROMISES

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
generate = runpy.run_path(str(FOLDER / "generate.py"))
CHOSEN = generate["CHOSEN"]


def test_all_notebooks_are_of_scripts():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(CHOSEN)


@pytest.mark.parametrize("name", CHOSEN)
def test_notebook_is_its_script(name):
    written = (FOLDER / f"{name}.ipynb").read_text()
    assert written == generate["notebook"](name), f"{name}.py has changed: `make notebooks` writes its notebook again"


@pytest.mark.parametrize("name", CHOSEN)
def test_cells_lose_no_code(name):
    script = generate["source"](name)
    code = "\n".join(text for kind, text in generate["cells"](script) if kind == "code")
    assert [line for line in code.splitlines() if line] == [
        line for line in script.split('"""\n', 1)[1].splitlines() if line
    ]
    for kind, text in generate["cells"](script):
        assert kind == "markdown" or compile(text, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_notebook_prints_what_its_script_promises(name, one_thread):
    pytest.importorskip("nbclient", reason="`make notebooks` installs nbclient and ipykernel")
    if name == "lora_language_model":
        pytest.importorskip("peft", reason="`make language` installs peft and transformers")
    printed = generate["execute"](name)
    promise, bounds = PROMISES[name]
    match = re.search(promise, printed)
    assert match, printed
    for number, (lowest, highest) in zip(match.groups(), bounds, strict=True):
        assert lowest <= float(number) <= highest, printed
