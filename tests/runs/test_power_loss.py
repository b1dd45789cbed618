"""Runs whose power fails: at every moment, and whatever was not flushed by then is lost or kept."""

import os
from dataclasses import replace
from functools import cache
from itertools import count

import pytest
from runs.power_loss import crashes, read, recording, unflushed, write

from cascadice import files
from cascadice.files import checksums, locks
from cascadice.runs import train
from cascadice.runs.recipes import demo
from cascadice.runs.train import run

TINY = replace(demo(), nodes=2, model_options=("hidden=[2]",))
SMALL = replace(TINY, rounds=4, epochs=None, eval_every=2, record="all", checkpoint_every=2)
OTHER = replace(SMALL, lr=0.1, rounds=3)
RESULTS = {"influence": None, "influence/part-00000000.parquet": b"old", "detect": None, "detect/detect.json": b"old"}
NOTES = {"notes.txt": b"mine"}
LEFT = {locks.LOCK: b"", ".tmp-7-0a1b-config.json": b"ha", "rounds/.tmpAb12Cd": b"lf"}  # by whoever dies
SAMPLE = 6


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Without figures, without waiting for the disk, and with each network built once."""
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(train, "build", cache(train.build))


def finished(folder):
    """What a run leaves, but for the times in its manifest and the history in its list of checksums, which fits."""
    listed = checksums.list_for(folder / checksums.LIST)
    assert [name for name in listed.files if checksums.problem(listed, folder / name)] == []
    return {path: content for path, content in read(folder).items() if path not in ("manifest.json", checksums.LIST)}


def begun(folder):
    """A run of other settings that was stopped after its first checkpoint."""
    run(replace(SMALL, rounds=2), folder, quiet=True)
    (folder / "rounds" / "000002.safetensors").write_bytes(b"later than the checkpoint")


def replaced(folder):
    """A finished run of other settings, results about it, and a file that is not ours."""
    run(OTHER, folder, quiet=True)
    for path, content in {**RESULTS, **NOTES}.items():
        (folder / path).mkdir() if content is None else (folder / path).write_bytes(content)


SCENARIOS = {
    "a new run": (lambda folder: folder.mkdir(), {}, {}),
    "a resumed run": (begun, {"resume": True}, {}),
    "an overwritten run": (replaced, {"overwrite": True}, NOTES),
}


def crash(tmp_path, scenario):
    """The states that crashes may leave, and what an undisturbed run leaves."""
    prepare, how, kept = SCENARIOS[scenario]
    prepare(tmp_path / "run")
    before = read(tmp_path / "run")
    with recording(tmp_path / "run") as changes:
        run(SMALL, tmp_path / "run", quiet=True, **how)
    whole = {**whole_of(tmp_path, SMALL), **kept}
    assert finished(tmp_path / "run") == whole
    # a run that says it is done has nothing to lose but the line that confirms the last checksum
    assert unflushed(changes) == [checksums.LIST]
    return list(crashes(before, changes)), whole


def recovered(folder, state, config, **how):
    """What a folder in this state holds after a run that went well."""
    write(folder, {**state, **({"rounds": None, **LEFT} if state else {})})
    run(config, folder, quiet=True, **how)
    assert files.read_json(folder / "manifest.json")["status"] == "finished"
    return finished(folder)


def check(tmp_path, states, whole):
    """Every state can be resumed and overwritten, and gives the same bits."""
    places = (tmp_path / f"crashed-{number}" for number in count())
    for what, state in states:
        resumed = OTHER if is_others(state) else SMALL
        found = recovered(next(places), state, resumed, resume=True)
        expected = {
            **whole_of(tmp_path, resumed),
            **{path: found[path] for path in (*RESULTS, *NOTES) if path in state},
        }
        assert found == expected, what
        assert recovered(next(places), state, SMALL, overwrite=bool(state)) == whole, what


def is_others(state):
    """While a run is being replaced, its settings are the last to go."""
    return b'"lr": 0.1' in state.get("config.json", b"")


def whole_of(tmp_path, config):
    place = tmp_path / f"whole-{config.lr}"
    if not place.exists():
        run(config, place, quiet=True)
    return finished(place)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_power_may_fail_now_and_then(tmp_path, scenario):
    states, whole = crash(tmp_path, scenario)
    check(tmp_path, states[:: max(1, len(states) // SAMPLE)], whole)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_power_may_fail_at_any_moment(tmp_path, scenario):
    check(tmp_path, *crash(tmp_path, scenario))
