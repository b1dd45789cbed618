"""The writer that all applications share."""

import argparse
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from cascadice.applications.charts import interval_text, saved_bounds
from cascadice.applications.writer import Section, Writer, open_writer
from cascadice.console import Console
from cascadice.influence.uncertainty import Bounds, plus_minus


@pytest.fixture
def writer(tmp_path):
    recording = SimpleNamespace(folder=tmp_path, fingerprint="abc")
    console = Console(file=io.StringIO(), width=40)
    return Writer("detect", recording, tmp_path / "detect", ["detect.json", "detect.png"], console)


def test_the_json_is_written_last(writer, monkeypatch):
    (writer.folder).mkdir()

    def plot(charts, path, title):
        assert not (writer.folder / "detect.json").exists()
        path.write_text(title + charts[0])

    monkeypatch.setattr("cascadice.pictures.charts.plot", plot)
    section = Section("", "", charts=lambda results: results["findings"])
    writer.write(writer.header("a title", ["participant"], [[3]]) | {"findings": ["one."]}, section)
    results = json.loads((writer.folder / "detect.json").read_text())
    assert list(results) == ["command", "version", "run", "title", "findings", "table", "figure"]
    assert results["table"] == {"columns": ["participant"], "rows": [[3]]}
    assert (writer.folder / results["figure"]).read_text() == "a titleone."


def test_lines_are_printed_as_they_are(writer):
    writer.print("[bold] 'text' 12 that is longer than the console is wide")
    writer.print_files()
    assert writer.console.file.getvalue().splitlines() == [
        "[bold] 'text' 12 that is longer than the console is wide",
        f"detect.json, detect.png in {writer.folder}",
    ]


def test_only_the_named_column_wraps(writer):
    writer.print_table(["participant", "advice"], [[3, "keep in its group, which is large"]], 0, "advice")
    empty, header, first, second, *_ = writer.console.file.getvalue().splitlines()
    assert (empty, header.split()) == ("", ["participant", "advice"])
    assert first.split()[:3] == ["3", "keep", "in"]
    assert second.strip() == "is large"


@pytest.mark.parametrize("wrap", ["", "advice"])
def test_no_table_is_cut_where_the_console_is_too_narrow(writer, wrap):
    row = ["an estimate with a long name", "0.55 (0.30 to 0.73)", "keep"]
    writer.print_table(["estimate", "LDS (95 % interval)", "advice"], [row], 1, wrap)
    *_, header, line = writer.console.file.getvalue().splitlines()
    assert writer.console.width < len(line)
    assert " ".join(header.split()) == "estimate LDS (95 % interval) advice"
    assert " ".join(line.split()) == " ".join(row)


def test_a_table_without_rows_is_not_printed(writer):
    writer.print_table(["participant"], [], 0)
    assert writer.console.file.getvalue() == ""


def test_results_are_not_replaced_unasked(tmp_path):
    recording = SimpleNamespace(folder=tmp_path, fingerprint="abc")
    args = argparse.Namespace(out=None, overwrite=False, quiet=True)
    (tmp_path / "choose").mkdir()
    (tmp_path / "choose" / "mixing.csv").touch()
    assert open_writer(args, recording, "choose").folder == tmp_path / "choose"
    with pytest.raises(ValueError, match=r"mixing\.csv already exists\. Replace it with --overwrite"):
        open_writer(args, recording, "choose", "mixing.csv")


def test_intervals_in_words():
    bounds = Bounds(np.array([-0.25, np.nan]), np.array([0.123456, np.nan]))
    assert interval_text(bounds, 0) == "−0.2500 to +0.1235"
    assert interval_text(bounds, 0, digits=2) == "−0.25 to +0.12"
    assert interval_text(Bounds(np.array([79.76]), np.array([82.59])), 0, digits=2) == "79.76 to 82.59"
    assert interval_text(bounds, 1) is None
    assert [plus_minus(*pair, 3) for pair in ((-0.0, 0.25), (1.5, float("nan")))] == ["+0.000 ± 0.250", "+1.500"]
    assert plus_minus(0.00214, 0.00206) == "+0.00214 ± 0.00206"  # not +0.0021 ± 0.0021, which would not exclude 0
    assert plus_minus(-0.0004, 0.0003, 3) == "-0.0004 ± 0.0003"
    assert plus_minus(-0.00146, 0.000098) == "-0.001460 ± 0.000098"  # not ± 9.8e-05
    assert plus_minus(-0.0000146, 0.0000098) == "-1.46e-05 ± 9.8e-06"
    assert plus_minus(0.00206, 0.00214) == "+0.0021 ± 0.0021"
    assert saved_bounds([[-1, 2], [0, 3]]).high.tolist() == [2, 3]
    assert saved_bounds(None) is saved_bounds([[None, None]]) is None
