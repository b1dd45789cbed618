"""Functions of your own, named `package.module:name`: found, or refused with the reason."""

import sys

import pytest
import torch.nn.functional as F

from cascadice import references

MODULE = """
number = 3
def make(): return 5
def broken(): return 1 / 0
class Inside:
    @staticmethod
    def made(): return 6
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(MODULE)
    (tmp_path / "of_mine_broken.py").write_text("import of_nobody")
    (tmp_path / "of_mine_rude.py").write_text("raise RuntimeError('no GPU here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("of_mine")]:
        del sys.modules[name]


def test_modules_of_the_current_folder_are_found():
    assert references.call("of_mine:make", "model") == 5
    assert references.call("of_mine:Inside.made", "model") == 6


@pytest.mark.parametrize(
    ("reference", "reason"),
    {
        "of_mine:": "must be written package.module:name; found 'of_mine:'",
        "of_mine:mak": r"of_mine.py has no 'mak'. Did you mean 'make'\?",
        "of_mine:number": "must be a function; found int",
        "of_nobody:make": "there is no module 'of_nobody'. Install it, or work in the folder that holds it",
        "of_mine_broken:make": "importing of_mine_broken raised ModuleNotFoundError: No module named 'of_nobody'",
        "of_mine_rude:make": "importing of_mine_rude raised RuntimeError: no GPU here",
        "of_mine:broken": "calling it with 0 arguments raised ZeroDivisionError: division by zero",
        "os:abort": "must be your own; os is part of Python",
    }.items(),
)
def test_what_cannot_be_used_is_refused(reference, reason):
    with pytest.raises(ValueError, match=reason):
        references.call(reference, "model")


def test_code_in_a_runs_folder_is_not_run(tmp_path):
    (tmp_path / "manifest.json").touch()
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match="must not lie in a run's folder"):
        references.resolve("of_mine:make", "model")


def test_functions_in_modules_are_found_again():
    assert references.reference_to(F.cross_entropy) == "torch.nn.functional:cross_entropy"
    assert references.resolve("torch.nn.functional:cross_entropy", "loss") is F.cross_entropy
    for lost in (lambda: None, 3, print):
        assert references.reference_to(lost) is None
