"""A disk that loses its power: what was written to a folder, in order, and what a crash may leave of it.

The content of a file is kept once the file was flushed; until then a new file may be empty, and lines added to a file
may be missing. A name that was made, replaced or removed is kept once its folder was flushed; until then it may be kept
or not, whatever happened to the names changed before and after it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cascadice import files
from cascadice.files import jsonl

State = dict[str, bytes | None]
"""What a folder holds: the content of each file by its path, None for a folder."""


class Change(NamedTuple):
    """One thing that happened to a name: it was made or replaced ("name"; None: as a folder), removed, or flushed.

    "content" is what a file holds that had another name when it was written, or that lines were added to.
    """

    kind: str
    path: str
    content: bytes | None = None


def read(folder: Path) -> State:
    """What a folder holds now."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in found}


def write(folder: Path, state: State) -> None:
    """Make a folder that holds this."""
    folder.mkdir(parents=True)
    for path, content in state.items():
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


@contextmanager
def recording(folder: Path) -> Iterator[list[Change]]:
    """The changes that `cascadice.files` makes to a folder inside this block, in order."""
    changes: list[Change] = []
    flushed: set[Path] = set()
    sync, remove, make, replace = files.sync, files.remove, files.make_folder, Path.replace
    append = jsonl.append

    def note(kind: str, path: Path, content: bytes | None = None) -> None:
        whole = path.absolute()  # commands are given paths from where they are
        if folder in (whole, *whole.parents):
            changes.append(Change(kind, str(whole.relative_to(folder)), content))

    def noted_sync(path: Path) -> None:
        sync(path)
        note("flush", path)
        flushed.add(path)

    def noted_remove(path: Path, durable: bool = True) -> None:
        inside = sorted(path.rglob("*"), reverse=True) if path.is_dir() and not path.is_symlink() else []
        for gone in (*inside, path):
            if gone.exists():
                note("remove", gone)
        remove(path, durable)

    def noted_make(made: Path) -> list[Path]:
        for missing in reversed([place for place in (made, *made.parents) if not place.exists()]):
            note("name", missing)
        return make(made)

    def noted_replace(draft: Path, path: Path) -> Path:
        note("name", path, draft.read_bytes() if draft in flushed else b"")
        if draft not in flushed:
            note("content", path, draft.read_bytes())
        return replace(draft, path)

    def noted_append(path: Path, entry: Mapping[str, Any], end: int, sync: bool = True) -> int:
        end = append(path, entry, end, sync)
        note("content", path, path.read_bytes())
        if sync:
            note("flush", path)
        return end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "append", noted_append)
        for name, noted in {"sync": noted_sync, "remove": noted_remove, "make_folder": noted_make}.items():
            patch.setattr(files, name, noted)
        patch.setattr("cascadice.runs.store.remove", noted_remove)
        patch.setattr(Path, "replace", noted_replace)
        yield changes


def crashes(before: State, changes: list[Change]) -> Iterator[tuple[str, State]]:
    """Everything that may be on disk if the power fails at any moment of these changes, each state once."""
    seen: list[State] = []
    for moment in range(len(changes) + 1):
        done = changes[:moment]
        pending = [place for place, change in enumerate(done) if not _durable(change, done[place:])]
        for lost in _some_of(pending):
            state = _replayed(before, (change for place, change in enumerate(done) if place not in lost))
            if state not in seen:
                seen.append(state)
                last = f"{done[-1].kind} {done[-1].path}" if done else "nothing"
                yield f"after {moment} changes ({last}), without {[done[place].path for place in lost]}", state


def unflushed(changes: list[Change]) -> list[str]:
    """The names that a crash after all of these changes could lose."""
    return [change.path for place, change in enumerate(changes) if not _durable(change, changes[place:])]


def _durable(change: Change, later: list[Change]) -> bool:
    """Whether a change survives; one in a folder that is removed later does when the removal does."""
    folder = str(Path(change.path).parent)
    needed = change.path if change.kind == "content" else folder
    if change.kind == "flush" or change.path == "." or Change("flush", needed) in later:
        return True
    removed = Change("remove", folder)
    return removed in later and _durable(removed, later[later.index(removed) :])


def _some_of(places: list[int]) -> Iterator[tuple[int, ...]]:
    """What may be lost: anything, if it is little; else nothing, everything, each alone, and everything but one."""
    count = len(places)
    sizes = range(count + 1) if count <= 4 else (0, 1, count - 1, count)
    for size in sizes:
        yield from combinations(places, size)


def _replayed(before: State, changes: Iterator[Change]) -> State:
    state = dict(before)
    for kind, path, content in changes:
        if kind == "name" or (kind == "content" and path in state):
            state[path] = content
        elif kind == "remove":
            state.pop(path, None)
    folders = {path for path, content in state.items() if content is None} | {"."}
    return {path: content for path, content in state.items() if str(Path(path).parent) in folders and path != "."}
