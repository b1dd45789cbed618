"""Atomic writing and safe reading of files.

A file is written under a temporary name, then renamed: readers see the old file or the new one, never half of either.
Nothing is pickled.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from cascadice.files import checksums, flock, jsonl
from cascadice.files.jsonl import check_format as check_format

DRAFT = re.compile(r"\.tmp-\d+-.+|\.tmp[A-Za-z0-9]{6}")  # ours, and those that safetensors makes beside a file
Folder = str | os.PathLike[str]


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; if the block succeeds, that file is renamed to `path`.

    The temporary file is new: nothing planted under its name is followed. Missing parent folders are created.

    Args:
        path: The file to replace.
        durable: Whether the new file survives a loss of power from then on. Waiting for the disk takes milliseconds;
            to write many files, call `flush` once at the end instead.

    Yields:
        The temporary path, in the same folder.

    Example:
        >>> with replacing(Path("notes.txt")) as draft:  # doctest: +SKIP
        ...     draft.write_text("all of it, or nothing")
    """
    made = make_folder(path.parent)
    draft = path.with_name(f".tmp-{os.getpid()}-{token_hex(4)}-{path.name}")
    try:
        draft.touch(exist_ok=False)
    except BaseException:
        remove_empty(made)
        raise
    try:
        with flock.turn(draft):  # `remove_drafts` leaves it alone
            yield draft
            if durable:
                sync(draft)
            with checksums.announced(path, draft, sync=durable):
                try:
                    draft.replace(path)
                except OSError as error:  # about the file that the temporary one becomes
                    raise OSError(error.errno, error.strerror, str(path)) from None
                if durable:
                    sync(path.parent)
    except OSError as error:
        if error.errno is None or error.filename:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # such as that of a full disk
    finally:
        draft.unlink(missing_ok=True)
        remove_empty(made)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a loss of power."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # which does not wait for the end of a pipe
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has nothing to flush
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def flush(folder: Path, paths: Iterable[Path]) -> None:
    """Wait until files that were written to a folder without being durable would survive a loss of power."""
    if folder.exists():
        for path in paths:
            if path.exists():
                sync(path)
        sync(folder)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents, to survive a loss of power; return the new ones, the innermost first."""
    if folder.is_dir():
        return []
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove these folders, the innermost first, as long as they are empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def remove(path: Path, durable: bool = True) -> None:
    """Remove a file, or a folder with its content, and its checksums; if it is a link, only the link.

    A missing path is fine. Unless `durable`, a loss of power may bring the file back, but not its checksum.
    """
    there = os.path.lexists(path)
    with checksums.announced(path, None, sync=durable):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if durable and there:
            sync(path.parent)


def remove_drafts(folder: Folder, *below: str) -> None:
    """Remove the temporary files that killed processes left in a folder, and anywhere inside its subfolders `below`.

    A file that somebody is writing, as a report may be while a run begins, is left alone.

    Args:
        folder: The folder.
        *below: Subfolders to search as well, with everything inside them.

    Example:
        >>> remove_drafts("runs/demo", "rounds")  # doctest: +SKIP
    """
    place = Path(folder)
    inside = (draft for name in below if not (place / name).is_symlink() for draft in (place / name).rglob(".tmp*"))
    for draft in [*place.glob(".tmp*"), *inside]:
        if DRAFT.fullmatch(draft.name) and not flock.is_held(draft):
            remove(draft)


def keep_checksums(folder: Path, existing: Iterable[Path] = ()) -> None:
    """Start the list of checksums of a folder with these files; an existing list is kept, without outdated lines."""
    with checksums.exclusive(folder / checksums.LIST), replacing(folder / checksums.LIST) as draft:
        draft.write_bytes(checksums.opening(folder, existing))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as indented JSON, atomically.

    Args:
        path: The file to write or replace.
        content: The object.

    Example:
        >>> write_json(Path("result.json"), {"loss": 0.25})  # doctest: +SKIP
    """
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, remedy: str = checksums.RECOMPUTE) -> dict[str, Any]:
    """Read the JSON object in a file, after checking it against its checksum if it has one.

    Args:
        path: The file.
        remedy: What to do about a damaged file; part of the error.

    Returns:
        The object.

    Raises:
        ValueError: If the file is damaged, is not JSON, or holds no object.

    Example:
        >>> read_json(Path("result.json"))["loss"]  # doctest: +SKIP
        0.25
    """
    checksums.verify(path, foreign=True, remedy=remedy)
    try:
        content = jsonl.parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). {remedy}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object; found {type(content).__name__}. Restore it.")
    return content


@contextmanager
def intact(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Report any of these errors, raised by a library inside this block, as damage to the file.

    A file that cannot be opened, or a lack of memory, is not reported as damage.
    """
    try:
        yield
    except MemoryError:  # Arrow's is one of Arrow's errors too
        raise
    except (OSError, RuntimeError, *errors) as error:
        if (number := system_number(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from None
        if not isinstance(error, (OSError, *errors)):
            raise
        raise damaged(path, str(error).strip().partition("\n")[0]) from None


def system_number(error: Exception) -> int | None:
    """The number of what the operating system said about a file, if that is why a library failed."""
    # libraries in Rust write it like this; and torch, which maps a file that safetensors has opened
    told = re.search(r"\(os error (\d+)\)|unable to open file <.*\((\d+)\)$", str(error))
    if str(error).endswith(os.strerror(errno.EAGAIN)):  # Arrow, where it may start no thread
        return errno.EAGAIN
    return error.errno if isinstance(error, OSError) else int(told[1] or told[2]) if told else None


def damaged(path: Path, reason: str) -> ValueError:
    """The error to raise about a damaged file."""
    remedy = "Restore it from a copy, or compute what it held again."
    return ValueError(f"{path} is damaged: {reason.rstrip('.')}. {remedy}")
