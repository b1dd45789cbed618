"""Two runs on one page; runs that cannot be compared are refused, with the reason."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from report.pages import CONFIG

from cascadice import files
from cascadice.cli import main
from cascadice.influence.tables import concatenate, table_of_participants
from cascadice.report.page import compare, comparing
from cascadice.report.page.influences import Influences
from cascadice.runs.config import to_json
from cascadice.runs.summary import summarise


def test_the_same_questions_are_compared(asked, run, tmp_path, capsys):
    other = run.rename(tmp_path / "other")
    section = compare(asked, other)
    assert section["title"] == "Comparison of run with other"
    assert section["findings"][0].startswith("Mean test accuracy: 0.")
    assert section["findings"][1:] == ["Their settings are the same.", "Influence by truth clearly differs for nobody."]
    assert [chart["title"] for chart in section["charts"]][-1] == "Influence of each participant (truth)"
    assert [row[1] for row in section["rows"]] == [row[3] for row in section["rows"]]
    assert main(["report", str(asked), "--compare", str(other), "--out", str(tmp_path / "two.html")]) == 0
    assert "clearly differs for nobody" in capsys.readouterr().out
    assert "Comparison of run with other" in (tmp_path / "two.html").read_text()


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


def with_influence(*updates):
    """A run whose two participants had this influence, in each of its rounds."""
    rows = concatenate(table_of_participants("truth", t, torch.tensor(row)) for t, row in enumerate(updates))
    return SimpleNamespace(influences=[Influences("influence", rows, summarise(rows, 2))], injected={})


def test_a_difference_is_clear_where_intervals_do_not_overlap_whichever_run_comes_first():
    helps = with_influence([-1.0, 0.5], [-1.1, -0.5], [-0.9, 0.2])
    harms = with_influence([1.0, 0.6], [1.1, -0.2], [0.9, 0.3])
    for runs in ([helps, harms], [harms, helps]):
        found = comparing._influence(runs, ["one", "other"])
        assert found["findings"] == ["Influence by truth clearly differs for participant 0."]
        assert [row[-1] for row in found["rows"]] == ["clear", ""]


@pytest.mark.parametrize(("names", "digests", "reason"), [
    (["mine", "copy"], ["a1", "a1"], []),
    (["mine", "mine"], ["a1", "b2"], ["their data sets are both called mine but hold different samples"]),
    (["mine", "copy"], ["a1", "b2"], ["their data sets are mine and copy, which hold different samples"]),
    (["mine", "copy"], ["a1", None], ["their data sets are mine and copy"]),
    (["mine", "mine"], [None, "b2"], []),
    (["watched batches"] * 2, ["a1", "b2"], []),
])  # fmt: skip
def test_data_are_the_same_by_their_digests_and_without_them_by_their_names(names, digests, reason):
    runs = [
        SimpleNamespace(config=SimpleNamespace(data=name), manifest={"data": digest} if digest else {})
        for name, digest in zip(names, digests, strict=True)
    ]
    assert comparing._different_data(runs) == reason


@pytest.mark.parametrize(("rounds", "hops", "shared"), [((0, 1), 2, True), ((0, 2), 2, False), ((0, 1), 3, False)])
def test_only_the_same_rounds_and_hops_are_compared(rounds, hops, shared):
    def asked(rounds, hops):
        return SimpleNamespace(
            summary=SimpleNamespace(rounds=rounds, updates={"truth": None}, by_hop={"truth": range(hops)})
        )

    assert comparing._shared(asked((0, 1), 2), asked(rounds, hops)) == ["truth"] * shared
