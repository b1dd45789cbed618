"""Asking a recording, asking while training, being stopped, and asking the impossible."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascadice.engine import simulate
from cascadice.influence import evaluate_on, first_order, truth
from cascadice.influence.tables import parts, read_note, read_table
from cascadice.report.page import collect
from cascadice.runs import ask as asking
from cascadice.runs import store
from cascadice.runs import train as runs
from cascadice.runs.ask import ask, start_rounds
from cascadice.runs.config import build
from cascadice.runs.question import Question
from cascadice.runs.recipes import demo
from cascadice.runs.recording import spans

CONFIG = replace(demo(), nodes=3, model_options=("hidden=[4]",), epochs=None, rounds=6, record="all", dtype="float64")
ASKED = Question(("truth", "first-order"), hops=2, eval_samples=20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recorded run that was asked while it trained."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)  # takes longer than training
        patch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
        runs.run(CONFIG, folder, quiet=True, question=ASKED)
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """The run, without its influence."""
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("influence"))
    return tmp_path / "run"


def same(one, other):
    for name, column in one.columns.items():
        if name == "value":
            np.testing.assert_allclose(column, other.value, rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_array_equal(column, other.columns[name])


def test_a_recording_says_what_the_run_said_while_it_trained(trained, run):
    found = ask(run, ASKED, quiet=True)
    assert found.rounds == (0, 1, 2, 3, 4)
    same(read_table(run / "influence"), read_table(trained / "influence"))
    assert read_note(run / "influence") == read_note(trained / "influence")


def test_the_numbers_are_those_of_the_library(run):
    found = ask(run, replace(ASKED, every=3), quiet=True)
    network = build(CONFIG)
    judged = evaluate_on(network, network.data.test.subset(torch.arange(20)))
    rounds = list(simulate(network, 6))
    for kind, estimate in (("truth", truth), ("first order", first_order)):
        expected = [estimate(network, rounds[t : t + 2], judged).total for t in (0, 3)]
        np.testing.assert_allclose(found.updates[kind], np.stack(expected), rtol=1e-9)
    assert found.test_results[-1].metric == "accuracy"


def test_samples_while_training_are_those_of_the_recording(run, tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    asked = Question(("first-order", "shares"), hops=2, samples=True, every=2)
    runs.run(CONFIG, tmp_path / "again", quiet=True, question=asked)
    found = ask(run, asked, quiet=True)
    same(read_table(run / "influence"), read_table(tmp_path / "again" / "influence"))
    assert {one.node for one in found.samples["shares, 2 points"]} == {0, 1, 2}


def test_stopped_it_goes_on_where_it_was(trained, run, monkeypatch):
    save, kept = asking.save_answer, []

    def stopping(folder, found, note, members):
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(found.round.t)
        save(folder, found, note, members)

    monkeypatch.setattr(asking, "save_answer", stopping)
    with pytest.raises(KeyboardInterrupt):
        ask(run, ASKED, quiet=True)
    assert list(parts(run / "influence")) == kept == [0, 1]
    assert "What follows is of 2 of 5 rounds; repeat the command to finish." in collect(run)["findings"]
    monkeypatch.setattr(asking, "save_answer", lambda *given: (kept.append(given[1].round.t), save(*given)))
    ask(run, ASKED, quiet=True)
    assert kept == [0, 1, 2, 3, 4]
    same(read_table(run / "influence"), read_table(trained / "influence"))
    assert read_note(run / "influence") == read_note(trained / "influence")
    assert not any("repeat the command" in text for text in collect(run)["findings"])


def test_more_rounds_can_be_added(run):
    assert ask(run, replace(ASKED, every=4), quiet=True).rounds == (0, 4)
    assert ask(run, replace(ASKED, every=2), quiet=True).rounds == (0, 2, 4)


def test_other_settings_are_refused_or_replace_what_is_there(run):
    ask(run, replace(ASKED, every=5), quiet=True)
    (run / "influence" / "mine.txt").write_text("kept")
    other = replace(ASKED, hops=1, every=5)
    with pytest.raises(
        ValueError, match=r"holds influence with other settings: hops is '2' there, '1' here.*--overwrite"
    ):
        ask(run, other, quiet=True)
    ask(run, other, quiet=True, overwrite=True)
    assert set(read_table(run / "influence").hop.tolist()) == {0, 1}
    assert (run / "influence" / "mine.txt").exists()


def test_findings_are_told_and_drawn(run, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    ask(run, replace(ASKED, kinds=("first-order",), every=5), tmp_path / "elsewhere")
    out = capsys.readouterr().out
    for words in (
        "scored round 0, 1/1",
        "the loss within 2 hops (first order, summed over rounds)",
        "These sums do not tell who contributed to the final models. For that, use --kind whole-run.",
        "test accuracy",
        "the influence of 1 round to",
    ):
        assert words in out
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {
        "influence.json", "influence.png", "part-00000000.parquet", "checksums.jsonl",
    }  # fmt: skip
    assert not (run / "influence").exists()


@given(
    st.integers(1, 5).flatmap(lambda every: st.tuples(st.just(every), st.integers(1, 6), st.sets(st.integers(0, 9))))
)
def test_rounds_are_read_once_and_only_those_that_are_needed(drawn):
    every, hops, chosen = drawn
    remaining = sorted(every * place for place in chosen)
    found = spans(remaining, hops)
    needed = {t + hop for t in remaining for hop in range(hops)}
    read = [t for span in found for t in span]
    assert read == sorted(set(read))
    assert set(read) >= needed
    assert every < hops or set(read) == needed
    assert all((t - span.start) % every == 0 for span in found for t in remaining if t in span)


def test_only_rounds_with_all_their_hops_are_asked_about():
    assert start_rounds(range(10, 20), Question(hops=3, every=3), "run") == [10, 13, 16]
    assert start_rounds([5], Question(), "run") == [5]
    assert start_rounds([0, 1, 2, 6, 7, 8], Question(hops=2), "run") == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kinds": ("first-ordr",)}, r"unknown kind 'first-ordr'. Did you mean 'first-order'\?"),
        ({"kinds": ()}, "kinds must hold at least one entry, each once"),
        ({"sources": (1, 1)}, r"sources must hold at least one entry, each once; found \[1, 1\]"),
        ({"hops": -1}, "hops must be at least 0; found -1"),
        ({"hops": 0, "samples": True}, "samples and shares need at least 1 hop; found 0"),
        ({"points": 0}, "points must be at least 1"),
        ({"every": -1}, "every must be at least 1"),
        ({"eval_samples": 0}, "eval-samples must be at least 1"),
    ],
)
def test_questions_that_make_no_sense(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Question(**settings)


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (Question(hops=7), "7 hops need 7 consecutive recorded rounds; .* has 6, 0 to 5. Ask for fewer hops"),
        (Question(sources=(0, 3)), "sources must be from 0 to 2; found 3"),
        (Question(eval_samples=9999), "eval-samples must be at most 355"),
    ],
)
def test_questions_that_the_run_cannot_answer(run, question, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(run, question, quiet=True)
    assert not (run / "influence").exists()


def test_a_run_that_was_not_recorded(run, tmp_path):
    store.delete_rounds(run, range(6))
    with pytest.raises(
        ValueError, match=r"has no recorded rounds. Train it with --record all, or compute influence during training"
    ):
        ask(run, ASKED, quiet=True)
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(ValueError, match=r"holds no run: config.json does not exist"):
            ask(tmp_path / folder, ASKED, quiet=True)


def test_a_round_that_is_gone_is_left_out(run):
    store.delete_rounds(run, [3])
    ask(run, Question(hops=2), quiet=True)
    assert sorted(parts(run / "influence")) == [0, 1, 4]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"model_options": ["hidden=[5]"]}, r"belongs to another model: .* is \[4, 64\] in the file, \[5, 64\] here"),
        ({"corruptions": ["noise:0,1,2:100"]}, "000000.safetensors belongs to another run: its fingerprint is"),
    ],
)
def test_a_recording_of_something_else(run, changed, complaint):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | changed))
    for name in ("manifest.json", "checksums.jsonl"):  # which would notice it first
        (run / name).unlink()
    with pytest.raises(ValueError, match=complaint):
        ask(run, ASKED, quiet=True)


def test_the_folder_of_a_run_is_no_place_for_influence(run):
    with pytest.raises(ValueError, match=r"is the folder of a run; influence needs its own.*--out"):
        ask(run, ASKED, run, quiet=True)


def test_a_place_that_cannot_be_written_to(run):
    with pytest.raises(ValueError, match="is a file; influence needs a folder"):
        ask(run, ASKED, run / "config.json", quiet=True)
    with pytest.raises(PermissionError, match="is not a writable folder"):
        ask(run, ASKED, run / "config.json" / "influence", quiet=True)


def test_while_training_questions_must_fit_the_run(tmp_path):
    with pytest.raises(ValueError, match="7 hops need at least as many rounds; the run has 6"):
        runs.run(CONFIG, tmp_path / "run", quiet=True, question=replace(ASKED, hops=7))
    with pytest.raises(ValueError, match="influence cannot be computed for the rounds before a resume"):
        runs.run(CONFIG, tmp_path / "run", quiet=True, resume=True, question=ASKED)
    with pytest.raises(ValueError, match="sources must be from 0 to 2; found 5"):
        runs.run(CONFIG, tmp_path / "run", quiet=True, question=Question(sources=(5,)))
    assert not (tmp_path / "run").exists()
