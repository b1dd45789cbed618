"""Let processes take turns writing to a file: each waits until the previous one is done or dead."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import get_ident

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_held: dict[tuple[Path, int], FileIO] = {}  # by thread


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it inside this block. On systems without locks nobody waits."""
    if fcntl is None:
        yield
        return
    ours = (path, get_ident())
    _release(ours)  # left over if Ctrl-C hit us on the way out: we would wait for ourselves
    file = _held[ours] = FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        if _held.get(ours) is file:
            _release(ours)


def _release(turn: tuple[Path, int]) -> None:
    if (file := _held.pop(turn, None)) is not None:
        with file, suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the handle too


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of a file; True if this system cannot tell."""
    if fcntl is None:
        return True
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe that somebody put there
            return False
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)
