"""A ledger of contributions: who helped by how much, round by round and sample by sample; negative helped.

A ledger's folder
    chain.jsonl              what the ledger is of, then a line for each part, each sealed with the one before it
    part-00000007.parquet    the rows of round 7: round, participant, sample (-1: the whole update), value
Nothing is ever taken back: a part that was damaged is entered again, on a line of its own. One writer a folder.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from cascadice import files
from cascadice.applications.reward.contributions import Entry
from cascadice.names import lookup

FORMAT = "cascadice-ledger-1"
CHAIN = "chain.jsonl"
ALL = -1
TYPES: Mapping[str, type[np.generic]] = {
    "round": np.int32,
    "participant": np.int32,
    "sample": np.int64,
    "value": np.float64,
}
Columns = dict[str, NDArray[Any]]


class Link(NamedTuple):
    """A line of the chain: which round was entered, its part's size and digest, and the seal of all lines so far."""

    round: int
    bytes: int
    sha256: str
    seal: str


@dataclass(frozen=True, eq=False)
class Ledger:
    """A ledger as it was found on disk: its rows, in the order of rounds, and what is wrong with it."""

    folder: Path
    note: dict[str, str]
    links: tuple[Link, ...]
    rows: Columns
    problems: dict[int, str]
    """round -> what is wrong with its part, whose rows are left out"""

    @property
    def rounds(self) -> list[int]:
        """The rounds that are entered and whole."""
        found: list[int] = np.unique(self.rows["round"]).tolist()
        return found

    @property
    def seal(self) -> str:
        """The digest of everything that was ever entered; kept elsewhere, it shows if lines at the end are missing."""
        return self.links[-1].seal if self.links else _opening(self.note)


def enter(folder: files.Folder, note: Mapping[str, str], entries: Iterable[Entry]) -> None:
    """Add entries, each all there or not at all; `note` says what the ledger is of, and another's is refused.

    A round that is entered again replaces what was said of it; the chain keeps both lines.
    """
    place = Path(folder)
    if (place / CHAIN).exists():
        seal = _check_note(read_ledger(place), note).seal
    else:
        check_free(place)
        with files.aside(place / CHAIN) as draft:
            draft.write_text(_header(note) + "\n", encoding="utf-8")
        seal = _opening(note)
    files.sweep(place)
    for entry in entries:
        path = _part(place, entry.round)
        _write_part(path, _columns(entry))
        content = path.read_bytes()
        link = _linked(seal, entry.round, len(content), hashlib.sha256(content).hexdigest())
        _append(place / CHAIN, json.dumps(link._asdict()))
        seal = link.seal


def check_free(folder: files.Folder) -> None:
    """Whether a ledger may be started in the folder: a table of influence has parts of the same names."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file; a ledger needs a folder. Choose another (--ledger).")
    if place.exists() and any(not path.name.startswith(".tmp-") for path in place.iterdir()):  # a killed writer's
        raise ValueError(f"{place} holds other files; a ledger needs a folder of its own. Choose another (--ledger).")


def read_ledger(folder: files.Folder, note: Mapping[str, str] | None = None, seal: str | None = None) -> Ledger:
    """The ledger in a folder, verified: parts that are missing, truncated or altered are named, the rest is kept.

    A chain that was altered is refused, as is a ledger of another `note`, or one whose chain does not pass a `seal`
    that was kept elsewhere: lines at its end are missing.
    """
    place = Path(folder)
    if not (place / CHAIN).exists():
        raise FileNotFoundError(f"{place} holds no ledger: {CHAIN} is not there. Make one with cascadice reward.")
    header, *lines = _lines(place / CHAIN)
    links = _verified(place, header, lines)
    latest = {link.round: link for link in links}
    problems, parts = {}, [_empty()]
    for t, link in sorted(latest.items()):
        content = _part(place, t).read_bytes() if _part(place, t).exists() else None
        if (problem := _problem(_part(place, t).name, content, link)) is not None:
            problems[t] = problem
        elif content is not None:
            parts.append(_read_part(content))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in TYPES}
    found = Ledger(place, header["note"], tuple(links), rows, problems)
    if seal is not None and seal not in (_opening(found.note), *(link.seal for link in links)):
        raise ValueError(f"{place} does not contain what was sealed by {seal[:12]}…: parts at its end were removed.")
    return found if note is None else _check_note(found, note)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the chain; one that a killed writer left unfinished, at the end, was never entered."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    found = []
    for number, line in enumerate(whole.split("\n"), start=1):
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ValueError(f"line {number} of {path} is not readable. Restore the file, or start a ledger elsewhere.")
        found.append(content)
    return found


def _verified(place: Path, header: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[Link]:
    if header.get("format") != FORMAT or not isinstance(header.get("note"), dict):
        raise ValueError(f"{place / CHAIN} must begin with a ledger's header of format {FORMAT}; found {dict(header)}.")
    links: list[Link] = []
    for number, line in enumerate(lines, start=2):
        before = links[-1].seal if links else _opening(header["note"])
        expected = _linked(before, line.get("round"), line.get("bytes"), line.get("sha256"))
        if dict(line) != expected._asdict():
            raise ValueError(
                f"line {number} of {place / CHAIN} does not follow from those before it: some were altered or removed. "
                "Restore the file, or start a ledger elsewhere."
            )
        links.append(expected)
    return links


def _linked(before: str, t: Any, size: Any, sha256: Any) -> Link:
    return Link(t, size, sha256, hashlib.sha256(f"{before} {t} {size} {sha256}".encode()).hexdigest())


def _header(note: Mapping[str, str]) -> str:
    return json.dumps({"format": FORMAT, "note": dict(note)}, sort_keys=True)


def _opening(note: Mapping[str, str]) -> str:
    return hashlib.sha256(_header(note).encode()).hexdigest()


def _check_note(found: Ledger, note: Mapping[str, str]) -> Ledger:
    if found.note != dict(note):
        differs = next(name for name in (*note, *found.note) if note.get(name) != found.note.get(name))
        what = "another run" if differs == "run" else "other settings"
        raise ValueError(
            f"{found.folder} is the ledger of {what}: {differs} is {found.note.get(differs)!r} there, "
            f"{note.get(differs)!r} here. Keep this one in another folder (--ledger)."
        )
    return found


def _problem(name: str, content: bytes | None, link: Link) -> str | None:
    if content is None:
        return f"{name} is missing"
    if len(content) < link.bytes:
        return f"{name} is truncated: {len(content)} of {link.bytes} bytes"
    return None if hashlib.sha256(content).hexdigest() == link.sha256 else f"{name} was altered after it was entered"


def _append(chain: Path, line: str) -> None:
    """A line at the end, over what a killed writer left of one, on disk when this returns."""
    with chain.open("r+b") as file:
        file.seek(file.read().rfind(b"\n") + 1)
        file.truncate()
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _part(place: Path, t: int) -> Path:
    return place / f"part-{t:08d}.parquet"


def _empty() -> Columns:
    return {name: np.empty(0, dtype=kind) for name, kind in TYPES.items()}


def _columns(entry: Entry) -> Columns:
    """A row for each participant's whole update, then one for each sample that was drawn."""
    whole = entry.participants.detach().cpu().double().numpy()
    who, which, value = np.arange(len(whole)), np.full(len(whole), ALL), whole
    if entry.samples is not None and entry.draw is not None:
        who = np.concatenate([who, np.repeat(who, entry.draw.shape[1])])
        which = np.concatenate([which, entry.draw.reshape(-1).numpy()])
        value = np.concatenate([value, entry.samples.detach().cpu().double().reshape(-1).numpy()])
    if not np.isfinite(value).all():
        raise ValueError(
            f"a ledger takes finite contributions; found {value[~np.isfinite(value)][0]} in round {entry.round}."
        )
    found = {"round": np.full(len(value), entry.round), "participant": who, "sample": which, "value": value}
    return {name: column.astype(TYPES[name]) for name, column in found.items()}


def _write_part(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with files.aside(path) as draft:
        parquet.write_table(pa.table(columns), draft)


def _read_part(content: bytes) -> Columns:
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content))
    return {name: table[name].to_numpy() for name in TYPES}


def totals(ledger: Ledger, *by: str) -> Columns:
    """Contributions summed by any of "round", "participant" and "sample", with how many `entries` each sum has.

    With "sample" it is samples that are summed, otherwise whole updates; samples must have been entered for that.
    """
    for name in by:
        lookup({name: None for name in TYPES if name != "value"}, name, "column")
    single = "sample" in by
    keep = (ledger.rows["sample"] != ALL) == single
    if not keep.any():
        how = " with --samples" if single else ""
        raise ValueError(f"{ledger.folder} has no such entries to sum. Enter some{how}.")
    keys = np.stack([ledger.rows[name][keep] for name in by] or [np.zeros(keep.sum(), dtype=np.int64)])
    groups, which, entries = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    value = np.bincount(which.ravel(), ledger.rows["value"][keep], groups.shape[1])
    return {**{name: groups[place] for place, name in enumerate(by)}, "entries": entries, "value": value}


def by_round(ledger: Ledger) -> Float[Tensor, "rounds n"]:
    """Everybody's contribution in every round that was entered: what `payouts.pay` takes."""
    found = totals(ledger, "round", "participant")
    return torch.from_numpy(found["value"]).view(len(ledger.rounds), -1)
