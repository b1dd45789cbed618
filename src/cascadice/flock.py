"""Processes that add to one file take turns: each waits until the one before is done, or dead."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Hold the lock of a file inside this block, once nobody else does. On a system without locks nobody waits."""
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the handle too
        os.close(handle)
