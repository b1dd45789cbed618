import errno
import json
import os
import select
import signal
import warnings
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace

import pytest

from cascadice.applications.reward.ledger import enter
from cascadice.cli import main
from cascadice.files import locks
from cascadice.files.locks import LOCK, in_use, locked
from cascadice.runs.folder import status_of
from cascadice.runs.recipes import demo
from cascadice.runs.train import run


def fork():
    with warnings.catch_warnings(action="ignore"):  # Python dislikes to fork where there are threads
        return os.fork()


@contextmanager
def another_writer(folder):
    """A process that locks the folder, then waits; it is killed in the end."""
    told, tell = os.pipe()
    child = fork()
    if not child:
        with locked(folder):
            os.write(tell, b"locked")
            signal.pause()
        os._exit(0)
    try:
        assert select.select([told], [], [], 30)[0]
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)


def test_the_second_writer_is_told_who_the_first_is(tmp_path):
    with another_writer(tmp_path) as pid:
        assert in_use(tmp_path)
        words = rf"is in use: process {pid} has been writing to it since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. Wait"
        with pytest.raises(ValueError, match=words), locked(tmp_path):
            pass


def test_death_ends_a_lock(tmp_path):
    with another_writer(tmp_path):
        pass
    assert (tmp_path / LOCK).exists()
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_made_for_nothing_is_removed(tmp_path):
    with locked(tmp_path / "a" / "b"):
        assert in_use(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "kept").write_text("")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def test_who_holds_a_lock_may_take_it_again_and_nobody_else(tmp_path):
    def take():
        with locked(tmp_path / "." / ""):
            pass

    with locked(tmp_path):
        take()
        assert in_use(tmp_path)
        with pytest.raises(ValueError, match=r"is in use"):
            Context().run(take)


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    ready, tell = os.pipe()
    with locked(tmp_path):
        child = fork()
        if not child:
            os.write(tell, b".")
            signal.pause()
        os.read(ready, 1)
        assert in_use(tmp_path)
    assert not in_use(tmp_path)  # though the child lives and has inherited the file
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_planted_lock_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "victim")
    with (
        pytest.raises(ValueError, match=r"run/\.lock is a link; a lock must be a file\. Remove it\."),
        locked(tmp_path / "run"),
    ):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_planted_pipe_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / LOCK)
    assert not in_use(tmp_path)
    with pytest.raises(ValueError, match=r"\.lock must be a file; found a folder, a pipe"), locked(tmp_path):
        pass


def test_the_name_of_a_locked_folder_is_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("cascadice.files.sync", flushed.append)
    with locked(tmp_path / "a" / "b"):
        assert {tmp_path, tmp_path / "a"} <= set(flushed)


class Interrupting(dict):
    def __setitem__(self, place, handle):
        raise KeyboardInterrupt


def test_who_is_interrupted_while_locking_holds_no_lock(tmp_path, monkeypatch):
    def interrupt(handle):
        raise KeyboardInterrupt

    for name, value in {"_handles": Interrupting(), "_sign": interrupt}.items():
        with monkeypatch.context() as patch:
            patch.setattr(locks, name, value)
            with pytest.raises(KeyboardInterrupt), locked(tmp_path / "run"):
                pass
        assert not in_use(tmp_path / "run")
        with locked(tmp_path / "run"):
            pass


@pytest.mark.parametrize("content", ["", "[1]", '{"pid": "\x1b[31m", "since": 3}', '{"pid": 1}'])
def test_a_lock_file_is_not_believed(tmp_path, content):
    with another_writer(tmp_path):
        (tmp_path / LOCK).write_text(content)
        with pytest.raises(ValueError, match=r"in use: another process is writing to it\."), locked(tmp_path):
            pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\)"), locked(tmp_path):
        pass


WAYS = {
    "run": ["run", "demo", "--rounds", "1", "--out", "{}"],
    "resume": ["run", "--resume", "--out", "{}"],
    "overwrite": ["run", "demo", "--overwrite", "--out", "{}"],
    "influence": ["influence", "{}"],
    "whole run": ["influence", "{}", "--kind", "whole-run"],
    **{command: [command, "{}"] for command in ("detect", "choose", "validate")},
    "forget": ["forget", "{}", "--participant", "0"],
    "reward": ["reward", "{}", "--budget", "10"],
    "ledger": ["reward", "{}", "--budget", "10", "--out", "{}-elsewhere"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        run(replace(demo(), nodes=3, behaviours=(), corruptions=(), rounds=2, epochs=None), folder, quiet=True)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_every_command_leaves_a_folder_in_use_alone(recorded, capsys, way):
    before = sorted(recorded.rglob("*"))
    with another_writer(recorded) as pid:
        assert main([argument.format(recorded) for argument in WAYS[way]]) == 2
        assert f"run is in use: process {pid} has been writing to it since" in capsys.readouterr().err
    (recorded / LOCK).unlink()
    assert sorted(recorded.rglob("*")) == before
    assert not recorded.with_name("run-elsewhere").exists()


def test_a_ledger_has_one_writer(tmp_path):
    with another_writer(tmp_path / "ledger"), pytest.raises(ValueError, match=r"ledger is in use"):
        enter(tmp_path / "ledger", {"run": "a", "kind": "shares"}, [])


def test_a_run_that_died_is_not_called_running(tmp_path):
    with another_writer(tmp_path):
        assert status_of(tmp_path, {"status": "running"}) == "running"
    assert status_of(tmp_path, {"status": "running"}) == "stopped"
    assert status_of(tmp_path, {"status": "finished"}) == "finished"
