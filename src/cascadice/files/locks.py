"""One writer per folder: a lock that is released when its process ends, however it ends.

The lock is `flock` on the file `.lock` in the folder, which says who holds it and since when. A lock file that nobody
holds has no effect: a killed process leaves one behind, and the next writer takes it over.
"""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from errno import ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP
from pathlib import Path

from cascadice import files
from cascadice.files import Folder, digests, flock, jsonl

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
ATTEMPTS, PAUSE = 5, 0.05  # who asks whether a lock is held holds it for a moment
UNKNOWN = (ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP)  # file systems without locks

_held: ContextVar[frozenset[Path]] = ContextVar("folders locked here", default=frozenset())
_handles: dict[Path, int] = {}


@contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Lock a folder for writing inside this block; nested blocks on the same folder are allowed.

    The folder is made if it is missing, and removed again if it is still empty in the end.

    Args:
        folder: The folder to lock.

    Yields:
        Nothing; the lock is held inside the block.

    Raises:
        ValueError: If somebody else is writing to the folder.

    Example:
        >>> with locked("runs/mine"):  # doctest: +SKIP
        ...     ...
    """
    place = Path(os.path.realpath(folder))
    if place in _held.get():
        yield
        return
    made = [each for each in (place, *place.parents) if not each.exists()]
    handle = None
    try:
        handle = _acquire(place, Path(folder))
        _handles[place] = handle
        _held.set(_held.get() | {place})
        yield
    finally:
        _held.set(_held.get() - {place})
        if handle is not None:
            with suppress(OSError):
                if _still_there(handle, place / LOCK):  # else it is somebody else's
                    (place / LOCK).unlink()
            _handles.pop(place, None)
            os.close(handle)
        files.remove_empty(made)


def check_held(folder: Folder) -> None:
    """Raise ValueError if a locked folder was moved away: writing to it would create a new one."""
    place = Path(os.path.realpath(folder))
    home = next((each for each in (place, *place.parents) if each in _handles), None)
    if home is not None and not _still_there(_handles[home], home / LOCK):
        raise ValueError(
            f"{home} was moved or removed while this process wrote to it. Move it back to continue, or start again."
        )


def in_use(folder: Folder) -> bool:
    """Whether somebody is writing to a folder now; True if this system cannot tell."""
    return flock.is_held(Path(folder) / LOCK)


def _acquire(place: Path, named: Path) -> int:
    """A handle that holds the lock of a folder, which messages call `named`."""
    for _ in range(ATTEMPTS):
        try:
            files.make_folder(place)
            if (place / LOCK).is_symlink():
                raise ValueError(f"{named / LOCK} is a link; a lock must be a file. Remove it.")
            digests.check_ordinary(place / LOCK)
            handle = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:  # whoever made the folder has just removed it
            continue
        try:
            if not _locked(handle, named):
                time.sleep(PAUSE)
            elif _still_there(handle, place / LOCK):
                _sign(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise ValueError(f"{named} is in use: {_holder(place)}. Wait until it ends, or choose another folder.")


def _locked(handle: int, named: Path) -> bool:
    """Try to lock; without locks on this system, say so and go on."""
    if fcntl is None:
        warnings.warn(f"this system cannot lock folders: do not write to {named} twice at once.", stacklevel=5)
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNKNOWN:
            raise
        warnings.warn(f"{named} cannot be locked ({error.strerror}): do not write to it twice at once.", stacklevel=5)
    return True


def _still_there(handle: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder: the last holder removes it before unlocking."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    """Write who holds the lock; on a full disk it is held all the same."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())


def _holder(place: Path) -> str:
    """Who holds the lock, in words; only numbers and dates are taken from the file as they are."""
    try:
        content = jsonl.parse((place / LOCK).read_text(encoding="utf-8"))
        pid, since = int(content["pid"]), datetime.fromisoformat(content["since"])
        elsewhere = "" if content["host"] == socket.gethostname() else " on another machine"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process is writing to it"
    return f"process {pid}{elsewhere} has been writing to it since {since:%Y-%m-%d %H:%M:%S} UTC"


def _let_go() -> None:
    """A forked child must not keep a lock that its parent took."""
    _held.set(frozenset())
    while _handles:
        os.close(_handles.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
