"""Who substitutes whom, asked of a run on the command line: the library's numbers, being stopped, and refusals."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from cascadice.cli import main
from cascadice.files import write_json
from cascadice.influence import evaluate_on, interplay
from cascadice.influence.tables import read_note
from cascadice.report.checking import check_run
from cascadice.runs import pairs, store
from cascadice.runs import train as runs
from cascadice.runs.ask import ask
from cascadice.runs.config import build, to_json
from cascadice.runs.pairs import ask_pairs
from cascadice.runs.question import Question
from cascadice.runs.recipes import demo

ROUNDS = 3
CONFIG = replace(
    demo(), nodes=3, model_options=("hidden=[4]",), epochs=None, rounds=ROUNDS, record="all", dtype="float64", lr=0.05
)
FLAGS = ["--kind", "pairs", "--at", "0.8", "--on", "1", "--eval-samples", "20"]
QUESTION = Question(("pairs",), at=0.8, on=1, eval_samples=20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        runs.run(CONFIG, folder, quiet=True)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def expected(**how):
    network = build(CONFIG)
    evaluation = evaluate_on(network, network.data.test.subset(torch.arange(20)))
    return interplay(network, ROUNDS, evaluation, **how)


@pytest.mark.parametrize("recorded", [True, False])
def test_the_command_writes_what_the_library_computes(run, recorded, capsys):
    if not recorded:
        store.delete_rounds(run, range(ROUNDS))
    assert main(["influence", str(run), *FLAGS]) == 0
    rows = np.genfromtxt(run / "pairs" / "pairs.csv", delimiter=",", names=True)
    assert [(row["left_out"], row["participant"]) for row in rows] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    change = expected(at=0.8, on=1)
    np.testing.assert_allclose(rows["change"], change[~change.isnan()], rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(rows["change"], rows["influence_without"] - rows["influence"])
    note = read_note(run / "pairs")
    assert (note["kinds"], note["rounds"], note["at"], note["on"]) == ("pairs", "3", "0.8", "1")
    out = capsys.readouterr().out
    assert "whole-run influence with everybody, then without each of 3 participants: about 16 trainings" in out
    assert "so they substitute for each other" in out
    assert "Trust the order of pairs more than their sign" in " ".join(out.split())
    strongest = int(np.argmin(rows["change"]))
    line = next(line for line in out.splitlines() if line.startswith("substitutes"))
    assert line.split()[1:3] == [f"{rows[strongest]['left_out']:.0f}", f"{rows[strongest]['participant']:.0f}"]
    assert {path.name for path in (run / "pairs").iterdir()} == {"influence.json", "pairs.csv", "pairs.safetensors"}
    assert not [problem for area in check_run(run) for problem in area.problems]


def test_participants_with_injected_faults_are_marked(tmp_path, capsys):
    write_json(tmp_path / "config.json", to_json(replace(CONFIG, corruptions=("flip-labels:1:0.8",))))
    ask_pairs(tmp_path, QUESTION)
    out = capsys.readouterr().out
    assert re.search(r"1 \(flip-labels\) +[02] ", out)
    assert re.search(r"[02] +1 \(flip-labels\) ", out)


def test_at_weight_one_it_reads_the_recording(run):
    found = ask_pairs(run, replace(QUESTION, at=1.0, on="all"), quiet=True)
    torch.testing.assert_close(found, expected(), equal_nan=True)


def test_stopped_it_goes_on_where_it_was(run, monkeypatch):
    left_out = []

    def stopping(j, *rest, **more):
        left_out.append(j)
        if left_out == [0, 1]:
            raise KeyboardInterrupt
        return influence_without(j, *rest, **more)

    influence_without = pairs.influence_without
    monkeypatch.setattr(pairs, "influence_without", stopping)
    with pytest.raises(KeyboardInterrupt):
        ask_pairs(run, QUESTION, quiet=True)
    found = ask_pairs(run, QUESTION, quiet=True)
    again = ask_pairs(run, QUESTION, quiet=True)
    assert left_out == [0, 1, 1, 2]
    torch.testing.assert_close(found, expected(at=0.8, on=1), equal_nan=True)
    assert torch.equal(again.nan_to_num(), found.nan_to_num())


def test_other_settings_are_refused_unless_they_replace(run):
    ask_pairs(run, QUESTION, quiet=True)
    with pytest.raises(ValueError, match=r"at is '0.8' there, '1.0' here"):
        ask_pairs(run, replace(QUESTION, at=1.0), quiet=True)
    found = ask_pairs(run, replace(QUESTION, at=1.0), quiet=True, overwrite=True)
    torch.testing.assert_close(found, expected(on=1), equal_nan=True)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--kind pairs,whole-run", "--kind pairs is about pairs of participants, whole-run kinds about the final mod"),
        ("--kind pairs --samples", "--samples is for --kind truth"),
        ("--kind pairs --during 0:2", "--during is for --kind whole-run, whole-run-shares; found pairs. Leave it out"),
        ("--kind pairs --hops 2", "--hops is for --kind truth"),
        ("--kind pairs --on 3", "a participant below 3; found 3"),
    ],
)
def test_flags_that_do_not_go_with_pairs(run, flags, complaint, capsys):
    assert main(["influence", str(run), *flags.split()]) == 2
    assert complaint in capsys.readouterr().err
    assert not (run / "pairs").exists()


def test_pairs_are_not_scores(run):
    with pytest.raises(ValueError, match=r"ask scores participants; found the kind 'pairs'. Use ask_pairs"):
        ask(run, QUESTION, quiet=True)
