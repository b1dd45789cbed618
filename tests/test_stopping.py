import os
import signal

import pytest

from cascadice import files
from cascadice.cli import main
from cascadice.commands import stopping
from cascadice.commands.stopping import Stop, stoppable
from cascadice.runs import store

SMALL = ["run", "demo", "--nodes", "3", "--rounds", "6", "--record", "all", "--quiet", "--out"]


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)


@pytest.fixture
def _not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_not_under_nohup")
@pytest.mark.parametrize(("sent", "code", "inside_torch"), [(signal.SIGTERM, 143, False), (signal.SIGHUP, 129, True)])
def test_a_signal_leaves_a_checkpoint_and_says_so(tmp_path, monkeypatch, capsys, sent, code, inside_torch):
    record = store.save_round

    def hit(folder, done, **more):
        record(folder, done, **more)
        if done.t == 3:
            try:
                os.kill(os.getpid(), sent)
            finally:
                if inside_torch:
                    raise RuntimeError("INTERNAL ASSERT FAILED")

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
    with stoppable(stop := Stop()):
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
        with stoppable(stop := Stop()):
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.code == 130
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_as_the_command_ends_is_no_traceback(monkeypatch, capsys):
    restore = signal.signal

    def hit(number, handler):
        if handler is signal.SIG_DFL and signal.getsignal(number) is not handler:
            os.kill(os.getpid(), number)
        return restore(number, handler)

    monkeypatch.setattr(signal, "signal", hit)
    try:
        assert main(["list", "payouts"]) == 143
    finally:
        restore(signal.SIGTERM, signal.SIG_DFL)
        restore(signal.SIGHUP, signal.SIG_DFL)
    assert capsys.readouterr().err == "cascadice: stopped by SIGTERM.\n"
