import os
import signal

import pytest

from cascadice import files
from cascadice.cli import main
from cascadice.commands import stopping
from cascadice.commands.stopping import stoppable
from cascadice.runs import store

SMALL = ["run", "demo", "--nodes", "3", "--rounds", "6", "--record", "all", "--quiet", "--out"]


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_a_checkpoint_and_says_so(tmp_path, monkeypatch, capsys, sent, code):
    record = store.save_round

    def hit(folder, done, **more):
        record(folder, done, **more)
        if done.t == 3:
            os.kill(os.getpid(), sent)

    monkeypatch.setattr(store, "save_round", hit)
    assert main([*SMALL, str(tmp_path / "cut")]) == code
    said = f"cascadice: stopped by {sent.name}. Continue with: cascadice run --resume --out {tmp_path / 'cut'}\n"
    assert capsys.readouterr().err == said
    assert files.read_json(tmp_path / "cut" / "manifest.json")["status"] == "interrupted"
    assert store.load_checkpoint(tmp_path / "cut").t == 3
    monkeypatch.undo()
    assert main(["run", "--resume", "--quiet", "--out", str(tmp_path / "cut")]) == 0
    assert main([*SMALL, str(tmp_path / "whole")]) == 0
    finals = [(tmp_path / name / store.CHECKPOINT).read_bytes() for name in ("cut", "whole")]
    assert finals[0] == finals[1]


def test_a_signal_sent_twice_stops_once(monkeypatch):
    with stoppable() as stop:
        with pytest.raises(KeyboardInterrupt, match=r"stopped by SIGTERM\."):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while a checkpoint is written
        assert stop.code == 143
        monkeypatch.setattr(stopping, "PATIENCE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signals_that_somebody_handles_are_left_to_them():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with stoppable() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.code == 130
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
