"""The checksums of all files of a run, in one list: a file that was changed, removed or planted is noticed.

`checksums.jsonl`, in the folder of a run or of a table of influence elsewhere
    {"format": "cascadice-checksums-1"}
    {"file": "rounds/000007.safetensors", "bytes": 1155416, "sha256": "5f2c…"}    written
    {"file": "rounds/000006.safetensors"}                                         removed; a folder: with all in it
    {}                                                                            what the line above says is on disk
Each line is added before its file is renamed into place, or removed, and {} once the new name would survive a loss of
power. So a last line without {} may describe what did not happen; what was there before is right then as well.
Writers take turns, each from its line to {}.
"""

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, NamedTuple

from cascadice import flock

LIST = "checksums.jsonl"
FORMAT = "cascadice-checksums-1"
LEVELS = 4  # folders to go up from a file to its list: RUN/whole-run/unfinished/at-0.5/000040.safetensors
ROUNDS = "rounds"
RECOMPUTE = "Restore it from a copy, or compute it again with --overwrite"
TENSORS, APPENDED = ".safetensors", ".jsonl"  # the latter grow, and carry digests of their own


class Digest(NamedTuple):
    """The size and the SHA-256 of a file; of a tensor file that of its header, which has a CRC-32 of each tensor.

    SHA-256 over all tensors would slow recording by a tenth; readers compare the CRC-32 of those that they read.
    """

    bytes: int
    sha256: str


@dataclass
class List:
    """The list in a folder as read so far; `before` has what the last line is about to replace (None: no such file)."""

    folder: Path
    inode: int
    files: dict[str, Digest] = field(default_factory=dict)
    before: dict[str, Digest | None] = field(default_factory=dict)
    offset: int = 0
    settled: bool = False

    @cached_property
    def path(self) -> Path:
        return self.folder / LIST

    def allowed(self, name: str) -> list[Digest | None]:
        """What a file may be now."""
        return [self.files.get(name), *([self.before[name]] if name in self.before else [])]

    def refresh(self) -> None:
        """Read the lines that were added since; an unfinished last line is none."""
        check_ordinary(self.path)
        if self.path.stat().st_size == self.offset:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        for number, line in enumerate(complete.splitlines()):
            if number or self.offset:
                self._enter(line)
            else:
                self._check_header(line)
        self.offset += len(complete)
        self.settled = False  # others wrote these lines, and may have died

    def _check_header(self, line: bytes) -> None:
        found = self._parsed(line).get("format")
        if found != FORMAT:
            remedy = "Read it with the version of cascadice that wrote it."
            raise ValueError(f"{self.path} must be of format {FORMAT}; found {found}. {remedy}")

    def _enter(self, line: bytes) -> None:
        entry = self._parsed(line)
        name = entry.get("file", "")
        if not isinstance(name, str) or bool(entry) != bool(name):
            raise self._unreadable(line)
        if not entry:
            self.before = {}
        elif "sha256" in entry:
            self.before = {name: self.files.get(name)}
            self.files[name] = Digest(entry.get("bytes", -1), entry["sha256"])
        else:
            self.before = {one: self.files.pop(one) for one in self.inside(name)}

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            raise self._unreadable(line) from None

    def _unreadable(self, line: bytes) -> ValueError:
        return ValueError(f"{self.path} has a line that is no checksum: {line[:60]!r}. Restore it from a copy.")

    def inside(self, name: str) -> list[str]:
        """The listed files that this name stands for: itself, or all in the folder of that name."""
        return [name] if name in self.files else [one for one in self.files if one.startswith(f"{name}/")]

    def announce(self, name: str, digest: Digest | None, sync: bool = True) -> None:
        """Add a line about what is to be done next."""
        self.refresh()
        self.settle()
        self.append({"file": name} | (digest._asdict() if digest else {}), sync)

    def append(self, entry: dict[str, Any], sync: bool = False) -> None:
        """Add a line, over an unfinished one if there is one."""
        line = json.dumps(entry).encode() + b"\n"
        with self.path.open("r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) != self.offset:
                self.refresh()
                file.truncate(self.offset)
                file.seek(self.offset)
            if file.write(line) != len(line):  # a full disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if sync:
                os.fsync(file.fileno())
        self._enter(line)
        self.offset += len(line)

    def settle(self) -> "List":
        """If the writer before us died between a line and what it announces, say how the files are."""
        for name, before in () if self.settled else [*self.before.items()]:
            if before != self.files.get(name) and _digest_now(self.folder / name) == before:
                self.append({"file": name} | (before._asdict() if before else {}))
        if self.before and not self.settled:
            self.append({})
        self.settled = True
        return self


_lists: dict[str, List] = {}
_lock = threading.RLock()  # a live page is made while the run writes


def list_for(path: Path) -> List | None:
    """The list, read up to its end, in which this file has its place; None if there is none."""
    folder = os.path.abspath(path)  # noqa: PTH100 - in every round: pathlib takes three times as long
    for _ in range(LEVELS):
        folder = os.path.dirname(folder)  # noqa: PTH120
        try:
            status = os.stat(f"{folder}/{LIST}")  # noqa: PTH116
        except OSError:
            continue
        return _read(folder, status)
    return None


def _read(folder: str, status: os.stat_result) -> List:
    with _lock:
        known = _lists.pop(folder, None)  # what was half read when somebody interrupts is not kept
        if known is None or known.inode != status.st_ino or known.offset > status.st_size:
            known = List(Path(folder), status.st_ino)
        if known.offset != status.st_size:
            known.refresh()
        return _lists.setdefault(folder, known)


@contextmanager
def alone(path: Path) -> Iterator[List | None]:
    """The list for a file, to which nobody else adds inside this block; None if there is none."""
    with _lock:
        while (found := list_for(path)) is not None:
            with flock.turn(found.path):
                if list_for(path) is found:  # it was not replaced while we waited
                    yield found
                    return
        yield None


def drop_unreadable(folder: Path) -> None:
    """Remove the list of a folder if it cannot be read, so that what it is about can be replaced."""
    try:
        list_for(folder / LIST)
    except ValueError:
        _lists.pop(str(folder.absolute()), None)
        (folder / LIST).unlink()


def opening(folder: Path, existing: Iterable[Path] = ()) -> bytes:
    """The content of a list for a folder: what its list has now, or these files.

    Hidden files, those that grow and those in a list further down are left out.
    """
    above = list_for(folder / LIST)
    if above is not None and (folder / LIST).exists():
        listed = above.settle().files
    else:
        own = (path for path in existing if path.suffix != APPENDED and list_for(path) is above)
        listed = {_name(folder, path): _digest(path) for path in own if not _hidden(_name(folder, path))}
    lines = [{"format": FORMAT}, *({"file": name, **digest._asdict()} for name, digest in listed.items()), {}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def announced(path: Path, draft: Path | None, sync: bool = True) -> Iterator[None]:
    """List what the block does: rename `draft` to a file and flush its name, or remove the file or folder (None).

    Without `sync` the line reaches the disk with the next one that is written with it, and no name need be flushed.
    """
    if path.suffix == APPENDED:
        yield
        return
    with alone(path) as found:
        name = "" if found is None else _name(found.folder, path)
        if found is None or (draft is None and not found.inside(name)):
            yield
            return
        try:
            found.announce(name, None if draft is None else _digest(draft), sync)
            yield
            if sync and draft is not None:
                found.append({})
        except BaseException:
            _lists.pop(str(found.folder), None)  # to be read again, and settled
            raise


def check_ordinary(path: Path) -> None:
    """Raise ValueError if something else than a file has this name: to read a pipe or a device may never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} must be a file; found a folder, a pipe or a device. Restore it, or name another.")


def verify(path: Path, *, foreign: bool = False, remedy: str = RECOMPUTE) -> None:
    """Raise ValueError if a file is not what its list says. Without a list nothing but its kind is checked.

    `foreign` files may have been put there by others: those that are not listed pass. `remedy` says what to do.
    """
    check_ordinary(path)
    found = list_for(path)
    if found is None or path.suffix == APPENDED or (foreign and _name(found.folder, path) not in found.files):
        return
    if wrong := problem(found, path):
        raise ValueError(f"{path} {wrong}. {remedy}; `cascadice check {found.folder}` says what else is wrong.")


def verify_none_missing(folder: Path) -> None:
    """Raise ValueError if a file that was written into this folder is missing."""
    for path in (path for path in listed(folder) if not path.exists()):
        verify(path)


def listed(folder: Path) -> list[Path]:
    """The files that were written into this folder."""
    found = list_for(folder / LIST)
    paths = (found.folder / name for name in found.files) if found else ()
    return [folder / path.name for path in paths if path.parent == folder.absolute()]


def is_unlisted(path: Path) -> bool:
    """Whether a file that is not hidden lies in a folder with a list, but no line is about it."""
    found = list_for(path)
    name = _name(found.folder, path) if found else ""
    return found is not None and name not in found.files and name not in found.before and not _hidden(name)


def problem(found: List, path: Path) -> str | None:
    """What is wrong with a file, in words that follow its name; None if nothing is."""
    name = _name(found.folder, path)
    while True:
        end, now, allowed = found.offset, _digest_now(path), found.allowed(name)
        if now in allowed:
            return None
        with _lock:
            found.refresh()
        if found.offset == end:  # it was not written again meanwhile
            break
    if now is None or allowed[0] is None:
        return f"is not listed in {LIST}" if now else "is missing"
    written = allowed[0].bytes
    return f"is damaged: {f'it has {now.bytes} bytes, not {written}' if now.bytes != written else 'it was changed'}"


def unlisted(found: List) -> Iterator[Path]:
    """The files in the folder that no line is about, but for hidden ones and those that grow."""
    for path in sorted(found.folder.rglob("*")):
        if path.is_file() and path.suffix != APPENDED and list_for(path) is found and is_unlisted(path):
            yield path


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _name(folder: Path, path: Path) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _digest_now(path: Path) -> Digest | None:
    try:
        return _digest(path)
    except FileNotFoundError:
        return None


def _digest(path: Path) -> Digest:
    check_ordinary(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix != TENSORS:
            return Digest(size, file_digest(file, "sha256").hexdigest())
        length = file.read(8)  # of the header, as safetensors writes it
        return Digest(size, sha256(length + file.read(min(int.from_bytes(length, "little"), size))).hexdigest())
