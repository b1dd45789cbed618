"""Influence as a page shows it: who, on whom, how far, how surely; from every folder of influence in a run's own."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascadice.influence import Table, concatenate, parts, read_note, read_table
from cascadice.influence.tables import ALL, NOTE
from cascadice.report.page.numbers import Json, evenly, plain, short
from cascadice.runs.folder import INFLUENCE
from cascadice.runs.store import RoundMetrics
from cascadice.runs.summary import InfluenceSummary, findings

NETWORK_UP_TO = 64  # participants; of more, those with the most influence
ENTRIES = 100_000  # of cascades
POINTS = 4_000  # of a scatter
ROWS = 20_000  # of the table
COLUMNS = ("folder", "kind", "round", "source", "sample", "hop", "receiver", "value")


class Asked(NamedTuple):
    """A folder of influence, read."""

    name: str
    note: dict[str, str]
    table: Table
    findings: InfluenceSummary


def read(
    folder: Path, run: str, nodes: int, measures: Sequence[RoundMetrics], known: dict[int, str], notes: list[str]
) -> list[Asked]:
    """The influence of this run in its folder and those within, first the one that says most: whom it reached."""
    found = []
    for place in sorted(
        {path.parent for path in folder.glob(f"*/{NOTE}")}, key=lambda p: (p.name != INFLUENCE, p.name)
    ):
        try:
            if parts(place) and _is_of(place, run, notes):
                rows = read_table(place)
                found.append(Asked(place.name, read_note(place), rows, findings(rows, nodes, measures, known)))
        except (ValueError, OSError) as error:
            notes.append(f"The influence in {place.name} is not shown: {error}")
    return sorted(found, key=lambda asked: not asked.findings.given)


def _is_of(place: Path, run: str, notes: list[str]) -> bool:
    if read_note(place).get("run") == run:
        return True
    notes.append(f"The influence in {place.name} is not shown: it is of another run.")
    return False


def shown(asked: Sequence[Asked], nodes: int) -> list[int]:
    """The participants that are drawn: all, or of too many those with the most influence."""
    if nodes <= NETWORK_UP_TO or not asked:
        return list(range(min(nodes, NETWORK_UP_TO)))
    totals = next(iter(asked[0].findings.participants.values()))
    strongest = np.argsort(-np.abs(np.nan_to_num(totals)), kind="stable")[:NETWORK_UP_TO]
    return sorted(strongest.tolist())


def influence(asked: Sequence[Asked], shown: Sequence[int]) -> Json | None:
    """What the first folder says: totals, cascades, decay, and estimates beside the truth."""
    if not asked:
        return None
    name, note, rows, found = asked[0]
    cascades, rounds = _cascades(rows, found, shown)
    return {
        "folder": name,
        "question": note,
        "kinds": list(found.updates),
        "rounds": rounds,
        "all rounds": list(found.rounds),
        "totals": {kind: short(values) for kind, values in found.participants.items()},
        "hops": max((len(values) - 1 for values in found.by_hop.values()), default=0),
        "decay": {kind: short(values) for kind, values in found.by_hop.items()},
        "cascades": cascades,
        "agreements": plain({kind: a._asdict() for kind, a in found.agreements.items()}),
        "points": _points(found),
        "judged": plain([j._asdict() for j in found.judged]),
    }


def _cascades(rows: Table, found: InfluenceSummary, shown: Sequence[int]) -> tuple[Json, list[int]]:
    """kind -> columns; round −1 is the sum over all, receiver −1 everybody who is not drawn.

    Kinds are left out from the least trusted on, then rounds, until there is room.
    """
    rows = rows.select(sample=ALL)
    entries = {kind: _entries(rows.select(kind=kind), shown) for kind in found.updates}
    summed = {kind: _summed(columns, keep=(1, 2, 3)) for kind, columns in entries.items()}
    while len(summed) > 1 and sum(len(columns[-1]) for columns in summed.values()) > ENTRIES:
        summed.popitem()
    room = ENTRIES - sum(len(columns[-1]) for columns in summed.values())
    largest = sum(len(entries[kind][-1]) for kind in summed) / len(found.rounds)
    chosen = [found.rounds[place] for place in evenly(len(found.rounds), int(max(room, 0) // max(largest, 1)))]
    result = {}
    for kind, total in summed.items():
        keep = np.isin(entries[kind][0], chosen)
        both = [np.concatenate([a, b[keep]]) for a, b in zip(_strongest(total), entries[kind], strict=True)]
        names = ("round", "source", "hop", "receiver")
        result[kind] = dict(zip(names, (column.astype(int).tolist() for column in both), strict=False))
        result[kind]["value"] = short(both[-1])
    return result, chosen


Columns = tuple[NDArray[np.float64], ...]


def _entries(rows: Table, shown: Sequence[int]) -> Columns:
    """(round, source, hop, receiver, value) of the sources shown; receivers that are not are one, −1."""
    rows = rows.select(source=list(shown))
    receiver = np.where(np.isin(rows.receiver, list(shown)), rows.receiver, ALL)
    columns = (rows.round, rows.source, rows.hop, receiver, rows.value)
    return _summed(tuple(column.astype(np.float64) for column in columns), keep=(0, 1, 2, 3))


def _summed(columns: Columns, keep: Iterable[int]) -> Columns:
    """Sums of the last column over rows that agree in the columns kept; −1 in the others."""
    kept, code = tuple(keep), np.zeros(len(columns[-1]), dtype=np.int64)
    for place in kept:  # one number for each different row: sorting rows as they are takes ten times as long
        values, which = np.unique(columns[place], return_inverse=True)
        code = code * len(values) + which
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    total = np.bincount(which, columns[-1], minlength=len(first)).astype(np.float64)
    others = np.full(len(first), float(ALL))
    return (*(columns[place][first] if place in kept else others for place in range(len(columns) - 1)), total)


def _strongest(columns: Columns, most: int = ENTRIES) -> Columns:
    if len(columns[-1]) <= most:
        return columns
    keep = np.sort(np.argsort(-np.abs(columns[-1]), kind="stable")[:most])
    return tuple(column[keep] for column in columns)


def _points(found: InfluenceSummary) -> Json | None:
    """Every update's influence by every kind, beside the truth."""
    if not found.agreements:
        return None
    size = found.updates["truth"].size
    some = np.array(evenly(size, POINTS))
    rounds, source = np.unravel_index(some, found.updates["truth"].shape)
    values = {kind: short(found.updates[kind].ravel()[some]) for kind in ("truth", *found.agreements)}
    return {"round": [found.rounds[i] for i in rounds], "source": source.tolist(), "values": values, "of": size}


def table(asked: Sequence[Asked]) -> Json | None:
    """The rows of all folders; where they are too many, summed over rounds, and of those the largest."""
    if not asked:
        return None
    rows = concatenate(one.table for one in asked)
    folders = np.repeat(np.arange(len(asked)), [len(one.table) for one in asked])
    kinds, kind = np.unique(rows.kind.astype(str), return_inverse=True)
    numbers = (rows.round, rows.source, rows.sample, rows.hop, rows.receiver, rows.value)
    columns: Columns = tuple(np.asarray(column, dtype=np.float64) for column in (folders, kind, *numbers))
    note = ""
    if len(rows) > ROWS:
        note, columns = f"Summed over rounds: the table has {len(rows):,} rows.", _summed(columns, (0, 1, 3, 4, 5, 6))
    if len(columns[-1]) > ROWS:
        note = f"Summed over rounds, the {ROWS:,} largest: the table has {len(rows):,} rows."
        columns = _strongest(columns, ROWS)
    whole = [column.astype(np.int64).tolist() for column in columns[:-1]]
    return {
        "columns": COLUMNS,
        "words": {"folder": [one.name for one in asked], "kind": kinds.tolist()},
        "sums": COLUMNS[2:-1],
        "values": [*whole, short(columns[-1])],
        "note": note,
    }
