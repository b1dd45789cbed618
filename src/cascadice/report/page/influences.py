"""Influence as the page shows it, from all tables of a run: who influenced whom, how far, how accurately."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascadice.applications.plain import Json, evenly, in_order, plain, short
from cascadice.influence.tables import ALL, NOTE, Table, concatenate, parts, read_note, read_table
from cascadice.influence.uncertainty import half_width
from cascadice.runs.folder import INFLUENCE, WHOLE_RUN, check_length
from cascadice.runs.question import length_in
from cascadice.runs.round_metrics import RoundMetrics
from cascadice.runs.summary import InfluenceSummary, read_doubt, read_training_change, summarise
from cascadice.runs.words import caution

NETWORK_UP_TO = 64  # participants; if there are more, those with the most influence
ENTRIES = 100_000  # of cascades
POINTS = 4_000  # of a scatter
ROWS = 20_000  # of the table
COLUMNS = ("folder", "kind", "round", "source", "sample", "hop", "receiver", "value")


class Influences(NamedTuple):
    """The table in a folder that `cascadice influence` wrote, with its summary and note."""

    name: str
    table: Table
    summary: InfluenceSummary
    note: Mapping[str, Any] = {}


def read(
    folders: Sequence[Path], run: str, nodes: int, metrics: Sequence[RoundMetrics], injected: dict[int, str],
    sees_scale: bool, notes: list[str],
) -> list[Influences]:  # fmt: skip
    """Read every table of influence of this run; those with receivers come first.

    If several processes wrote a table, their rows are put together.
    """
    read = []
    names = {path.parent.name for folder in folders for path in folder.glob(f"*/{NOTE}")}
    for name in in_order(names, [INFLUENCE, WHOLE_RUN], str):
        try:
            tables = [folder / name for folder in folders if parts(folder / name)]
            for table in tables:
                _check(table, run)
            if tables:
                rows = concatenate(map(read_table, tables))
                kind = np.where(rows.kind == "whole-run at 1", "whole-run", rows.kind).astype(object)
                change, note, rows = read_training_change(tables[0]), read_note(tables[0]), replace(rows, kind=kind)
                summary = summarise(rows, nodes, metrics, injected, change, sees_scale, note)
                read.append(Influences(name, rows, summary._replace(doubt=read_doubt(tables[0])), note))
        except (ValueError, OSError) as error:
            notes.append(f"The influence in {name} is not shown: {error}")
    return sorted(read, key=lambda one: not one.summary.matrix)


def _check(folder: Path, run: str) -> None:
    """Raise ValueError if a table is of another run, or if it is not about the final models or lacks rounds."""
    note, scored = read_note(folder), len(parts(folder))
    if note.get("run") != run:
        raise ValueError("it belongs to another run.")
    length = length_in(note)
    check_length(folder.parent, length)
    if length is not None and scored < length:
        raise ValueError(f"it was stopped at {scored} of {length} rounds. Repeat the command to finish.")


def shown(read: Sequence[Influences], nodes: int) -> list[int]:
    """The participants to draw: all, or those with the most influence if there are too many."""
    if nodes <= NETWORK_UP_TO or not read:
        return list(range(min(nodes, NETWORK_UP_TO)))
    totals = next(iter(read[0].summary.participants.values()))
    return sorted(np.argsort(-np.abs(np.nan_to_num(totals)), kind="stable")[:NETWORK_UP_TO].tolist())


def influence(read: Sequence[Influences], shown: Sequence[int]) -> Json | None:
    """Cascades, decay by hop and agreement with the truth of the first table, and the cascades of whole-run influence.

    For each kind, `scored` says which `rounds` can be shown, how many were `summed`, over how many `hops`, and how
    many standard deviations of a round make half of a total's 95 % interval (None if there is one round).
    """
    if not read:
        return None
    summary = read[0].summary
    final = [] if summary.whole_run else [one for one in read if one.summary.whole_run][:1]
    tables = [*final, read[0]]
    cascades, scored = dict[str, Json](), dict[str, Json]()
    for one in tables:
        ours, rounds = _cascades(one.table, one.summary, shown, ENTRIES // len(tables))
        cascades |= ours
        about = {"rounds": rounds, "summed": len(one.summary.rounds)}
        factor = plain(half_width(len(one.summary.rounds), len(rounds)))
        hops = {kind: len(one.summary.by_hop.get(kind, [0])) - 1 for kind in ours}
        scored |= {kind: {**about, "hops": hops[kind], "half width": factor} for kind in ours}
    return {
        "folder": read[0].name,
        "kinds": list(summary.updates),
        "models": tables[0].summary.models,
        "rounds": rounds,
        "all rounds": list(summary.rounds),
        "totals": {kind: short(values) for kind, values in summary.participants.items()},
        "hops": max((len(values) - 1 for values in summary.by_hop.values()), default=0),
        "decay": {kind: short(values) for kind, values in summary.by_hop.items()},
        "cascades": cascades,
        "scored": scored,
        "agreements": plain({kind: a._asdict() for kind, a in summary.agreements.items()}),
        "within": {kind: short(values) for kind, values in summary.within_rounds.items()},
        "points": _points(summary),
        "tests": plain([one._asdict() for one in summary.test_results]),
    }


def _cascades(
    rows: Table, summary: InfluenceSummary, shown: Sequence[int], most: int
) -> tuple[dict[str, Json], list[int]]:
    """kind -> columns, and the rounds kept: if there are too many entries, the least trusted kinds go, then rounds.

    Round −1 is the sum over all; receiver −1 stands for all that are not drawn.
    """
    rows = rows.select(sample=ALL)
    entries = {kind: _entries(rows.select(kind=kind), shown) for kind in summary.updates}
    summed = {kind: _summed(columns, keep=(1, 2, 3)) for kind, columns in entries.items()}
    while len(summed) > 1 and sum(len(columns[-1]) for columns in summed.values()) > most:
        summed.popitem()
    space = most - sum(len(columns[-1]) for columns in summed.values())
    per_round = sum(len(entries[kind][-1]) for kind in summed) / len(summary.rounds)
    chosen = [summary.rounds[place] for place in evenly(len(summary.rounds), int(max(space, 0) // max(per_round, 1)))]
    result = {}
    for kind, total in summed.items():
        keep = np.isin(entries[kind][0], chosen)
        *whole, value = (
            np.concatenate([a, b[keep]]) for a, b in zip(_strongest(total, most), entries[kind], strict=True)
        )
        numbers = zip(("round", "source", "hop", "receiver"), whole, strict=True)
        result[kind] = {**{name: column.astype(int).tolist() for name, column in numbers}, "value": short(value)}
    return result, chosen


Columns = tuple[NDArray[np.float64], ...]


def _entries(rows: Table, shown: Sequence[int]) -> Columns:
    """(round, source, hop, receiver, value) of the sources shown; receivers that are not shown become −1."""
    rows = rows.select(source=list(shown))
    receiver = np.where(np.isin(rows.receiver, list(shown)), rows.receiver, ALL)
    columns = (rows.round, rows.source, rows.hop, receiver, rows.value)
    return _summed(tuple(column.astype(np.float64) for column in columns), keep=(0, 1, 2, 3))


def _summed(columns: Columns, keep: Iterable[int]) -> Columns:
    """Sum the last column over rows that agree in the columns kept; the others become −1."""
    kept, code = tuple(keep), np.zeros(len(columns[-1]), dtype=np.int64)
    for place in kept:  # one integer code for each different row: sorting whole rows takes ten times as long
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


def _points(summary: InfluenceSummary) -> Json | None:
    """Every update's influence by each estimator, beside the truth."""
    if not summary.agreements:
        return None
    size = summary.updates["truth"].size
    kept = np.array(evenly(size, POINTS))
    rounds, source = np.unravel_index(kept, summary.updates["truth"].shape)
    values = {kind: short(summary.updates[kind].ravel()[kept]) for kind in ("truth", *summary.agreements)}
    return {"round": [summary.rounds[i] for i in rounds], "source": source.tolist(), "values": values, "of": size}


def table(read: Sequence[Influences]) -> Json | None:
    """The rows of all tables; if there are too many, sums over rounds; if still too many, the largest of them."""
    if not read:
        return None
    rows = concatenate(one.table for one in read)
    folders = np.repeat(np.arange(len(read)), [len(one.table) for one in read])
    kinds, kind = np.unique(rows.kind.astype(str), return_inverse=True)
    numbers = (rows.round, rows.source, rows.sample, rows.hop, rows.receiver, rows.value)
    columns: Columns = tuple(np.asarray(column, dtype=np.float64) for column in (folders, kind, *numbers))
    note = ""
    if len(rows) > ROWS:
        note = f"Summed over rounds, because the table has {len(rows):,} rows."
        columns = _summed(columns, (0, 1, 3, 4, 5, 6))
    if len(columns[-1]) > ROWS:
        note = f"Summed over rounds, the {ROWS:,} largest only, because the table has {len(rows):,} rows."
        columns = _strongest(columns, ROWS)
    whole = [column.astype(np.int64).tolist() for column in columns[:-1]]
    return {
        "columns": COLUMNS,
        "words": {"folder": [one.name for one in read], "kind": kinds.tolist()},
        "sums": COLUMNS[2:-1],
        "values": [*whole, short(columns[-1])],
        "note": note,
        "caution": next(filter(None, (caution(one.summary) for one in read)), ""),
    }
