"""Two runs on one page; runs that cannot be compared are refused, with the reason."""

from dataclasses import replace

import pytest
from report.pages import CONFIG

from cascadice import files
from cascadice.cli import main
from cascadice.report.page import compare
from cascadice.runs.config import to_json


def test_the_same_questions_are_compared(asked, run, tmp_path, capsys):
    other = run.rename(tmp_path / "other")
    section = compare(asked, other)
    assert section["title"] == "run compared with other"
    assert section["findings"][0].startswith("Mean test accuracy: 0.")
    assert section["findings"][1:] == ["Their settings are the same.", "Influence by truth clearly differs for nobody."]
    assert [chart["title"] for chart in section["charts"]][-1] == "Influence of each participant (truth)"
    assert [row[1] for row in section["rows"]] == [row[3] for row in section["rows"]]
    assert main(["report", str(asked), "--compare", str(other), "--out", str(tmp_path / "two.html")]) == 0
    assert "clearly differs for nobody" in capsys.readouterr().out
    assert "run compared with other" in (tmp_path / "two.html").read_text()


def test_influence_that_was_asked_of_one_is_not_compared(asked, bare):
    section = compare(asked, bare)
    assert section["rows"] == []
    assert "Influence is not compared: run has truth of 3 rounds, first order of 3 rounds" in section["findings"][2]
    assert "bare has none. Ask both runs the same with `cascadice influence`." in section["findings"][2]


@pytest.mark.parametrize(("settings", "reason"), [
    ({}, "they are one and the same"),
    ({"data": "mnist"}, "their data sets are digits and mnist"),
    ({"loss": "mse", "nodes": 5}, "their losses are cross-entropy and mse; their numbers of participants are 6 and 5"),
])  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(trained, tmp_path, capsys, settings, reason):
    other = trained
    if settings:
        other = tmp_path / "other"
        other.mkdir()
        files.write_json(other / "config.json", to_json(replace(CONFIG, **settings)))
    assert main(["report", str(trained), "--compare", str(other)]) == 2
    said = capsys.readouterr().err
    assert f"cannot be compared: {reason}. Name two runs of the same data" in said
    assert main(["report", str(trained), "--compare", str(tmp_path / "none")]) == 2
