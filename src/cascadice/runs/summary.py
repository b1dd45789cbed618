"""Summarise a table of influence: who helped, who harmed, how far influence reached, and how accurate it is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cascadice import files
from cascadice.engine.networks import Network
from cascadice.faults import kinds_by_participant
from cascadice.files import Folder
from cascadice.influence import agreement
from cascadice.influence.agreement import Agreement
from cascadice.influence.tables import ALL, Table, read_note, read_table
from cascadice.influence.uncertainty import Bounds, bounds_of_sums, bounds_of_totals, signs
from cascadice.runs import store
from cascadice.runs.round_metrics import RoundMetrics, quality

Numbers = NDArray[np.float64]
LOSSES = "losses.json"  # beside a table of whole-run shares: the final models' loss with and without training;
DOUBT = "doubt"  # and, of whole-run slopes that are too large to believe, why
# kinds: on the final models first, then the most accurate
PREFERRED = ("whole-run shares", "whole-run", "truth", "path-integrated", "shares", "first order")
FEWEST = 3  # updates or samples needed for an agreement
MOST = 5  # helpful and harmful participants and samples to name


class EvaluationResult(NamedTuple):
    """The participants' mean test accuracy after a round, or their mean test loss if there is no accuracy."""

    t: int
    metric: str
    mean: float


class SampleScore(NamedTuple):
    """The influence of a participant's training sample, summed over the times it was used."""

    node: int
    sample: int
    uses: int
    value: float
    low: float = float("nan")
    """the 95 % interval, by how much scores vary between uses and rounds; NaN if it was used once"""
    high: float = float("nan")

    @property
    def verdict(self) -> str:
        """`helped` or `harmed` if the interval excludes 0; else `within noise` or, without an interval, `used once`."""
        if self.uses < 2:
            return "used once"
        return "helped" if self.high < 0 else "harmed" if self.low > 0 else "within noise"


class InfluenceSummary(NamedTuple):
    """Sums and means over the rounds of a table of influence. Negative values helped: they lowered the loss.

    Kinds of influence are ordered from the most to the least accurate.
    """

    rounds: tuple[int, ...]
    updates: dict[str, Numbers]
    """kind -> [rounds, n]: the influence of each update on everyone, over all hops; NaN where it was not computed"""
    participants: dict[str, Numbers]
    """kind -> [n]: the influence of each participant's updates, summed over rounds"""
    bounds: dict[str, Bounds]
    """kind -> the 95 % interval of each participant's total, from how much it varies between rounds"""
    by_hop: dict[str, Numbers]
    """kind -> [hops + 1]: mean absolute influence of an update on everyone it reached, hop by hop"""
    matrix: dict[str, Numbers]
    """kind -> [n, n]: influence of source on receiver from the first gossip on, summed over rounds and hops"""
    agreements: dict[str, Agreement]
    """estimator -> how close it is to the truth, update by update, in all rounds together"""
    within_rounds: dict[str, tuple[float, float, float]]
    """estimator -> its rank correlation with the truth within a round: mean, lowest and highest over rounds"""
    samples: dict[str, tuple[SampleScore, ...]]
    """kind -> samples, the most helpful first"""
    verdicts: dict[str, Counter[str]]
    """kind -> how many samples have each verdict"""
    sample_agreements: dict[str, Agreement]
    test_results: tuple[EvaluationResult, ...] = ()
    injected: Mapping[int, str] = {}
    """participant -> the faults it was given, which no estimator knows"""
    training_change: float | None = None
    """what training did to the final models' loss, which whole-run shares divide"""
    sees_scale: bool = True
    """whether training depended on the size of gradients; else scores of samples predict little"""
    asked: Mapping[str, str] = {}
    """the note beside the table: what was asked, without settings at their defaults"""
    doubt: str = ""
    """why whole-run slopes are too large to believe, if they are"""

    @property
    def whole_run(self) -> bool:
        """Whether the table is about the final models, not about what updates did in the following rounds."""
        return any(kind.startswith("whole-run") for kind in self.updates)

    @property
    def models(self) -> str:
        """The final models that whole-run kinds measure, in words."""
        return measured_models(self.asked.get("on", "all"))

    @property
    def cause(self) -> str:
        """What whole-run shares divide the effect of, in words: training, or the updates of some rounds."""
        during = rounds_weighted(self.asked)
        return "training" if during is None else f"the updates of rounds {during[0]} to {during[-1]}"


def summarise(
    table: Table, nodes: int, metrics: Sequence[RoundMetrics] = (), injected: dict[int, str] | None = None,
    training_change: float | None = None, sees_scale: bool = True, asked: Mapping[str, str] | None = None,
) -> InfluenceSummary:  # fmt: skip
    """Summarise a table of influence among `nodes` participants; `metrics` are those of the run.

    If the question weighted only the updates of some rounds (`during`), the other rounds are left out.
    """
    check_range(table, source=nodes, receiver=nodes)
    tests = _test_results(metrics, tuple(np.unique(table.round).tolist()))
    if (during := rounds_weighted(asked or {})) is not None:
        table = table.where(np.isin(table.round, during))
    rounds = tuple(np.unique(table.round).tolist())
    whole = table.sample == ALL
    updates = {kind: _updates(rows, rounds, nodes) for kind, rows in _by_kind(table, whole).items()}
    cascades, samples = _by_kind(table, whole & (table.hop != ALL)), _by_kind(table, ~whole)
    scores = {kind: _sample_scores(rows) for kind, rows in samples.items()}
    return InfluenceSummary(
        rounds,
        updates,
        {kind: value.sum(0) for kind, value in updates.items()},
        {kind: bounds_of_totals(value) for kind, value in updates.items()},
        {kind: _by_hop(rows, nodes) for kind, rows in cascades.items()},
        {kind: _matrix(rows, nodes) for kind, rows in cascades.items()},
        (agreements := _agreements({kind: value.ravel() for kind, value in updates.items()})),
        {kind: within for kind in agreements if (within := _within_rounds(updates["truth"], updates[kind]))},
        scores,
        {kind: Counter(one.verdict for one in each) for kind, each in scores.items()},
        _agreements({kind: rows.value for kind, rows in samples.items()}),  # each kind has the same rows
        tests,
        injected or {},
        training_change,
        sees_scale,
        asked or {},
    )


def read_summary(folder: Folder, run: Folder, network: Network) -> InfluenceSummary:
    """Summarise the influence in a folder, with the test accuracy that the run measured.

    Args:
        folder: The folder of the influence.
        run: The folder of the run.
        network: The network of the run.

    Returns:
        Sums and means over rounds.

    Raises:
        FileNotFoundError: If the folder holds no influence.
        ValueError: If the influence is damaged or does not fit the network.

    Example:
        >>> read_summary("runs/demo/influence", "runs/demo", network).participants["truth"]  # doctest: +SKIP
    """
    metrics = store.metrics_so_far(run)
    table, change, note = read_table(folder), read_training_change(folder), read_note(folder)
    check_range(table, sample=len(network.data.train))
    faults, linear = injected_faults(network), has_linear_steps(network)
    summary = summarise(table, network.whole, metrics, faults, change, linear, note)
    return summary._replace(doubt=read_doubt(folder))


def measured_models(on: object) -> str:
    """The final models that a question is about, in words: of all, the average model, or of one participant."""
    return {"all": "the final models", "average": "the average model"}.get(str(on), f"{on}'s final model")


def rounds_weighted(asked: Mapping[str, str]) -> range | None:
    """The rounds whose updates a question weighted, from its note; None if it did not restrict them."""
    first, _, stop = asked.get("during", "").partition(", ")
    return range(int(first), int(stop)) if stop else None


def has_linear_steps(network: Network) -> bool:
    """Whether all steps are linear in the gradients; Adam and clipping hide the size of gradients."""
    return all(learner.optimizer.linear for learner in network.learners)


def check_range(table: Table, **counts: int) -> None:
    """Raise ValueError if a column of indices has one that is out of range; -1 stands for all."""
    for name, count in counts.items():
        column, least = table.columns[name], 0 if name == "source" else ALL
        if wrong := column[(column < least) | (column >= count)].tolist():
            raise ValueError(f"{name} in a table of influence must be from {least} to {count - 1}; found {wrong[0]}.")


def read_training_change(folder: Folder) -> float | None:
    """The change that training made to the final models' loss, if the whole-run shares in this folder divide it."""
    path = Path(folder) / LOSSES
    if not path.exists():
        return None
    losses = files.read_json(path)
    if DOUBT in losses and not {"trained", "untrained"} & set(losses):
        return None  # there are no shares
    try:
        return float(losses["trained"]) - float(losses["untrained"])
    except (KeyError, TypeError):
        raise ValueError(f"{path} must have the numbers trained and untrained; found {losses}. Restore it.") from None


def read_doubt(folder: Folder) -> str:
    """Why the whole-run slopes in this folder are too large to believe; empty if they are not, or nobody looked."""
    path = Path(folder) / LOSSES
    return str(files.read_json(path).get(DOUBT, "")) if path.exists() else ""


def injected_faults(network: Network) -> dict[int, str]:
    """The corruptions and behaviours of each participant that has any, e.g. {3: "flip-labels, free-rider"}."""
    kinds = kinds_by_participant((*network.corruptions, *network.behaviours))
    return {network.members[node]: kind for node, kind in kinds.items()} if network.members else kinds


def _by_kind(table: Table, keep: NDArray[np.bool_]) -> dict[str, Table]:
    ranks = {kind: [not kind.startswith(start) for start in PREFERRED] for kind in sorted(set(table.kind[keep]))}
    return {kind: table.where(keep & (table.kind == kind)) for kind in sorted(ranks, key=ranks.__getitem__)}


def _sum_at(shape: tuple[int, ...], where: tuple[Any, ...], value: Numbers) -> Numbers:
    total = np.zeros(shape)
    np.add.at(total, where, value)
    return total


def _updates(rows: Table, rounds: tuple[int, ...], nodes: int) -> Numbers:
    where, shape = (np.searchsorted(rounds, rows.round), rows.source), (len(rounds), nodes)
    computed = _sum_at(shape, where, np.ones(len(rows))) > 0
    return np.where(computed, _sum_at(shape, where, rows.value), np.nan)


def _by_hop(rows: Table, nodes: int) -> Numbers:
    names, which = np.unique(rows.round.astype(np.int64) * nodes + rows.source, return_inverse=True)
    totals = _sum_at((int(rows.hop.max()) + 1, len(names)), (rows.hop, which), rows.value)
    return np.asarray(np.abs(totals).mean(1))


def _matrix(rows: Table, nodes: int) -> Numbers:
    gossiped = rows.hop > 0
    return _sum_at((nodes, nodes), (rows.source[gossiped], rows.receiver[gossiped]), rows.value[gossiped])


def _sample_scores(rows: Table) -> tuple[SampleScore, ...]:
    rows = rows.where(np.isfinite(rows.value))
    both = np.stack([rows.source, rows.sample])
    pairs, which, uses = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    value = _sum_at((pairs.shape[1],), (which.ravel(),), rows.value)
    when = np.unique(rows.round, return_inverse=True)[1]
    columns = (*pairs, uses, value, *bounds_of_sums(rows.value, which.ravel(), when, pairs[0]))
    order = np.argsort(value, kind="stable")
    return tuple(SampleScore(*row) for row in zip(*(column[order].tolist() for column in columns), strict=True))


def _agreements(values: dict[str, Numbers]) -> dict[str, Agreement]:
    """The agreement of each estimator with the truth, except shares, which answer another question."""
    if "truth" not in values:
        return {}
    true = torch.from_numpy(values["truth"])
    estimates = {kind: torch.from_numpy(v) for kind, v in values.items() if kind != "truth" and "shares" not in kind}
    enough = {kind: v for kind, v in estimates.items() if int((v.isfinite() & true.isfinite()).sum()) >= FEWEST}
    return {kind: agreement(true, v) for kind, v in enough.items()}


def _within_rounds(true: Numbers, estimates: Numbers) -> tuple[float, float, float] | None:
    """The mean, lowest and highest rank correlation over rounds; None if no round has updates enough that differ."""
    pairs = [(torch.from_numpy(t), torch.from_numpy(e)) for t, e in zip(true, estimates, strict=True)]
    enough = [pair for pair in pairs if int((pair[0].isfinite() & pair[1].isfinite()).sum()) >= FEWEST]
    each = [found for t, e in enough if not np.isnan(found := agreement(t, e).spearman)]
    return (float(np.mean(each)), min(each), max(each)) if each else None


def _test_results(metrics: Sequence[RoundMetrics], rounds: tuple[int, ...]) -> tuple[EvaluationResult, ...]:
    """The evaluations nearest to the first and the last of these rounds."""
    tests = [(m.t, quality(m.test)) for m in metrics if m.test is not None]
    nearest = [min(tests, key=lambda one, t=t: abs(one[0] - t)) for t in (rounds[0], rounds[-1]) if tests]
    return tuple(dict.fromkeys(EvaluationResult(t, name, float(values.nanmean())) for t, (name, values) in nearest))


def clear_samples(scores: Sequence[SampleScore]) -> list[list[SampleScore]]:
    """The samples that clearly helped, and those that clearly harmed; the largest totals first."""
    both = (scores, "helped"), (scores[::-1], "harmed")
    return [[one for one in ordered if one.verdict == verdict] for ordered, verdict in both]


def strongest_samples(scores: Sequence[SampleScore], most: int = MOST) -> list[SampleScore]:
    """At most `most` samples from each end of each verdict, in order: the samples that a summary shows."""
    alike = [[one for one in scores if one.verdict == verdict] for verdict in {one.verdict for one in scores}]
    return sorted({one for each in alike for one in (*each[:most], *each[-most:])}, key=lambda one: one.value)


class Sides(NamedTuple):
    """(participant, total) of those that clearly helped and harmed, the strongest first; then the others."""

    helped: list[tuple[int, float]]
    harmed: list[tuple[int, float]]
    within_noise: list[tuple[int, float]]
    """their interval includes 0"""
    idle: list[int]
    """no influence at all"""


def sides(summary: InfluenceSummary, kind: str) -> Sides:
    """Who clearly helped, who clearly harmed, and who did neither.

    Args:
        summary: A summary of influence.
        kind: One of the estimators in it.

    Returns:
        The participants of each side with their totals, the strongest first.

    Example:
        >>> sides(summary, "truth").harmed  # doctest: +SKIP
        [(3, 0.1658)]
    """
    totals = summary.participants[kind]
    sign, rising = signs(totals, summary.bounds[kind]), totals.argsort(kind="stable")
    unclear = (sign == 0) & (totals != 0) & np.isfinite(totals)
    places = (rising[sign[rising] < 0], rising[sign[rising] > 0][::-1], np.flatnonzero(unclear))
    helped, harmed, noise = ([(int(k), float(totals[k])) for k in side] for side in places)
    return Sides(helped, harmed, noise, np.flatnonzero(totals == 0).tolist())
