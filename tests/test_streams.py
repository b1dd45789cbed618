"""What is printed, and what happens when something goes wrong that nobody foresaw."""

import os
import subprocess
import sys
import unicodedata

import pytest
import torch

from cascadice import files
from cascadice.cli import main
from cascadice.commands import streams
from cascadice.console import Console, say
from cascadice.files import jsonl
from cascadice.names import visible
from cascadice.pictures.partition import plot
from cascadice.report.page.writing import json_in_html, page_of_results
from cascadice.runs.options import read_options
from cascadice.runs.progress import holdings_table

HOSTILE = ("[/b]", "\x1b[31mred", "\x9b2J", "a\u202eb", ":smile:", "$\\frac$")
TINY = ["--nodes", "3", "--model-options", "hidden=[4]", "--rounds", "2"]


def broken(*_, **__):
    raise KeyError("seconds")


@pytest.fixture
def _temporary(monkeypatch, tmp_path):
    monkeypatch.setattr(streams.tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("_temporary")
def test_an_unexpected_error_is_one_line_and_a_file(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("cascadice.runs.train.run", broken)
    assert main(["run", "demo"]) == 1
    said = capsys.readouterr().err
    (written,) = tmp_path.glob("cascadice-error-*.txt")
    assert said == (
        f"cascadice: an error that cascadice did not expect, KeyError: 'seconds'; the full text is in {written}.\n"
    )
    assert "in broken" in written.read_text()
    assert written.stat().st_mode & 0o077 == 0


def test_an_unexpected_error_can_be_seen_in_full(monkeypatch):
    monkeypatch.setattr("cascadice.runs.train.run", broken)
    monkeypatch.setenv(streams.TRACEBACK, "1")
    with pytest.raises(KeyError, match="seconds"):
        main(["run", "demo"])


def test_an_unexpected_error_needs_no_disk(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("cascadice.runs.train.run", broken)
    monkeypatch.setattr(streams.tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert main(["run", "demo"]) == 1
    assert capsys.readouterr().err.endswith("KeyError: 'seconds'; set CASCADICE_TRACEBACK=1 to see where.\n")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_no_memory_left_is_named(monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("cascadice.runs.train.run", fail)
    assert main(["run", "demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("cascadice: out of memory")
    assert said.endswith("Use fewer participants, a smaller model or smaller batches.\n")


def test_a_run_goes_on_when_the_reader_of_its_output_leaves(monkeypatch, tmp_path):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    with os.fdopen(write, "w", buffering=1) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["run", "demo", *TINY, "--out", str(tmp_path / "run")]) == 0
    assert files.read_json(tmp_path / "run" / "manifest.json")["status"] == "finished"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")  # noqa: PTH110
def test_a_run_goes_on_when_its_output_cannot_be_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    with open("/dev/full", "w", buffering=1) as stdout:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["run", "demo", *TINY, "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == "cascadice: standard output: No space left on device.\n"
    assert files.read_json(tmp_path / "run" / "manifest.json")["status"] == "finished"


@pytest.mark.parametrize("how", [">&-", "1</dev/null"])  # closed, and open for reading only
def test_standard_output_may_be_closed(how):
    line = f"{sys.executable} -m cascadice list recipes {how}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_files_are_printed_as_they_are(capsys, name):
    console = Console(width=200)
    console.print(holdings_table(torch.tensor([[3, 4]]), [name, "b"]))
    say(console, name)
    printed = capsys.readouterr().out
    assert printed.count(visible(name)) == 2
    assert not set(printed) & {"\x1b", "\x9b", "\u202e"}


def test_every_control_character_is_written_out():
    turning = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}  # the order of the text around them
    every = {"\u061c", "\u200e", "\u200f"}
    for character in map(chr, range(0x3000)):
        if unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in turning:
            every.add(character)
    assert {character for character in every if visible(character) == character} == {"\n", "\t"}


def test_an_error_cannot_control_the_terminal(capsys):
    assert main(["report", "\x1b]0;mine\x07"]) == 2
    assert capsys.readouterr().err.startswith("cascadice: \\x1b]0;mine\\x07 does not exist.")


@pytest.mark.parametrize("name", [*HOSTILE, "\\u001b", "\\\x1b"])
def test_control_characters_are_text_on_a_page(name):
    assert jsonl.parse(json_in_html({"name": name})) == {"name": visible(name)}
    assert "\x1b" not in page_of_results({"folder": name, "results": []})


def test_names_from_files_are_drawn_as_they_are(tmp_path):
    plot(torch.ones(1, len(HOSTILE), dtype=torch.int64), tmp_path / "a.svg", HOSTILE)
    assert "\x1b" not in (tmp_path / "a.svg").read_text()  # control characters, and no error from "$"


def test_nested_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"is not JSON \(its lists and objects are nested too deeply\)"):
        files.read_json(tmp_path / "config.json")
    assert read_options(["hidden=" + "[" * 100_000])["hidden"].startswith("[[")
