"""A run that version 0.1.0 recorded can be read, resumed and asked; settings may be added without a new fingerprint."""

import json
import shutil
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from cascadice.cli import main
from cascadice.files import read_json
from cascadice.influence.tables import parts, read_note, read_table
from cascadice.runs import ask, config, folder, store
from cascadice.runs.config import Config, from_json, to_json
from cascadice.runs.folder import INCIDENTAL, SETTINGS_OF_0_1_0, fingerprint
from cascadice.runs.question import Question
from cascadice.runs.recording import open_recording
from cascadice.runs.train import run

RECORDED = Path(__file__).parent.parent / "predecessor" / "run-0.1.0"
OLD_FINGERPRINT = "816d0c25e31dad83"
ASKED = Question(("truth", "first-order"), hops=2)


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the run, with all that was found about it."""
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)  # takes longer than training
    shutil.copytree(RECORDED, tmp_path / "run")
    return tmp_path / "run"


def test_its_rounds_follow_one_another(old):
    recording = open_recording(old)
    assert recording.fingerprint == OLD_FINGERPRINT
    rounds = list(recording.load_rounds())
    assert [round.t for round in rounds] == list(range(6))
    for one, following in pairwise(rounds):
        assert torch.equal(one.after.theta, following.before.theta)
    assert torch.equal(rounds[-1].after.theta, store.load_checkpoint(old, run=OLD_FINGERPRINT).participants.theta)
    assert [m.t for m in store.read_metrics(old)] == list(range(6))


def test_it_is_resumed_to_the_numbers_of_a_new_run(old, tmp_path):
    again = ["run", str(old), "--rounds", "8", "--out", str(tmp_path / "again"), "--quiet"]
    assert main(["run", "--resume", "--out", str(old), "--rounds", "8", "--quiet"]) == 0
    assert main(again) == 0
    resumed, new = store.load_checkpoint(old), store.load_checkpoint(tmp_path / "again")
    assert resumed.t == new.t == 8
    # close, not equal: other processors round differently than the one that recorded it
    torch.testing.assert_close(resumed.participants.theta, new.participants.theta)


def test_it_keeps_its_fingerprint_when_it_is_resumed(old):
    for rounds in ("8", "9"):
        assert main(["run", "--resume", "--out", str(old), "--rounds", rounds, "--quiet"]) == 0
    assert read_json(old / "manifest.json")["fingerprint"] == open_recording(old).fingerprint == OLD_FINGERPRINT
    assert store.load_checkpoint(old, run=OLD_FINGERPRINT).t == 9


def test_its_influence_is_added_to(old):
    before = read_table(old / "influence")
    summary = ask.ask(old, ASKED, quiet=True)
    assert summary.rounds == (0, 1, 2, 3, 4)
    after = read_table(old / "influence")
    assert len(before) < len(after)
    for t in sorted(set(before.round.tolist())):
        kept, now = before.select(round=t), after.select(round=t)
        assert all((kept.columns[name] == now.columns[name]).all() for name in kept.columns)
    assert list(parts(old / "influence")) == [0, 1, 2, 3, 4]


def test_its_influence_is_what_this_version_computes(old, tmp_path):
    ask.ask(old, ASKED, tmp_path / "now", quiet=True)
    then = read_table(old / "influence")
    now = read_table(tmp_path / "now").select(round=sorted(set(then.round.tolist())))
    expected, computed = (entries(table) for table in (then, now))
    assert len(expected) == len(then)
    for entry in expected.keys() | computed.keys():  # what rounds to 0 on one processor has no row there
        assert computed.get(entry, 0.0) == pytest.approx(expected.get(entry, 0.0), rel=1e-4, abs=1e-6), entry


def entries(table):
    """Values by the cells that they stand in."""
    names = ("round", "source", "hop", "receiver", "kind")
    return dict(
        zip(zip(*(table.columns[name].tolist() for name in names), strict=True), table.value.tolist(), strict=True)
    )


def test_other_questions_are_told_apart_from_those_it_was_asked(old):
    for other, name in ((Question(("truth", "first-order"), hops=2, points=3), "points is '2' there, '3' here"),):
        with pytest.raises(ValueError, match=f"holds influence with other settings: {name}"):
            ask.ask(old, other, quiet=True)


COMMANDS = {
    "influence": ["--kind", "truth,first-order", "--hops", "2"],
    "detect": ["--overwrite"],
    "choose": ["--overwrite"],
    "reward": ["--budget", "100", "--overwrite"],
    "forget": ["--participant", "1", "--overwrite"],
    "validate": ["--subsets", "4", "--kinds", "whole-run,first-order"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_over_a_run_works_on_it(old, command):
    assert main([command, str(old), "--quiet", *COMMANDS[command]]) == 0


def test_new_runs_say_their_format_and_fingerprint(old, tmp_path):
    settings = folder.read_config(old)
    run(settings, tmp_path / "new", quiet=True, question=ASKED)
    manifest, note = read_json(tmp_path / "new" / "manifest.json"), read_note(tmp_path / "new" / "influence")
    assert manifest["format"] == "cascadice-run-2"
    assert manifest["fingerprint"] == note["run"] == fingerprint(settings) != OLD_FINGERPRINT
    assert note == {"format": "cascadice-influence-2", "run": note["run"], "kinds": "truth, first-order", "hops": "2"}


@pytest.mark.parametrize("name", ["manifest.json", "influence/influence.json"])
def test_a_later_format_is_refused_by_name(old, name):
    content = read_json(old / name)
    (old / name).write_text(json.dumps({"format": "cascadice-99", **content}))
    with pytest.raises(ValueError, match=r"must be of format cascadice-\w+-2; found cascadice-99. Read it with the"):
        ask.ask(old, ASKED, quiet=True)


def test_missing_settings_have_their_defaults_and_unknown_ones_are_of_a_newer_version(old):
    settings = read_json(old / "config.json")
    assert "participants" not in settings
    assert folder.read_config(old).participants == ()
    (old / "config.json").write_text(json.dumps({**settings, "encryption": "8-bit"}))
    with pytest.raises(ValueError, match=r"unknown setting 'encryption'.* A version newer than 0\.\d+\.\d+ may have"):
        folder.read_config(old)


@dataclass(frozen=True)
class Wider(Config):
    """The settings of a version to come."""

    compression: str = "none"


def test_a_new_setting_at_its_default_changes_no_fingerprint():
    given = {"lr": 0.3, "behaviours": ("free-rider:1",)}
    assert fingerprint(Wider(**given)) == fingerprint(Config(**given))
    assert fingerprint(Wider(**given), SETTINGS_OF_0_1_0) == fingerprint(Config(**given), SETTINGS_OF_0_1_0)
    assert fingerprint(Wider(compression="8-bit")) != fingerprint(Wider())


def test_a_version_with_more_settings_resumes_a_run(old, monkeypatch):
    monkeypatch.setattr(config, "Config", Wider)
    config.field_types.cache_clear()
    try:
        wider = from_json(read_json(old / "config.json"))
        assert isinstance(wider, Wider)
        assert folder.run_fingerprint(old, wider) == OLD_FINGERPRINT
        folder.check_folder(old, wider, resume=True, overwrite=False)
    finally:
        monkeypatch.undo()
        config.field_types.cache_clear()


def test_the_old_fingerprint_is_over_every_setting_there_was():
    old = read_json(RECORDED / "config.json")
    assert {*SETTINGS_OF_0_1_0, *INCIDENTAL, "rule"} == set(old)
    assert fingerprint(from_json(old), SETTINGS_OF_0_1_0) == OLD_FINGERPRINT
    assert set(to_json(Config())) - set(old) == {f.name for f in fields(Config)} - set(old)
