"""Who helped the final models: the library's numbers, from a recording or played again; being stopped; refusals."""

import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from cascadice import files
from cascadice.cli import main
from cascadice.engine import DivergedError, simulate
from cascadice.influence import evaluate_on, whole_run, whole_run_shares
from cascadice.influence.tables import parts, read_note, read_table
from cascadice.report.page import collect
from cascadice.runs import recording, store, sweeps
from cascadice.runs import train as runs
from cascadice.runs.ask import ask
from cascadice.runs.config import build, to_json
from cascadice.runs.folder import fingerprint, read_config
from cascadice.runs.question import Question
from cascadice.runs.recipes import demo
from cascadice.runs.recording import open_recording, playable
from cascadice.runs.summary import read_training_change

ROUNDS = 6
CONFIG = replace(
    demo(), nodes=3, model_options=("hidden=[4]",), epochs=None, rounds=ROUNDS, record="all", dtype="float64",
    optimizer="momentum", lr=0.05,
)  # fmt: skip
BOTH = Question(("whole-run", "whole-run-shares"), at=0.7, points=2, samples=True, eval_samples=20)


def train(folder, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)  # takes longer than training
        runs.run(replace(CONFIG, **settings), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
    return shutil.copytree(trained, tmp_path / "run")


def library(config=CONFIG):
    network = build(config)
    return network, evaluate_on(network, network.data.test.subset(torch.arange(20)))


def column(table, **wanted):
    return table.select(**wanted).value


def same(one, other):
    for name, values in one.columns.items():
        np.testing.assert_array_equal(values, other.columns[name])


@pytest.mark.parametrize("recorded", [True, False])
def test_the_numbers_are_those_of_the_library(run, recorded):
    if not recorded:
        store.delete_rounds(run, range(ROUNDS))
    found = ask(run, BOTH, quiet=True)
    network, evaluation = library()
    expected = {
        "whole-run shares": whole_run_shares(network, ROUNDS, evaluation, points=2),
        "whole-run at 0.7": whole_run(network, ROUNDS, evaluation, at=0.7),
    }
    table = read_table(run / "whole-run")
    assert list(found.updates) == list(expected)
    assert set(table.hop.tolist()) == set(table.receiver.tolist()) == {-1}
    for kind, whole in expected.items():
        np.testing.assert_array_equal(found.updates[kind], whole.by_round)
        assert column(table, kind=kind).size == ROUNDS * 3 * (1 + 16)
        for score in found.samples[kind][:3]:
            assert score.value == pytest.approx(float(whole.by_sample(len(network.data.train))[score.sample]))
    gap = found.participants["whole-run shares"].sum() - found.training_change
    assert gap == pytest.approx(expected["whole-run shares"].gap, abs=1e-12)
    assert read_training_change(run / "whole-run") == found.training_change


@pytest.mark.parametrize(("on", "at"), [("average", 1.0), (2, 0.7)])
def test_on_whose_final_models(tmp_path, monkeypatch, on, at):
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
    ring = {"nodes": 5, "topology": "ring"}  # on which final models differ
    run = train(tmp_path / "run", **ring)
    found = ask(run, replace(BOTH, at=at, points=1, on=on, samples=False), quiet=True)
    network, evaluation = library(replace(CONFIG, **ring))
    expected = whole_run(network, ROUNDS, evaluation, at=at, on=on, samples=False)
    np.testing.assert_array_equal(found.updates[f"whole-run at {at:g}"], expected.by_round)
    shares = whole_run_shares(network, ROUNDS, evaluation, points=1, on=on, samples=False)
    gap = found.participants["whole-run shares"].sum() - found.training_change
    assert gap == pytest.approx(shares.gap, abs=1e-12)
    assert found.samples == {}
    assert read_note(run / "whole-run")["on"] == str(on)


def test_the_updates_of_some_rounds(run):
    assert (
        main(["influence", str(run), "--kind", "whole-run", "--during", "1:4", "--eval-samples", "20", "--quiet"]) == 0
    )
    network, evaluation = library()
    expected = whole_run(network, ROUNDS, evaluation, during=range(1, 4), samples=False).by_round
    found = column(read_table(run / "whole-run"), kind="whole-run at 1").reshape(ROUNDS, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not found[[0, 4, 5]].any()
    assert found[1:4].any()
    assert read_note(run / "whole-run")["during"] == "1, 4"


@pytest.mark.parametrize("recorded", [True, False])
def test_shares_of_the_updates_of_some_rounds(run, recorded, capsys, monkeypatch):
    if not recorded:
        store.delete_rounds(run, range(ROUNDS))
    monkeypatch.setattr(sweeps, "counting", bar := stopping(0))
    flags = ["--kind", "whole-run-shares", "--during", "1:4", "--points", "1", "--eval-samples", "20"]
    assert main(["influence", str(run), *flags]) == 0
    assert bar.count == bar.total
    network, evaluation = library()
    expected = whole_run_shares(network, ROUNDS, evaluation, points=1, during=range(1, 4), samples=False)
    found = column(read_table(run / "whole-run"), kind="whole-run shares").reshape(ROUNDS, 3)
    np.testing.assert_allclose(found, expected.by_round, rtol=1e-12)
    gap = found.sum() - read_training_change(run / "whole-run")
    assert gap == pytest.approx(expected.gap, abs=1e-12)
    assert "; the updates of rounds 1 to 3 changed the loss by " in capsys.readouterr().out


def test_at_weight_one_a_complete_recording_is_read_and_nothing_is_played(run, monkeypatch):
    question = Question(("whole-run",), eval_samples=20)
    network, evaluation = library()
    expected = whole_run(network, ROUNDS, evaluation, samples=False).by_round
    with monkeypatch.context() as patch:
        patch.setattr("cascadice.engine.backwards.simulate", None)
        found = ask(run, question, quiet=True)
        np.testing.assert_array_equal(found.updates["whole-run at 1"], expected)
        store.delete_rounds(run, [2])
        with pytest.raises(TypeError):  # with a round missing it has to be played
            ask(run, question, quiet=True, overwrite=True)
    found = ask(run, question, quiet=True)
    np.testing.assert_array_equal(found.updates["whole-run at 1"], expected)


def test_a_run_that_has_a_later_end_than_its_recording_is_played(run):
    train_longer = replace(read_config(run), rounds=ROUNDS + 2, record="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        runs.run(train_longer, run, resume=True, quiet=True)
    opened = playable(open_recording(run))
    assert (opened.rounds, opened.recorded) == (ROUNDS + 2, None)


@pytest.mark.parametrize("rule", ["influence", "clipping"])
def test_a_rule_that_chose_who_listens_is_followed_as_recorded(rule, tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
    run = train(tmp_path / "run", rule=rule)
    opened = playable(open_recording(run))
    rounds = list(opened.recorded)
    again = list(simulate(opened.network, ROUNDS))
    assert all(torch.equal(a.after.theta, b.after.theta) for a, b in zip(rounds, again, strict=True))
    found = ask(run, BOTH, quiet=True)
    network, evaluation = library()
    expected = whole_run(network, rounds, evaluation, at=0.7).by_round
    np.testing.assert_allclose(found.updates["whole-run at 0.7"], expected, rtol=1e-12)
    store.delete_rounds(run, [3])
    with pytest.raises(ValueError, match=rf"the rule '{rule}' chose W during.*lacks round 3. Train it again with"):
        ask(run, BOTH, quiet=True)


def test_a_rule_that_does_not_average_is_refused(tmp_path):
    run = train(tmp_path / "run", rule="trimmed-mean", record="none")
    with pytest.raises(ValueError, match=r"only if its participants average; .* the rule 'trimmed-mean', which does n"):
        ask(run, BOTH, quiet=True)


class StopError(Exception):
    """Somebody pulled the plug."""


def stopping(after):
    """A progress display that pulls the plug after so many rounds."""

    @contextmanager
    def counting(total, console, doing):
        count = 0

        def one_more(done):
            nonlocal count
            count += 1
            if count == after:
                raise StopError

        yield one_more
        counting.total, counting.count = total, count

    return counting


@pytest.fixture(scope="module")
def never_stopped(trained, tmp_path_factory):
    """The table of a command that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "whole-run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
        patch.setattr(recording, "segment", lambda network, rounds: 2)
        patch.setattr(sweeps, "counting", whole := stopping(0))
        ask(trained, BOTH, out, quiet=True)
    assert whole.count == whole.total == 3 * (4 + 6 + 6)
    return read_table(out)


@pytest.mark.parametrize(("after", "killed"), [(1, 1), (3, 0), (5, 1), (9, 0), (12, 1), (16, 0), (17, 1), (40, 1)])
def test_stopped_it_goes_on_where_it_was_with_the_same_bits(run, never_stopped, monkeypatch, after, killed):
    monkeypatch.setattr(recording, "segment", lambda network, rounds: 2)  # checkpoints before rounds 2 and 4
    out = run / "whole-run"
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "counting", stopping(after))
        patch.setattr(sweeps, "SAVE_SECONDS", 0.0)
        if killed:  # nothing is saved on the way out
            patch.setattr(sweeps.SavedSweep, "save", _saving_unless(sweeps.SavedSweep.save))
        with pytest.raises(StopError):
            ask(run, BOTH, quiet=True)
    assert list(parts(out)) == []
    monkeypatch.setattr(sweeps, "counting", rest := stopping(0))
    ask(run, BOTH, quiet=True)
    assert rest.count == rest.total <= 3 * (4 + 6 + 6) - after + 1 + 4  # at most two segments are played once more
    same(read_table(out), never_stopped)
    assert {path.suffix for path in out.iterdir()} == {".json", ".parquet"}


def _saving_unless(save):
    return lambda scores: None if isinstance(sys.exc_info()[1], StopError) else save(scores)


def test_what_is_finished_is_not_computed_again(run, monkeypatch):
    ask(run, BOTH, quiet=True)
    before = read_table(run / "whole-run")
    monkeypatch.setattr(sweeps, "sweep", None)
    ask(run, BOTH, quiet=True)
    same(read_table(run / "whole-run"), before)


def test_notes_leave_out_defaults_and_other_settings_are_refused(run):
    question = Question(("whole-run",), at=0.5)
    ask(run, question, quiet=True)
    assert {name: value for name, value in read_note(run / "whole-run").items() if name != "run"} == {
        "format": "cascadice-influence-2", "kinds": "whole-run", "rounds": "6", "at": "0.5",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"at is '0.5' there, '1.0' here. Choose another folder .*--overwrite"):
        ask(run, replace(question, at=1.0), quiet=True)
    with pytest.raises(ValueError, match="kinds is 'whole-run' there, 'first-order' here"):
        ask(run, Question(), run / "whole-run", quiet=True)
    ask(run, replace(question, at=1.0), quiet=True, overwrite=True)
    assert set(read_table(run / "whole-run").kind) == {"whole-run at 1"}


def test_a_weight_at_which_the_run_diverges_is_named(tmp_path):
    run = train(tmp_path / "run", optimizer="sgd")
    store.delete_rounds(run, range(ROUNDS))  # what was recorded would be followed, whatever the settings say now
    config = replace(read_config(run), lr=1e300)
    files.write_json(run / "config.json", to_json(config))
    manifest = files.read_json(run / "manifest.json")
    files.write_json(run / "manifest.json", manifest | {"fingerprint": fingerprint(config)})
    with pytest.raises(DivergedError, match=r"in the run at α = 0.7, "):
        ask(run, replace(BOTH, kinds=("whole-run",)), quiet=True)


def test_what_is_said(run, capsys):
    ask(run, BOTH)
    out = capsys.readouterr().out
    for words in (
        "whole-run influence of 6 rounds at α = 0.7, 0.211, 0.789: about 9 trainings, 0 MiB of rounds kept",
        "played and scored rounds, 36/36",
        "each participant's share of what training did to the test loss of the final models",
        "the final models (whole-run shares, summed over rounds)",
        "shares sum to ",
        "; training changed the loss by ",
        "the influence of 6 rounds to",
    ):
        assert words in out
    ask(run, Question(("whole-run",)), overwrite=True)
    out = capsys.readouterr().out
    assert "at α = 1: about 2 trainings, from the recording" in out
    assert "warning" not in out


def test_that_a_recording_lacks_a_round_is_said(run, capsys, tmp_path):
    expected = ask(run, Question(("whole-run",)), quiet=True).participants
    files.remove(run / "rounds" / "000004.safetensors")
    found = ask(run, Question(("whole-run",)), overwrite=True).participants
    assert "(the recording lacks round 4, so the run is trained again)" in capsys.readouterr().out
    np.testing.assert_allclose(found["whole-run at 1"], expected["whole-run at 1"], rtol=1e-9)
    assert playable(open_recording(run)).lost == 4
    assert playable(open_recording(train(tmp_path / "some", record="last:2"))).lost is None  # nothing was lost


@pytest.mark.parametrize("kinds", [("whole-run",), ("whole-run", "whole-run-shares")])
def test_slopes_of_a_run_that_is_too_rough_come_with_a_warning(kinds, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
    rough, question = train(tmp_path / "rough", lr=3.0, rounds=30), Question(kinds, points=1)
    for _ in range(2):  # the second finds the table there
        with pytest.warns(RuntimeWarning, match="^the slope of participant ") as warned:
            ask(rough, question, quiet=True)
        (doubt,) = (str(one.message) for one in warned)
    assert (read_training_change(rough / "whole-run") is None) == (len(kinds) == 1)
    sentence, told = f"T{doubt[1:]}", collect(rough)
    assert told["findings"].count(sentence) == 1
    assert told["final"]["findings"][0] == sentence
    assert main(["report", str(rough)]) == 0
    assert sentence in capsys.readouterr().out
    files.remove(rough / "whole-run" / "losses.json")  # as earlier versions left it
    assert ask(rough, question, quiet=True).doubt == ""
    assert sentence not in collect(rough)["findings"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kinds": ("whole-runs",)}, r"unknown kind 'whole-runs'. Did you mean"),
        ({"kinds": ()}, "kinds must hold at least one entry, each once"),
        ({"at": 0.0}, "at must be above 0 and at most 1; found 0"),
        ({"at": 1.5}, "at must be above 0 and at most 1; found 1.5"),
        ({"points": 0}, "points must be at least 1; found 0"),
        ({"eval_samples": 0}, "eval-samples must be at least 1; found 0"),
    ],
)
def test_questions_that_make_no_sense(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Question(**{"kinds": ("whole-run-shares", "whole-run"), **settings})


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            "--kind whole-run --hops 2",
            "--hops is for --kind truth, first-order, path-integrated, shares; found",
        ),
        (
            "--kind whole-run --every 2",
            "--every is for --kind truth, first-order, path-integrated, shares; found",
        ),
        (
            "--kind whole-run --sources 1",
            "--sources is for --kind truth, first-order, path-integrated, shares; found",
        ),
        ("--kind whole-run,truth", "--kind truth is about rounds"),
        (
            "--kind whole-runn",
            "Did you mean 'whole-run'? Known: first-order, pairs, path-integrated, "
            "shares, truth, whole-run, whole-run-shares.",
        ),
        (
            "--kind truthh",
            "Did you mean 'truth'? Known: first-order, pairs, path-integrated, shares, truth, whole-run,",
        ),
        ("--kind whole-run-shares --at 0.5", "--at is for --kind whole-run, pairs; found whole-run-shares"),
        (
            "--kind whole-run --points 4",
            "--points is for --kind truth, first-order, path-integrated, shares, whole-run-shares; found",
        ),
        ("--at 0.5", "--at is for --kind whole-run, pairs; found first-order. Leave it out"),
        ("--on 2 --kind truth", "--on is for --kind whole-run, whole-run-shares, pairs; found truth"),
        ("--kind whole-run --during 4", "--during must be two rounds, e.g. 0:100 for rounds 0 to 99; found '4'."),
        ("--kind whole-run --during 4:9", "during must be within rounds 0:6, the first below the second; found 4:9."),
        ("--kind truth --during 0:4", "--during is for --kind whole-run, whole-run-shares; found truth"),
        ("--kind whole-run --on 3", 'on must be "all", "average" or a participant below 3; found 3'),
        ("--kind whole-run --on everyone", "a participant below 3; found 'everyone'"),
        ("--kind whole-run --eval-samples 9999", "eval-samples must be at most 355"),
    ],
)
def test_flags_that_do_not_go_together(run, flags, complaint, capsys):
    assert main(["influence", str(run), *flags.split()]) == 2
    assert complaint in capsys.readouterr().err
    assert not (run / "whole-run").exists()


def test_the_command_asks(run, capsys):
    assert main(["influence", str(run), "--kind", "whole-run,whole-run-shares", "--at", "0.5", "--on", "1"]) == 0
    assert "1's final model" in (said := capsys.readouterr().out)
    assert "the final models" not in said
    note = read_note(run / "whole-run")
    assert (note["on"], note["at"], note["kinds"]) == ("1", "0.5", "whole-run, whole-run-shares")


def test_it_is_not_asked_while_training(tmp_path, capsys):
    assert main(["run", "demo", "--out", str(tmp_path / "run"), "--kind", "whole-run"]) == 2
    assert "Ask for it after the run: cascadice influence RUN --kind whole-run" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_both_kinds_are_listed(capsys):
    assert main(["list", "kinds"]) == 0
    out = capsys.readouterr().out
    assert out.index("whole-run-shares") < out.index("truth")


def test_a_run_without_rounds_is_refused(run):
    manifest = files.read_json(run / "manifest.json")
    files.write_json(run / "manifest.json", manifest | {"rounds": 0})
    with pytest.raises(ValueError, match=r"has no rounds yet\. Continue it with: cascadice run --resume --out"):
        ask(run, BOTH, quiet=True)


def test_a_run_that_diverged_has_no_final_models(run):
    manifest = files.read_json(run / "manifest.json")
    files.write_json(run / "manifest.json", manifest | {"status": "diverged"})
    with pytest.raises(ValueError, match=r"diverged in round 6, so it has no final models\. Train it with a lower"):
        ask(run, BOTH, quiet=True)
    ask(run, Question(), quiet=True)  # what happened in its rounds can be asked
