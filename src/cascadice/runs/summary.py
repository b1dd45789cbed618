"""What a table of influence says: who helped, who harmed, how far it went, and how surely one knows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cascadice import files
from cascadice.engine.networks import Network
from cascadice.influence import Agreement, Table, agreement, extremes, read_table
from cascadice.influence.tables import ALL
from cascadice.runs import store
from cascadice.runs.store import RoundMetrics

Numbers = NDArray[np.float64]
PREFERRED = ("truth", "path-integrated", "shares", "first order")  # kinds, the most to be trusted first
FEWEST = 3  # updates or samples, to speak of agreement


class Judged(NamedTuple):
    """How good the network was after a round: accuracy, or loss where there is none."""

    t: int
    measure: str
    mean: float


class Sampled(NamedTuple):
    """A training sample in the hands of a participant, summed over its uses."""

    node: int
    sample: int
    uses: int
    value: float


class InfluenceSummary(NamedTuple):
    """Sums and means over the rounds of a table. Negative helped.

    Kinds are in order of trust; the first is the one that participants, and the matrix, are told by.
    """

    rounds: tuple[int, ...]
    updates: dict[str, Numbers]
    """kind -> [rounds, n]: the influence of each update on all, over all hops; NaN where not asked"""
    by_hop: dict[str, Numbers]
    """kind -> [hops + 1]: mean size of an update's influence on all it reached, hop by hop"""
    given: dict[str, Numbers]
    """kind -> [n, n]: of source on receiver from the first gossip on, summed over rounds and hops"""
    agreements: dict[str, Agreement]
    """estimate -> with the truth, update by update"""
    samples: dict[str, tuple[Sampled, ...]]
    """kind -> samples, the most helpful first"""
    sample_agreements: dict[str, Agreement]
    judged: tuple[Judged, ...] = ()
    known: dict[int, str] = {}
    """participant -> what it was told to do wrong, which no estimate is told"""

    @property
    def participants(self) -> dict[str, Numbers]:
        """kind -> [n]: the updates of each participant, summed."""
        return {kind: value.sum(0) for kind, value in self.updates.items()}


def findings(
    table: Table, nodes: int, measures: Sequence[RoundMetrics] = (), known: dict[int, str] | None = None
) -> InfluenceSummary:
    """Read a table of influence among `nodes` participants. Cost: a few passes over its rows."""
    rounds = tuple(np.unique(table.round).tolist())
    whole, single = _where(table, table.sample == ALL), _where(table, table.sample != ALL)
    updates = {kind: _updates(rows, rounds, nodes) for kind, rows in _by_kind(whole).items()}
    spread = _by_kind(_where(whole, whole.hop != ALL))
    scores = {kind: _sampled(rows) for kind, rows in _by_kind(single).items()}
    return InfluenceSummary(
        rounds,
        updates,
        {kind: _by_hop(rows, nodes) for kind, rows in spread.items()},
        {kind: _given(rows, nodes) for kind, rows in spread.items()},
        _agreements({kind: value.ravel() for kind, value in updates.items()}),
        scores,
        _agreements({kind: rows.value for kind, rows in _by_kind(single).items()}),  # each kind has the same rows
        _judged(measures, rounds),
        known or {},
    )


def read(folder: files.Folder, run: files.Folder, network: Network) -> InfluenceSummary:
    """The findings about a run in a folder of influence, with the network's accuracy as the run measured it."""
    measures = store.read_metrics(run) if (Path(run) / store.METRICS).exists() else []
    return findings(read_table(folder), network.nodes, measures, wrongs(network))


def wrongs(network: Network) -> dict[int, str]:
    """What participants were told to do wrong."""
    found: dict[int, list[str]] = {}
    told = [(wrong.kind, wrong.nodes) for wrong in network.corruptions]
    for kind, nodes in told + [(wrong.kind, wrong.nodes) for wrong in network.behaviours]:
        for node in nodes:
            found.setdefault(node, []).append(kind)
    return {node: ", ".join(kinds) for node, kinds in found.items()}


def _where(table: Table, keep: NDArray[np.bool_]) -> Table:
    return Table(**{name: column[keep] for name, column in table.columns.items()})


def _by_kind(table: Table) -> dict[str, Table]:
    kinds = sorted(set(table.kind.tolist()), key=lambda kind: (_trust(kind), kind))
    return {kind: _where(table, table.kind == kind) for kind in kinds}


def _trust(kind: str) -> int:
    return next((place for place, start in enumerate(PREFERRED) if kind.startswith(start)), len(PREFERRED))


def _summed(shape: tuple[int, ...], where: tuple[Any, ...], value: Numbers) -> Numbers:
    total = np.zeros(shape)
    np.add.at(total, where, value)
    return total


def _updates(rows: Table, rounds: tuple[int, ...], nodes: int) -> Numbers:
    where, shape = (np.searchsorted(rounds, rows.round), rows.source), (len(rounds), nodes)
    asked = _summed(shape, where, np.ones(len(rows))) > 0
    return np.where(asked, _summed(shape, where, rows.value), np.nan)


def _by_hop(rows: Table, nodes: int) -> Numbers:
    hops, update = int(rows.hop.max()) + 1, rows.round.astype(np.int64) * nodes + rows.source
    names, which = np.unique(update, return_inverse=True)
    mean: Numbers = np.abs(_summed((hops, len(names)), (rows.hop, which), rows.value)).mean(1)
    return mean


def _given(rows: Table, nodes: int) -> Numbers:
    gossiped = rows.hop > 0
    return _summed((nodes, nodes), (rows.source[gossiped], rows.receiver[gossiped]), rows.value[gossiped])


def _sampled(rows: Table) -> tuple[Sampled, ...]:
    rows = _where(rows, np.isfinite(rows.value))
    pairs, which, uses = np.unique(
        np.stack([rows.source, rows.sample]), axis=1, return_inverse=True, return_counts=True
    )
    value = _summed((pairs.shape[1],), (which.ravel(),), rows.value)
    order = np.argsort(value, kind="stable")
    return tuple(Sampled(int(pairs[0, i]), int(pairs[1, i]), int(uses[i]), float(value[i])) for i in order)


def _agreements(values: dict[str, Numbers]) -> dict[str, Agreement]:
    """Of every estimate of removal; shares answer another question, and need not be near."""
    if "truth" not in values:
        return {}
    true = torch.from_numpy(values["truth"])
    estimates = {kind: torch.from_numpy(v) for kind, v in values.items() if kind != "truth" and "shares" not in kind}
    fit = {kind: v for kind, v in estimates.items() if int((v.isfinite() & true.isfinite()).sum()) >= FEWEST}
    return {kind: agreement(true, v) for kind, v in fit.items()}


def _judged(measures: Sequence[RoundMetrics], rounds: tuple[int, ...]) -> tuple[Judged, ...]:
    """The evaluations nearest to the first and the last round."""
    seen = [m for m in measures if m.test is not None]
    near = [min(seen, key=lambda m, t=t: abs(m.t - t)) for t in (rounds[0], rounds[-1]) if seen]
    found = []
    for m in near:
        assert m.test is not None
        classify = not bool(m.test.accuracy.isnan().any())
        mean = float((m.test.accuracy if classify else m.test.loss).mean())
        found.append(Judged(m.t, "accuracy" if classify else "loss", mean))
    return tuple(dict.fromkeys(found))


class Ranked(NamedTuple):
    """The strongest on each side, as (participant, value)."""

    helpful: list[tuple[int, float]]
    harmful: list[tuple[int, float]]


def ranked(values: Numbers, most: int = 5) -> Ranked:
    """Who helped and who harmed most; who did neither is in neither."""
    found = extremes(torch.from_numpy(values), most)
    helpful, harmful = ([(int(k), float(values[k])) for k in side] for side in found)
    return Ranked(helpful, harmful)
