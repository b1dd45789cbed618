"""Recorded rounds as a sequence, and where the commands over a run put what they find."""

import pytest
import torch
from influence.cases import small

from cascadice.engine import simulate
from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.folder import clear
from cascadice.runs.recording import RecordedRounds, Recording, results_folder


@pytest.fixture
def run(tmp_path):
    for name in ("rounds", "influence", "whole-run"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    return tmp_path / "run"


def test_a_folder_of_its_name_in_the_run_or_another(run, tmp_path):
    assert results_folder(run, "detect", None, ["detect.json"], False) == run / "detect"
    assert results_folder(run, "detect", tmp_path / "there", ["detect.json"], False) == tmp_path / "there"
    assert not (run / "detect").exists()


def test_what_is_there_stays_until_there_is_something_new(run):
    (run / "detect").mkdir()
    (run / "detect" / "detect.json").write_text("found before")
    with pytest.raises(ValueError, match=r"detect.json already exists. Replace it with --overwrite"):
        results_folder(run, "detect", None, ["detect.json"], False)
    results_folder(run, "detect", None, ["detect.json"], True)
    assert (run / "detect" / "detect.json").read_text() == "found before"


@pytest.mark.parametrize("place", [".", "rounds", "influence", "whole-run"])
def test_what_the_run_made_is_no_place_for_results(run, place):
    with pytest.raises(ValueError, match=r"results need their own folder. Choose another with --out"):
        results_folder(run, "detect", run / place, ["detect.json"], True)


def test_a_file_is_no_folder(run):
    with pytest.raises(ValueError, match="is a file; a result needs a folder"):
        results_folder(run, "detect", run / "config.json", ["detect.json"], False)


def test_what_was_found_about_a_run_goes_with_it(run):
    """A ledger of the run that was there before would be refused by the one that takes its place."""
    for name in ("ledger", "detect", "mine"):
        (run / name).mkdir()
    (run / "report.html").touch()
    clear(run)
    assert [path.name for path in run.iterdir()] == ["mine"]


def test_recorded_rounds_are_a_sequence_of_which_one_is_loaded_at_a_time(tmp_path, monkeypatch):
    network, loaded = small(), []
    rounds = list(simulate(network, 5))
    for round_ in rounds:
        store.save_round(tmp_path, round_)
    load = store.load_round
    monkeypatch.setattr(store, "layout", lambda model: None)
    monkeypatch.setattr(store, "load_round", lambda folder, t, **more: loaded.append(t) or load(folder, t, **more))
    recorded = RecordedRounds(tmp_path, range(5), network)
    assert (len(recorded), len(recorded[1:4]), loaded) == (5, 3, [])
    assert [round_.t for round_ in reversed(recorded[:3])] == loaded == [2, 1, 0]
    assert torch.equal(recorded[-1].after.theta, rounds[-1].after.theta)
    with pytest.raises(IndexError):
        recorded[5]
    with pytest.raises(ValueError, match="lacks round 2"):
        Recording(tmp_path, Config(), network, (0, 1, 3, 4)).consecutive_rounds()
    with pytest.raises(ValueError, match=r"rank-001 lacks round 2: it was away, or died .*--policy restart"):
        Recording(tmp_path, Config(), network, (0, 1, 3, 4), away=((), (2,))).consecutive_rounds()
