import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from cascadice import files
from cascadice.engine import DivergedError, evaluate, simulate
from cascadice.runs import store, train
from cascadice.runs.config import build, override
from cascadice.runs.folder import read_config
from cascadice.runs.recipes import demo
from cascadice.runs.train import run

SMALL = replace(
    demo(),
    nodes=3,
    model_options=("hidden=[4]",),
    epochs=None,
    rounds=6,
    eval_every=2,
    record="all",
    checkpoint_every=2,
)
VARIANTS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adam": {"optimizer": "adam", "lr": 0.01, "compression": "8-bit"},
    "time-varying": {"topology": "matching", "link_loss": 0.3},
    "loop, misbehaving": {"strategy": "loop", "behaviours": ("noise-sender:1:0.1@3-",), "corruptions": ("noise:0",)},
}


@pytest.fixture(autouse=True)
def _no_figures(request, monkeypatch):
    """Drawing takes longer than training."""
    if "figure" not in request.node.name:
        monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)


def final(folder):
    return (folder / store.CHECKPOINT).read_bytes()


def stop_at(monkeypatch, t, error):
    """Training is hit by `error` while round t is being recorded."""
    record = store.save_round

    def hit(folder, done, **more):
        if done.t == t:
            raise error
        record(folder, done, **more)

    monkeypatch.setattr(store, "save_round", hit)


def test_a_run_is_what_the_engine_does(tmp_path):
    summary = run(SMALL, tmp_path / "a", quiet=True)
    network = build(SMALL)
    rounds = list(simulate(network, 6))
    assert torch.equal(store.load_checkpoint(tmp_path / "a").participants.theta, rounds[-1].after.theta)
    assert store.saved_rounds(tmp_path / "a") == list(range(6))
    measures = store.read_metrics(tmp_path / "a")
    for done, found in zip(rounds, measures, strict=True):
        torch.testing.assert_close(found.train_loss, done.loss.double(), rtol=0, atol=0)
        spread = done.after.theta - done.after.theta.mean(0)
        torch.testing.assert_close(found.consensus, spread.norm(dim=1).square().mean().sqrt().double())
        assert (found.test is not None) == (done.t in (1, 3, 5))
    expected = evaluate(network, rounds[-1].after)
    torch.testing.assert_close(measures[-1].test.accuracy, expected.accuracy.double(), rtol=0, atol=0)
    torch.testing.assert_close(summary.last.test.loss.double(), measures[-1].test.loss)


def test_the_folder_says_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: time.sleep(0.05))
    summary = run(SMALL, tmp_path / "a", quiet=True)
    assert read_config(tmp_path / "a") == SMALL
    manifest = files.read_json(tmp_path / "a" / "manifest.json")
    assert manifest["status"] == "finished"
    assert manifest["rounds"] == 6
    assert manifest["started"] <= manifest["finished"]
    assert manifest["seconds"] == round(summary.seconds, 3)  # what the page shows is what the console says
    assert manifest["strategy"] == summary.strategy == "vmap"
    assert manifest["versions"]["torch"] == torch.__version__
    assert not list((tmp_path / "a").rglob(".tmp-*"))


def test_the_folder_holds_a_figure(tmp_path):
    run(SMALL, tmp_path / "a", quiet=True)
    for figure in ("training.png", "partition.png"):
        assert (tmp_path / "a" / figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, monkeypatch, variant):
    config = replace(SMALL, **VARIANTS[variant])
    run(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut", quiet=True)
    manifest = files.read_json(tmp_path / "cut" / "manifest.json")
    assert (manifest["status"], manifest["rounds"]) == ("interrupted", 3)
    assert store.load_checkpoint(tmp_path / "cut").t == 3
    run(config, tmp_path / "cut", resume=True, quiet=True)
    assert final(tmp_path / "cut") == final(tmp_path / "whole")
    assert (tmp_path / "cut" / store.METRICS).read_bytes() == (tmp_path / "whole" / store.METRICS).read_bytes()
    for t in range(6):
        name = f"rounds/{t:06d}.safetensors"
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_lies_beyond_the_checkpoint_is_made_again(tmp_path, monkeypatch):
    run(SMALL, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            run(SMALL, tmp_path / "cut", quiet=True)
    assert store.load_checkpoint(tmp_path / "cut").t == 2
    assert [m.t for m in store.read_metrics(tmp_path / "cut")] == [0, 1, 2]
    assert files.read_json(tmp_path / "cut" / "manifest.json")["status"] == "failed"
    run(SMALL, tmp_path / "cut", resume=True, quiet=True)
    assert final(tmp_path / "cut") == final(tmp_path / "whole")
    assert [m.t for m in store.read_metrics(tmp_path / "cut")] == list(range(6))


def test_a_run_may_grow(tmp_path):
    run(SMALL, tmp_path / "whole", quiet=True)
    run(override(SMALL, {"rounds": 4}), tmp_path / "grown", quiet=True)
    run(SMALL, tmp_path / "grown", resume=True, quiet=True)
    assert final(tmp_path / "grown") == final(tmp_path / "whole")
    again = run(SMALL, tmp_path / "grown", resume=True, quiet=True)
    assert again.last.t == 5
    with pytest.raises(ValueError, match=r"already has 6 rounds; 4 were requested"):
        run(override(SMALL, {"rounds": 4}), tmp_path / "grown", resume=True, quiet=True)


def test_resuming_where_nothing_is_begins(tmp_path):
    assert run(SMALL, tmp_path / "a", resume=True, quiet=True).last.t == 5


def test_other_settings_are_refused_and_named(tmp_path):
    run(SMALL, tmp_path / "a", quiet=True)
    before = final(tmp_path / "a")
    with pytest.raises(ValueError, match=r"lr is 0.2 in .*, 0.7 here"):
        run(replace(SMALL, lr=0.7), tmp_path / "a", resume=True, quiet=True)
    assert final(tmp_path / "a") == before


def test_a_damaged_checkpoint_is_refused(tmp_path):
    run(SMALL, tmp_path / "a", quiet=True)
    (tmp_path / "a" / store.CHECKPOINT).write_bytes(final(tmp_path / "a")[:-5])
    with pytest.raises(ValueError, match=r"checkpoint.safetensors is damaged"):
        run(SMALL, tmp_path / "a", resume=True, quiet=True)


def test_a_folder_in_use_is_left_alone(tmp_path):
    run(SMALL, tmp_path / "a", quiet=True)
    before = final(tmp_path / "a")
    with pytest.raises(ValueError, match=r"already holds a run. Continue it with --resume"):
        run(replace(SMALL, lr=0.3), tmp_path / "a", quiet=True)
    with pytest.raises(ValueError, match=r"either resumed or overwritten"):
        run(SMALL, tmp_path / "a", quiet=True, resume=True, overwrite=True)
    with pytest.raises(ValueError, match=r"unknown model"):
        run(replace(SMALL, model="mpl"), tmp_path / "a", quiet=True, overwrite=True)
    assert final(tmp_path / "a") == before


def test_overwriting_removes_a_run_and_nothing_else(tmp_path):
    run(SMALL, tmp_path / "a", quiet=True)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    run(override(SMALL, {"rounds": 2, "record": "none"}), tmp_path / "a", quiet=True, overwrite=True)
    assert store.saved_rounds(tmp_path / "a") == []
    assert len(store.read_metrics(tmp_path / "a")) == 2
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}])
def test_files_of_others_are_never_touched(tmp_path, how):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"holds files that do not belong to a run"):
        run(SMALL, tmp_path, quiet=True, **how)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_places_that_cannot_hold_a_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"is a file; a run needs a folder"):
        run(SMALL, tmp_path / "file", quiet=True)
    with pytest.raises(PermissionError, match=r"file is not a writable folder"):
        run(SMALL, tmp_path / "file" / "out", quiet=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"is not a writable folder"):
        run(SMALL, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_mistake_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"unknown optimizer"):
        run(replace(SMALL, optimizer="sdg"), tmp_path / "out", quiet=True)
    with pytest.raises(ValueError, match=r"record must be none, all"):
        run(replace(SMALL, record="some"), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_divergence_keeps_what_was_before(tmp_path):
    config = replace(SMALL, lr_schedule="step:3:1", lr=1e25, checkpoint_every=None)
    with pytest.raises(DivergedError, match=r"participant \d+ became NaN or infinite in round 1"):
        run(config, tmp_path / "a", quiet=True)
    manifest = files.read_json(tmp_path / "a" / "manifest.json")
    assert (manifest["status"], manifest["rounds"]) == ("diverged", 1)
    assert [m.t for m in store.read_metrics(tmp_path / "a")] == [0] == store.saved_rounds(tmp_path / "a")
    assert not (tmp_path / "a" / store.CHECKPOINT).exists()


def test_parameters_that_are_not_finite_are_no_checkpoint(tmp_path):
    """The first batch loss is finite, and nothing is evaluated before the checkpoint."""
    config = replace(SMALL, lr=3e38, weight_decay=1e3, checkpoint_every=1, eval_every=6)
    with pytest.raises(DivergedError, match=r"participant \d has parameters that became NaN or infinite in round 0"):
        run(config, tmp_path / "a", quiet=True)
    assert files.read_json(tmp_path / "a" / "manifest.json")["status"] == "diverged"
    assert not (tmp_path / "a" / store.CHECKPOINT).exists()


def test_parameters_that_are_not_finite_are_not_saved_on_ctrl_c(tmp_path, monkeypatch):
    def stop(journal, round, last):
        enter(journal, round, last)
        raise KeyboardInterrupt

    enter = train.enter
    monkeypatch.setattr(train, "enter", stop)
    with pytest.raises(KeyboardInterrupt):
        run(replace(SMALL, lr=3e38, weight_decay=1e3, checkpoint_every=None, eval_every=6), tmp_path / "a", quiet=True)
    assert not (tmp_path / "a" / store.CHECKPOINT).exists()


@pytest.mark.parametrize("settings", [
    {"dtype": "float64", "lr": 1e39, "weight_decay": 1e18, "optimizer": "momentum"},  # distances
    {"dtype": "float64", "lr": 1e150, "weight_decay": 1e18, "optimizer": "adam"},  # Adam's squares
    {"lr": 1e25, "rounds": 1},  # the test loss
])  # fmt: skip
def test_what_is_computed_from_huge_parameters_shows_divergence(tmp_path, settings):
    """Parameters and batch losses are finite in every round; something else is not."""
    with pytest.raises(
        DivergedError, match=r"participant \d has parameters of up to .*e\+\d+, and what is computed from"
    ):
        run(replace(SMALL, **{"rounds": 3} | settings), tmp_path / "a", quiet=True)
    assert files.read_json(tmp_path / "a" / "manifest.json")["status"] == "diverged"


@pytest.mark.parametrize("strength", ["1e38", "3e38"])
@pytest.mark.parametrize("node", [1, 2])
def test_who_sent_noise_is_named_where_what_others_have_is_evaluated(tmp_path, node, strength):
    with pytest.raises(DivergedError, match=rf"participant {node} sent parameters of up to .* median was 0\.\d+\)"):
        run(replace(SMALL, behaviours=(f"noise-sender:{node}:{strength}",), eval_every=1), tmp_path / "a", quiet=True)


def test_only_the_last_rounds_are_kept(tmp_path):
    run(replace(SMALL, record="last:2"), tmp_path / "a", quiet=True)
    assert store.saved_rounds(tmp_path / "a") == [4, 5]
    rounds = tmp_path / "a" / "rounds"
    (rounds / "000001.safetensors").write_bytes(b"brought back by a loss of power")
    run(replace(SMALL, record="last:2", rounds=7), tmp_path / "a", quiet=True, resume=True)
    assert store.saved_rounds(tmp_path / "a") == [5, 6]
    run(replace(SMALL, record="1-3"), tmp_path / "b", quiet=True)
    assert store.saved_rounds(tmp_path / "b") == [1, 2, 3]


def test_without_a_number_checkpoints_go_by_the_clock(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(store, "save_checkpoint", lambda folder, t, participants, **more: saved.append(t))
    config = replace(SMALL, checkpoint_every=None)
    run(config, tmp_path / "a", quiet=True)
    assert saved == [6]
    monkeypatch.setattr("cascadice.runs.journal.CHECKPOINT_SECONDS", 0.0)
    run(config, tmp_path / "b", quiet=True)
    assert saved[1:] == [1, 2, 3, 4, 5, 6]


def test_what_is_said_goes_to_the_screen_or_nowhere(tmp_path, capsys):
    run(SMALL, tmp_path / "a", quiet=True)
    assert capsys.readouterr() == ("", "")
    run(SMALL, tmp_path / "b")
    said = capsys.readouterr().out
    for words in (
        "3 participants train on digits",
        "spectral gap",
        "who holds what",
        "trained round 5, 6/6",
        "mean 0.",
    ):
        assert words in said
    assert "consensus distance" in said
    assert "training.png, metrics.parquet, config.json" in said


def test_a_killed_process_can_be_gone_on_with(tmp_path):
    """SIGKILL a real run at some moment, resume it, and compare with a run that was left in peace."""
    settings = ["--nodes", "3", "--rounds", "1000000", "--checkpoint-every", "3", "--optimizer", "adam", "--lr", "0.01"]
    command = [sys.executable, "-m", "cascadice", "run", "demo", *settings, "--record", "last:3", "--quiet", "--out"]
    victim = subprocess.Popen([*command, str(tmp_path / "cut")])
    deadline = time.monotonic() + 60
    while not (tmp_path / "cut" / store.CHECKPOINT).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(time.time() % 0.2)  # any moment will do: that is the point
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert files.read_json(tmp_path / "cut" / "manifest.json")["status"] == "running"
    done = store.load_checkpoint(tmp_path / "cut").t
    config = override(read_config(tmp_path / "cut"), {"rounds": done + 4})
    run(config, tmp_path / "cut", resume=True, quiet=True)
    run(replace(config, checkpoint_every=None), tmp_path / "whole", quiet=True)
    assert final(tmp_path / "cut") == final(tmp_path / "whole")
    assert (tmp_path / "cut" / store.METRICS).read_bytes() == (tmp_path / "whole" / store.METRICS).read_bytes()
    assert store.saved_rounds(tmp_path / "cut") == [done + 1, done + 2, done + 3]
    assert not list((tmp_path / "cut").rglob(".tmp-*"))


def test_a_run_that_never_had_a_list_goes_on_without_its_metrics(tmp_path):
    config = replace(demo(), rounds=4, epochs=None)
    run(config, tmp_path / "run", quiet=True)
    (tmp_path / "run" / "metrics.parquet").unlink()
    with pytest.raises(ValueError, match=r"metrics.parquet is missing. Restore it from a copy"):
        run(replace(config, rounds=6), tmp_path / "run", resume=True, quiet=True)
    (tmp_path / "run" / "checksums.jsonl").unlink()
    with pytest.raises(ValueError, match=r"checksums.jsonl is missing, so nothing shows .* train the run again with"):
        run(replace(config, rounds=6), tmp_path / "run", resume=True, quiet=True)
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    (tmp_path / "run" / "manifest.json").write_text(manifest.replace('"format": "cascadice-run-2",', ""))
    with pytest.raises(ValueError, match="is finished and its metrics are lost"):
        run(config, tmp_path / "run", resume=True, quiet=True)
    run(replace(config, rounds=6), tmp_path / "run", resume=True, quiet=True)
    assert [m.t for m in store.read_metrics(tmp_path / "run")] == [4, 5]
