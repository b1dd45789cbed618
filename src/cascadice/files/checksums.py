"""The checksums of all files of a run, in one list, which reveals files that were changed, removed or planted.

`checksums.jsonl`, in the folder of a run or of a table of influence elsewhere
    {"format": "cascadice-checksums-1"}
    {"file": "rounds/000007.safetensors", "bytes": 1155416, "sha256": "5f2c…"}    written
    {"file": "rounds/000006.safetensors"}                                         removed; a folder: with all in it
    {}                                                                            the line above is on disk
Each line is added before its file is renamed into place, or removed, and {} once the new name would survive a loss of
power. So a last line without {} may describe a change that did not happen; the previous content is then accepted too.
Writers take turns, each from its line to {}.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cascadice.files import flock, jsonl
from cascadice.files.digests import Digest, check_ordinary, digest, digest_if_there

LIST = "checksums.jsonl"
FORMAT = "cascadice-checksums-1"
LEVELS = 4  # folders to go up from a file to its list: RUN/whole-run/unfinished/at-0.5/000040.safetensors
MANIFEST, LISTED_RUN = "manifest.json", "cascadice-run-2"  # the format of runs that keep a list; that of 0.1.0 did not
RECOMPUTE = "Restore it from a copy, or compute it again with --overwrite"
APPENDED = ".jsonl"  # these grow, and carry digests of their own


@dataclass
class ChecksumList:
    """The list in a folder as read so far; `before` has what the last line is about to replace (None if nothing)."""

    folder: Path
    inode: int
    files: dict[str, Digest] = field(default_factory=dict)
    before: dict[str, Digest | None] = field(default_factory=dict)
    offset: int = 0
    reconciled: bool = False

    @cached_property
    def path(self) -> Path:
        return self.folder / LIST

    def allowed(self, name: str) -> list[Digest | None]:
        """The contents that a file may have now."""
        return [self.files.get(name), *([self.before[name]] if name in self.before else [])]

    def refresh(self) -> None:
        """Read the lines added since the last call, except an unfinished last line."""
        check_ordinary(self.path)
        if self.offset and self.path.stat().st_size == self.offset:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            added = file.read()
        complete = jsonl.complete(added)
        lines = iter(complete.splitlines())
        if not self.offset:
            if not complete:
                raise ValueError(f"{self.path} is damaged: its first line is missing. Restore it from a copy.")
            jsonl.check_format(self.path, self._parsed(next(lines), of_file=False).get("format"), FORMAT)
        for line in lines:
            self._enter(self._parsed(line))
        self.offset += len(complete)
        self.reconciled = False  # others wrote these lines, and may have died

    def _parsed(self, line: bytes, of_file: bool = True) -> dict[str, Any]:
        """What a line says; all but the first and {} are about a file."""
        with suppress(ValueError, TypeError):
            entry = dict(jsonl.parse(line))
            name = entry.get("file", "")
            if not of_file or (isinstance(name, str) and bool(name) == bool(entry)):
                return entry
        raise ValueError(f"{self.path} has a line that is not a checksum: {line[:60]!r}. Restore it from a copy.")

    def _enter(self, entry: dict[str, Any]) -> None:
        name = entry.get("file", "")
        if not entry:
            self.before = {}
        elif "sha256" in entry:
            self.before = {name: self.files.get(name)}
            self.files[name] = Digest(entry.get("bytes", -1), entry["sha256"])
        else:
            self.before = {one: self.files.pop(one) for one in self.inside(name)}

    def inside(self, name: str) -> list[str]:
        """The listed files that this name refers to: the file itself, or all files in the folder of that name."""
        return [name] if name in self.files else [one for one in self.files if one.startswith(f"{name}/")]

    def announce(self, name: str, digest: Digest | None, sync: bool = True) -> None:
        """Add a line about the next change, while `exclusive` keeps other writers out."""
        self.reconcile()
        self.append({"file": name} | (digest._asdict() if digest else {}), sync)

    def append(self, entry: dict[str, Any], sync: bool = False) -> None:
        """Add a line."""
        if self.path.stat().st_size != self.offset:
            self.refresh()
        self.offset = jsonl.append(self.path, entry, self.offset, sync)
        self._enter(entry)

    def reconcile(self) -> "ChecksumList":
        """If the previous writer died between announcing a change and making it, list the files as they are."""
        for name, before in () if self.reconciled else [*self.before.items()]:
            if before != self.files.get(name) and digest_if_there(self.folder / name) == before:
                self.append({"file": name} | (before._asdict() if before else {}))
        if self.before and not self.reconciled:
            self.append({})
        self.reconciled = True
        return self


_lists: dict[str, ChecksumList] = {}
_lock = threading.RLock()  # a live page is made while the run writes


def list_for(path: Path) -> ChecksumList | None:
    """The list that this file belongs to, read to its end; None if there is none."""
    folder = os.path.abspath(path)  # noqa: PTH100 - in every round: pathlib takes three times as long
    for _ in range(LEVELS):
        folder = os.path.dirname(folder)  # noqa: PTH120
        try:
            status = os.stat(f"{folder}/{LIST}")  # noqa: PTH116
        except OSError:
            continue
        with _lock:
            known = _lists.pop(folder, None)  # what was half read when somebody interrupts is not kept
            if known is None or known.inode != status.st_ino or known.offset > status.st_size:
                known = ChecksumList(Path(folder), status.st_ino)
            if not known.offset or known.offset != status.st_size:
                known.refresh()
            return _lists.setdefault(folder, known)
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[ChecksumList | None]:
    """Hold the list for a file, so that nobody else adds to it inside this block; None if there is none."""
    with _lock:
        while (listing := list_for(path)) is not None:
            with flock.turn(listing.path):
                if list_for(path) is listing:  # it was not replaced while we waited
                    yield listing
                    return
        yield None


def drop_unreadable(folder: Path) -> None:
    """Remove the list of a folder if it cannot be read, so that the files it describes can be replaced."""
    try:
        list_for(folder / LIST)
    except ValueError:
        _lists.pop(str(folder.absolute()), None)
        (folder / LIST).unlink()


def opening(folder: Path, existing: Iterable[Path] = ()) -> bytes:
    """The content of a new list for a folder: the entries of its present list, or these files.

    Hidden files, those that grow and those in a list further down are left out.
    """
    above = list_for(folder / LIST)
    if above is not None and (folder / LIST).exists():
        listed = above.reconcile().files
    else:
        own = (path for path in existing if path.suffix != APPENDED and list_for(path) is above)
        listed = {_name(folder, path): digest(path) for path in own if not _hidden(_name(folder, path))}
    lines = [{"format": FORMAT}, *({"file": name, **digest._asdict()} for name, digest in listed.items()), {}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def announced(path: Path, draft: Path | None, sync: bool = True) -> Iterator[None]:
    """Announce in the list what the block does: rename `draft` to a file, or (None) remove the file or folder.

    Without `sync`, the line reaches the disk with the next synced one, and names are not flushed.
    """
    if path.suffix == APPENDED:
        yield
        return
    with exclusive(path) as listing:
        name = "" if listing is None else _name(listing.folder, path)
        if listing is None or (draft is None and not listing.inside(name)):
            yield
            return
        try:
            listing.announce(name, None if draft is None else digest(draft), sync)
            yield
            if sync and draft is not None:
                listing.append({})
        except BaseException:
            _lists.pop(str(listing.folder), None)  # to be read again, and reconciled
            raise


def verify(path: Path, *, foreign: bool = False, remedy: str = RECOMPUTE) -> None:
    """Raise ValueError if a file does not match its list, or if its run has lost the list.

    Without a list, as outside runs and in runs of version 0.1.0, only the kind of the file is checked. `foreign` files
    may have been put there by others: they need not be listed. `remedy` says what to do.
    """
    check_ordinary(path)
    listing = list_for(path)
    if listing is None:
        _check_not_lost(path)
        return
    if path.suffix == APPENDED or (foreign and _name(listing.folder, path) not in listing.files):
        return
    if wrong := problem(listing, path):
        raise ValueError(f"{path} {wrong}. {remedy}; `cascadice check {listing.folder}` says what else is wrong.")


def _check_not_lost(path: Path) -> None:
    """Raise ValueError if a file without a list is part of a run that had one."""
    for folder in [*path.absolute().parents][:LEVELS]:
        manifest = folder / MANIFEST
        # the list is older than the manifest, so one that began meanwhile has it by now
        if manifest.is_file() and f'"{LISTED_RUN}"'.encode() in manifest.read_bytes() and not (folder / LIST).exists():
            raise ValueError(
                f"{folder / LIST} is missing, so nothing shows whether files of this run were changed. Restore it from "
                "a copy, or train the run again with --overwrite."
            )


def verify_none_missing(folder: Path) -> None:
    """Raise ValueError if a file that was written into this folder is missing."""
    for path in (path for path in listed(folder) if not path.exists()):
        verify(path)


def listed(folder: Path) -> list[Path]:
    """The files that were written into this folder."""
    listing = list_for(folder / LIST)
    paths = (listing.folder / name for name in listing.files) if listing else ()
    return [folder / path.name for path in paths if path.parent == folder.absolute()]


def is_unlisted(path: Path) -> bool:
    """Whether a file that is not hidden lies in a folder with a list but is not in the list."""
    listing = list_for(path)
    name = _name(listing.folder, path) if listing else ""
    return listing is not None and name not in listing.files and name not in listing.before and not _hidden(name)


def problem(listing: ChecksumList, path: Path) -> str | None:
    """What is wrong with a file, as words to put after its name; None if nothing is."""
    name = _name(listing.folder, path)
    while True:
        end, now, allowed = listing.offset, digest_if_there(path), listing.allowed(name)
        if now in allowed:
            return None
        with _lock:
            listing.refresh()
        if listing.offset == end:  # it was not written again meanwhile
            break
    if now is None or allowed[0] is None:
        return f"is not listed in {LIST}" if now else "is missing"
    written = allowed[0].bytes
    return f"is damaged: {f'it has {now.bytes} bytes, not {written}' if now.bytes != written else 'it was changed'}"


def unlisted(listing: ChecksumList) -> Iterator[Path]:
    """The files in the folder that are not in the list, except hidden files and files that grow."""
    for path in sorted(listing.folder.rglob("*")):
        if path.is_file() and path.suffix != APPENDED and list_for(path) is listing and is_unlisted(path):
            yield path


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _name(folder: Path, path: Path) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")
