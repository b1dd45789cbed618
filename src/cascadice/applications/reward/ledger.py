"""The ledger: an append-only record on disk of who contributed how much, by round and by sample. Negative helped.

A ledger's folder
    chain.jsonl              a header that describes the ledger, then a line for each part that was entered;
                             each line's seal is a digest of the line and of the seal before it
    part-00000007.parquet    the rows of round 7: round, participant, sample (-1: the whole update), value
Lines are never removed: a damaged part is entered again, on a new line. A folder has one writer at a time.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import files
from cascadice.applications.reward.contributions import DTYPES, Columns, Entry, columns_of
from cascadice.files import checksums, jsonl
from cascadice.files.digests import check_ordinary
from cascadice.files.locks import LOCK
from cascadice.influence.tables import ALL
from cascadice.names import lookup
from cascadice.runs.folder import CHAIN, locked_for_writing

FORMAT = "cascadice-ledger-1"
NOTE_DEFAULTS: Mapping[str, str] = {"samples": "false", "eval-samples": "all"}
"""Settings that the header omits at these values, so that ledgers from before a setting existed stay readable."""

RESTORE = "Restore it from a copy, or enter the rounds into another ledger (--ledger)"


class ChainLine(NamedTuple):
    """One line of the chain: the round, the size and digest of its part, and the seal over all lines so far.

    `hmac` signs the seal with a secret key; empty if the line was entered without one.
    """

    round: int
    bytes: int
    sha256: str
    seal: str
    hmac: str = ""


@dataclass(frozen=True, eq=False)
class Ledger:
    """A ledger as read from disk.

    Attributes:
        note: What the ledger describes: the run, the kind of contribution and its settings.
        chain: One line for each part ever entered, in order.
        seal: A digest of everything entered. A copy kept elsewhere reveals whether lines were removed from the end.
        rows: All undamaged rows, ordered by round.
        problems: Round -> what is wrong with its part; the rows of such rounds are left out.
    """

    folder: Path
    note: dict[str, str]
    chain: tuple[ChainLine, ...]
    seal: str
    rows: Columns
    problems: dict[int, str]

    @property
    def rounds(self) -> list[int]:
        """The rounds that were entered and are undamaged."""
        numbers: list[int] = np.unique(self.rows["round"]).tolist()
        return numbers


def enter(
    folder: files.Folder, note: Mapping[str, str], entries: Iterable[Entry], sign: Callable[[str], str] | None = None
) -> None:
    """Append entries to the ledger in a folder, or start a ledger. An entry is written whole or not at all.

    A round that is entered again replaces its rows; the chain keeps both lines.

    Args:
        folder: An empty or new folder, or one that holds a ledger with the same note.
        note: What the ledger describes; at least "run" and "kind".
        entries: From `contributions.by_whole_run`, `by_shares` or `by_horizon`; all finite.
        sign: Signs a seal with a secret key: `partial(seals.signature, key)`.

    Example:
        >>> enter("ledger", {"run": "mine", "kind": "shares, 1 hop"}, [by_shares(network, rounds[:1], evaluation)])
        >>> by_round(read_ledger("ledger")).shape
    """
    import pyarrow as pa
    from pyarrow import parquet

    folder = Path(folder)
    with locked_for_writing(folder):
        if (folder / CHAIN).exists():
            seal = read_ledger(folder, note).seal
        else:
            check_free(folder)
            header = _header({name: value for name, value in note.items() if NOTE_DEFAULTS.get(name) != value})
            with files.replacing(folder / CHAIN) as draft:
                draft.write_text(header + "\n", encoding="utf-8")
            seal = _digest(header.encode())
        end = len(jsonl.complete((folder / CHAIN).read_bytes()))
        for entry in entries:
            columns, path = columns_of(entry), _part(folder, entry.round)
            with files.replacing(path) as draft:
                parquet.write_table(pa.table(columns), draft)
            content = path.read_bytes()
            line = _sealed(seal, entry.round, len(content), _digest(content))
            line = line if sign is None else line._replace(hmac=sign(line.seal))
            fields = {name: value for name, value in line._asdict().items() if value != ""}
            end = jsonl.append(folder / CHAIN, fields, end)
            seal = line.seal


def check_free(folder: files.Folder) -> None:
    """Raise ValueError if the folder holds other files, such as an influence table, whose parts have the same names."""
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; a ledger needs a folder. Choose another (--ledger).")
    if any(path.name != LOCK and not files.DRAFT.fullmatch(path.name) for path in folder.iterdir()):
        raise ValueError(f"{folder} holds other files; a ledger needs a folder of its own. Choose another (--ledger).")


def ledger_note(folder: files.Folder) -> dict[str, str]:
    """The note of the ledger in a folder, from its header alone."""
    return _complete(_read_chain(Path(folder) / CHAIN)[0])


def _complete(note: Mapping[str, str]) -> dict[str, str]:
    """A note with its defaults. Older versions called whole-run-shares whole-run."""
    kind = note["kind"].replace("whole-run, ", "whole-run-shares, ") if "kind" in note else ""
    return {**NOTE_DEFAULTS, **note, **({"kind": kind} if kind else {})}


def read_ledger(folder: files.Folder, note: Mapping[str, str] | None = None, seal: str | None = None) -> Ledger:
    """Read and verify a ledger. Missing, truncated or altered parts are listed in `problems`; the others are read.

    Args:
        note: The note that the ledger must have; not checked by default.
        seal: A seal kept from an earlier reading, to check that nothing was removed since.

    Returns:
        The ledger; `problems` lists damaged parts.

    Raises:
        FileNotFoundError: If there is no ledger.
        ValueError: If the chain was altered, a part disagrees with the run's list of checksums, the ledger has another
            note, or its chain does not contain `seal`.

    Example:
        >>> read_ledger("runs/demo/ledger").problems  # doctest: +SKIP
        {}
    """
    folder = Path(folder)
    if not (folder / CHAIN).exists():
        raise FileNotFoundError(f"{folder} holds no ledger: there is no {CHAIN}. Make one with cascadice reward.")
    header, first_seal, chain = _read_chain(folder / CHAIN)
    problems, parts = {}, [{name: np.empty(0, dtype=dtype) for name, dtype in DTYPES.items()}]
    for t, line in sorted({line.round: line for line in chain}.items()):
        path = _part(folder, t)
        content = path.read_bytes() if path.is_file() else None
        if content is None:
            problems[t] = f"{path.name} is missing"
        elif len(content) < line.bytes:
            problems[t] = f"{path.name} is truncated: {len(content)} of {line.bytes} bytes"
        elif _digest(content) != line.sha256:
            problems[t] = f"{path.name} was altered after it was entered"
        else:
            checksums.verify(path, remedy=RESTORE)
            parts.append(_read_part(content))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in DTYPES}
    seals, there = (first_seal, *(line.seal for line in chain)), _complete(header)
    if seal is not None and seal not in seals:
        raise ValueError(f"{folder} lacks the entries sealed by {seal[:12]}…: lines were removed from its chain's end.")
    expected = there if note is None else _complete(note)
    for name in (*expected, *there):
        if expected.get(name) != there.get(name):
            raise ValueError(
                f"{folder} is the ledger of {'another run' if name == 'run' else 'other settings'}: its {name} is "
                f"{there.get(name)!r}, not {expected.get(name)!r}. Keep the new ledger in another folder (--ledger)."
            )
    return Ledger(folder, there, chain, seals[-1], rows, problems)


def _read_chain(path: Path) -> tuple[dict[str, str], str, tuple[ChainLine, ...]]:
    """The header's note and seal, and the lines; ValueError unless each line follows from those before it."""
    remedy = "Restore the file, or start a ledger elsewhere."
    check_ordinary(path)
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(jsonl.complete(path.read_bytes()).split(b"\n")[:-1], start=1):
        content = None
        with suppress(ValueError):
            content = jsonl.parse(text)
        if not isinstance(content, dict):
            raise ValueError(f"line {number} of {path} is not readable. {remedy}")
        lines.append(content)
    header, *rest = lines
    if header.get("format") != FORMAT or not isinstance(header.get("note"), dict):
        raise ValueError(f"{path} must begin with a ledger's header of format {FORMAT}; found {header}.")
    first_seal = seal = _digest(_header(header["note"]).encode())
    chain: list[ChainLine] = []
    for number, line in enumerate(rest, start=2):
        expected = _sealed(seal, line.get("round"), line.get("bytes"), line.get("sha256"), line.get("hmac", ""))
        if {"hmac": "", **line} != expected._asdict() or not isinstance(expected.hmac, str):
            altered = "does not follow from those before it: lines were altered or removed"
            raise ValueError(f"line {number} of {path} {altered}. {remedy}")
        chain.append(expected)
        seal = expected.seal
    return header["note"], first_seal, tuple(chain)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _header(note: Mapping[str, str]) -> str:
    return json.dumps({"format": FORMAT, "note": dict(note)}, sort_keys=True)


def _sealed(before: str, t: Any, size: Any, sha256: Any, hmac: Any = "") -> ChainLine:
    return ChainLine(t, size, sha256, _digest(f"{before} {t} {size} {sha256}".encode()), hmac)


def _part(folder: Path, t: int) -> Path:
    return folder / f"part-{t:08d}.parquet"


def _read_part(content: bytes) -> Columns:
    """The rows of a round, from the content of its file."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    no_samples = np.full(table.num_rows, ALL, dtype=np.int64)  # older versions wrote parts without this column
    return {"sample": no_samples, **columns}


def totals(ledger: Ledger, *by: str) -> Columns:
    """Sum contributions by any of "round", "participant" and "sample".

    Args:
        by: Names of columns. With "sample", sum the rows of samples; otherwise those of whole updates.

    Returns:
        A column for each name in `by`, then "entries", which counts the terms of each sum, and "value".

    Example:
        >>> totals(read_ledger("runs/demo/ledger"), "participant")["value"]  # doctest: +SKIP
    """
    for name in by:
        lookup({name: None for name in DTYPES if name != "value"}, name, "column")
    of_samples = "sample" in by
    keep = (ledger.rows["sample"] != ALL) == of_samples
    if not keep.any():
        what, how = ("samples", " with --samples") if of_samples else ("updates", "")
        raise ValueError(f"{ledger.folder} has no entries of {what} to sum. Enter some{how}.")
    keys = np.stack([ledger.rows[name][keep] for name in by] or [np.zeros(keep.sum(), dtype=np.int64)])
    groups, group, entries = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    value = np.bincount(group.ravel(), ledger.rows["value"][keep], groups.shape[1])
    return {**{name: groups[place] for place, name in enumerate(by)}, "entries": entries, "value": value}


def by_round(ledger: Ledger) -> Float[Tensor, "rounds n"]:
    """Everyone's contribution in every round of the ledger; the input of `payouts.pay`.

    Args:
        ledger: From `read_ledger`.

    Returns:
        `[round, participant]`; negative helped.

    Example:
        >>> pay(by_round(read_ledger("runs/demo/ledger")), budget=1000.0)  # doctest: +SKIP
    """
    values = totals(ledger, "round", "participant")["value"]
    return torch.from_numpy(values).view(len(ledger.rounds), -1)
