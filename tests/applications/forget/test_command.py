"""`cascadice forget`: corrected models that load as a checkpoint does, and a record that says what was done."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cascadice.applications.forget.findings import ESTIMATED, EXACT
from cascadice.applications.forget.idea import Removal, forget, repair
from cascadice.cli import main
from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.recording import open_recording
from cascadice.runs.train import run

PREDECESSOR = Path(__file__).parents[2] / "predecessor" / "run-0.1.0"
TINY = Config(nodes=4, model_options=("hidden=[4]",), epochs=None, rounds=6, lr=0.2, record="all", batch_size=8)
KEYS = {"command", "version", "run", "title", "findings", "table", "figure"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A tiny run with a free-rider, participant 2."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)  # takes longer than training
        run(replace(TINY, behaviours=("free-rider:2",)), folder, quiet=True)
    return folder


@pytest.fixture
def cascadice(capsys, monkeypatch, tmp_path, recorded, one_thread):
    """Call `cascadice forget` on the run: exit code, what it said, what went wrong, the record if there is one."""
    out = tmp_path / "out"
    monkeypatch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: path.write_bytes(b"picture"))

    def call(*arguments, folder=recorded):
        code = main(["forget", str(folder), "--out", str(out), "--overwrite", *arguments])
        said = capsys.readouterr()
        path = out / "forget.json"
        return code, said.out, said.err, json.loads(path.read_text()) if code == 0 else None

    call.out = out
    return call


def test_models_are_those_of_the_level_and_go_on(recorded, cascadice):
    code, out, _, record = cascadice("--participant", "1", "--level", "first-order", "--repair", "2", "--check")
    recording = open_recording(recorded, quiet=True)
    network, removal = recording.network, Removal(nodes=(1,))
    wanted = repair(network, forget(network, recording.load_rounds(), removal, "first-order"), removal, 2)
    layout = store.layout(network.learner.training)
    kept = store.load_checkpoint(cascadice.out / "models", run=recording.fingerprint, layout=layout)
    assert (code, kept.t) == (0, 8)
    torch.testing.assert_close(kept.participants, wanted.participants)
    assert set(record) > KEYS
    assert (record["command"], record["run"]) == ("forget", recording.fingerprint)
    assert record["forgotten"]["updates"] == 6
    assert 0 < record["distance"] < 1
    assert [row[0] for row in record["table"]["rows"]] == ["as trained", "forgotten", "never used"]
    assert all(finding in out for finding in record["findings"])
    assert str(cascadice.out) in out
    assert (cascadice.out / record["figure"]).exists()
    assert (cascadice.out / record["models"]).exists()


def test_replay_is_usual_and_exact(recorded, cascadice):
    _, _, _, record = cascadice("--participant", "0", "--round", "3")
    recording = open_recording(recorded, quiet=True)
    wanted = forget(recording.network, recording.load_rounds(range(3, 6)), Removal((0,), rounds=range(3, 4)), "replay")
    saved = store.load_checkpoint(cascadice.out / "models").participants
    torch.testing.assert_close(saved.theta, wanted.participants.theta)
    assert record["how"]["level"] == "replay"
    assert record["distance"] == 0
    assert record["forgotten"]["rounds"] == [3, 3]
    exact = "Exact: these are the models of the same run without the updates of participant 0 in round 3."
    stays = "Not forgotten: what was learned from it in rounds 0 to 2 and rounds 4 to 5 (requested: round 3 only)."
    assert {exact, stays, EXACT} <= set(record["findings"])
    assert "participant 0, 1 update in round 3" in record["findings"][0]


def test_the_predecessors_numbers_are_found_again(cascadice):
    """Of a run that version 0.1.0 recorded, and made to forget its participant 3."""
    _, _, _, record = cascadice("--participant", "3", folder=PREDECESSOR)
    before = json.loads((PREDECESSOR / "forget" / "forget.json").read_text())
    assert set(before) < set(record)
    assert (record["forgotten"], record["how"], record["next_round"]) == (before["forgotten"], before["how"], 6)
    assert record["change"] == pytest.approx(before["change"], rel=1e-5)
    for models, trace in before["traces"].items():
        for name, values in trace.items():
            assert record["traces"][models][name] == pytest.approx(values, rel=1e-5), (models, name)


def test_samples_that_were_used_and_one_that_was_not(recorded, cascadice):
    recording = open_recording(recorded, quiet=True)
    parts = recording.network.partition
    used, idle = int(next(recording.load_rounds()).draw.batch[0, 0, 0]), int(parts[2][0])
    _, _, _, record = cascadice("--samples", f"{used},{idle}", "--level", "gossip")
    assert record["forgotten"]["uses"][0] >= 1
    assert record["forgotten"]["uses"][1] == 0
    assert f"Never used in these rounds, so there was nothing to forget: samples {idle}." in record["findings"]
    assert any("not checked: --check replays" in finding for finding in record["findings"])
    assert record["proved"] == record["findings"][-1] == ESTIMATED


def test_an_exact_record_says_what_was_left_out(recorded, cascadice):
    batch = next(open_recording(recorded, quiet=True).load_rounds()).draw.batch[1, 0].tolist()
    _, _, _, all_rounds = cascadice("--participant", "1")
    assert any(
        said.endswith("run without the updates of participant 1 in rounds 0 to 5.") for said in all_rounds["findings"]
    )
    assert not any("Not forgotten" in said for said in all_rounds["findings"])
    _, _, _, some = cascadice("--samples", f"{batch[0]},{batch[1]}", "--participant", "1", "--rounds", "0-3")
    samples = f"samples {batch[0]}, {batch[1]} of participant 1"
    assert f"Exact: these are the models of the same run without {samples} in rounds 0 to 3." in some["findings"]
    stays = "Not forgotten: what was learned from it in rounds 4 to 5 (requested: rounds 0 to 3 only)."
    assert stays in some["findings"]


def test_an_auc_of_few_samples_says_so(recorded, cascadice):
    batch = next(open_recording(recorded, quiet=True).load_rounds()).draw.batch[:, 0].flatten().tolist()
    for samples, few in (
        (batch[:1], "; measured on only 1 sample"),
        (batch[:9], "; measured on only 9 samples"),
        (batch[:10], ""),
    ):
        _, _, _, record = cascadice("--samples", ",".join(map(str, samples)), "--level", "gossip")
        (sentence,) = (s for s in record["findings"] if "AUC" in s)
        assert sentence.endswith(f"; 0.5 is chance{few}.")


def test_a_free_rider_leaves_no_trace(cascadice):
    _, out, _, record = cascadice("--participant", "2", "--check", "--level", "gossip")
    assert "Nothing changed: what was to be forgotten had no effect" in out
    assert record["distance"] is None


def test_a_recording_of_the_end_says_what_stays(recorded, cascadice, tmp_path):
    later, torn = (shutil.copytree(recorded, tmp_path / name) for name in ("later", "torn"))
    store.delete_rounds(later, [0, 1, 2, 3])
    _, out, _, _ = cascadice("--participant", "1", folder=later)
    assert "Rounds before 4 were not recorded; what was learned in them stays." in out
    store.delete_rounds(torn, [0, 1, 3])
    code, _, error, _ = cascadice("--participant", "1", folder=torn)
    assert code == 2
    assert "lacks round 3. Use --record all" in error


def test_a_recording_that_stops_before_the_run_is_refused(recorded, cascadice, tmp_path):
    early = shutil.copytree(recorded, tmp_path / "early")
    store.delete_rounds(early, [4, 5])
    code, out, error, _ = cascadice("--participant", "1", folder=early)
    assert (code, out) == (2, "")
    said = f"the last round must be recorded to correct the final models; {early} has 6 rounds, of which 0 to 3 are "
    assert f"{said}recorded. Train with --record all." in error


def test_the_picture_is_drawn(recorded, tmp_path, one_thread):
    assert main(["forget", str(recorded), "--participant", "0", "--quiet", "--out", str(tmp_path / "drawn")]) == 0
    assert (tmp_path / "drawn" / "forget.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to forget: --participant K, --samples I,J"),
        (["--participant", "4"], "participants are numbered 0 to 3; found 4"),
        (["--participant", "x"], "--participant must be whole numbers from 0 on, separated by commas; found 'x'"),
        (["--samples", "1442"], "training samples are numbered 0 to 1441; found 1442"),
        (["--round", "3"], "combine it with --participant K"),
        (["--round", "3", "--participant", "1", "--rounds", "1-2"], "and nothing else"),
        (["--participant", "1", "--rounds", "2-9"], "rounds 2 to 9 must be among those recorded"),
        (["--participant", "1", "--round", "6"], "round 6 must be among those recorded"),
        (["--participant", "1", "--round", "-1"], "round -1 must be among those recorded"),
        (["--participant", "1", "--round", "-1"], ", 0 to 5. Ask for those, or train with --record all."),
        (["--participant", "1", "--rounds", "3"], "--rounds must be FROM-TO, both included, e.g. 0-99; found '3'"),
        (["--participant", "1", "--level", "frist-order"], "unknown level 'frist-order'. Did you mean 'first-order'?"),
        (["--participant", "1", "--points", "0"], "--points must be at least 1; found 0"),
        (["--participant", "1", "--repair", "-1"], "--repair must be at least 0; found -1"),
        (
            ["--samples", "0", "--rounds", "0-0", "--participant", "2"],
            "participants 2 did not use any of these samples in rounds 0 to 0",
        ),
    ],
)
def test_mistakes(cascadice, arguments, said):
    code, out, error, _ = cascadice(*arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1


def test_nothing_recorded(cascadice, recorded, tmp_path):
    (tmp_path / "config.json").write_bytes((recorded / "config.json").read_bytes())
    code, _, error, _ = cascadice("--participant", "1", folder=tmp_path)
    assert code == 2
    assert "has no recorded rounds. Train it with `cascadice run … --record all`" in error
