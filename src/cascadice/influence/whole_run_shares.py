"""Whole-run shares: everybody's part of what training as a whole achieved.

share_j = ∫₀¹ ∂f/∂α_j (α·1) dα        Σ_j share_j = f(1) − f(0)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network
from cascadice.engine.operator import Exchange
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.run_at import Alpha, Rounds, RunAt, value
from cascadice.influence.whole_run import WholeRun, gathered, sweep

POINTS = 3
"""Points of the quadrature over α, unless more are asked for."""


def whole_run_shares(
    network: Network,
    rounds: Rounds,
    evaluation: Evaluation,
    *,
    points: int = POINTS,
    during: range | None = None,
    on: str | int = "all",
    samples: bool = True,
    length: int | None = None,
    played: Callable[[], None] | None = None,
    exchange: Exchange | None = None,
) -> WholeRun:
    """Everybody's Aumann–Shapley share of what training did to the final models.

    Shares add up over rounds and participants and, for optimizers linear in the gradient (SGD, momentum; without weight
    decay), over samples. Their sum misses f(1) − f(0) by `gap`, which falls with `points`.
    Cost: `points` × `whole_run`, and one training more unless rounds were kept.

    Args:
        rounds: How many rounds to train, without a mixing rule; or rounds that were kept, from the first to the last.
        points: Points of the quadrature over α.
        during: The rounds whose updates α weights; all of them unless given. Then f(0) is the run in which nobody's
            updates count in these rounds, and shares divide what these updates changed; those of samples add up with
            SGD without momentum only.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.
        samples: Score samples too.
        length: How many rounds to keep at a time.
        played: Called after each round that was played or scored at one of the points.
        exchange: How what is sent is exchanged; in memory unless given.

    Returns:
        The shares; negative helped.

    Example:
        >>> paid = whole_run_shares(network, 100, evaluate_on(network))
        >>> paid.participants, paid.gap
    """
    run = RunAt(network, rounds, evaluation, 1.0, during, on, samples, length, played, exchange)
    weighted = [(weight, gathered(sweep(replace(run, at=alpha)))) for alpha, weight in weighted_points(points)]
    trained, untrained = (value(replace(run, at=at, played=None)) for at in (1.0, 0.0))
    return share_out(weighted, trained, untrained)


def share_out(weighted: Sequence[tuple[float, WholeRun]], trained: float, untrained: float) -> WholeRun:
    """Shares from the points of a quadrature, given f(1) and f(0)."""
    by_round = torch.stack([weight * one.by_round for weight, one in weighted]).sum(0)
    samples = torch.stack([weight * one.samples for weight, one in weighted]).sum(0)
    gap = float(by_round.sum()) - (trained - untrained)
    return WholeRun(trained, weighted[0][1].first, by_round, samples, weighted[0][1].drawn, gap)


def contributions(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, points: int = POINTS, on: str | int = "all"
) -> Float[Tensor, " n"]:
    """What each participant contributed to the final models: its whole-run share. Negative helped.

    Args:
        rounds: How many rounds to train, without a mixing rule; or rounds that were kept, from the first to the last.
        points: Points of the quadrature; see `whole_run_shares`.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.

    Returns:
        A share for each participant; together they are what training changed.

    Example:
        >>> contributions(network, 100, evaluate_on(network))
    """
    return whole_run_shares(network, rounds, evaluation, points=points, on=on, samples=False).participants


def measured_at(
    network: Network, rounds: Rounds, evaluation: Evaluation, at: Alpha, *, during: range | None = None,
    on: str | int = "all", played: Callable[[], None] | None = None, exchange: Exchange | None = None,
) -> float:  # fmt: skip
    """f(α): the measured sum on the final models of the run at α. Cost: a run; at 0 only its gossip.

    Args:
        during: The rounds whose updates α weights; all of them unless given.
        played: Called after each round that was played.

    Example:
        >>> measured_at(network, 100, evaluation, 1.0) - measured_at(network, 100, evaluation, 0.0)
    """
    return value(RunAt(network, rounds, evaluation, at, during, on, played=played, exchange=exchange))
