"""Whole-run shares: each participant's part of what the whole training achieved.

share_j = ∫₀¹ ∂f/∂α_j (α·1) dα        Σ_j share_j = f(1) − f(0)
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network
from cascadice.engine.operator import Exchange
from cascadice.influence.quadrature import more_points, weighted_points
from cascadice.influence.weighted_run import Alpha, Rounds, WeightedRun, final_value
from cascadice.influence.whole_run import WholeRun, combine_rounds, sweep

POINTS = 3
"""Default number of quadrature points over α."""
FAR = 0.1
"""Shares that miss more than this part of what training changed are not its parts."""


def whole_run_shares(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, points: int = POINTS, during: range | None = None,
    on: str | int = "all", samples: bool = True, length: int | None = None, played: Callable[[], None] | None = None,
    exchange: Exchange | None = None,
) -> WholeRun:  # fmt: skip
    """Each participant's Aumann–Shapley share of what training did to the final models.

    Shares add up over rounds and participants and, for optimizers linear in the gradient (SGD, momentum; without weight
    decay), over samples. Their sum differs from f(1) − f(0) by `gap`, which falls with `points`.
    Cost: `points` × `whole_run`, and one training more unless rounds are recorded.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last; see `whole_run`.
        evaluation: What to measure, from `evaluate_on`.
        points: Quadrature points over α.
        during: The rounds whose updates α weights; defaults to all. Otherwise f(0) is the run without the updates of
            these rounds, and shares divide what these updates changed; those of samples then add up only with SGD
            without momentum.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.
        samples: Whether to score samples too.
        length: How many rounds to hold at a time if they have to be trained; see `engine.backwards`.
        played: Called after each round that was trained or scored at one of the points.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Returns:
        The shares; negative helped.

    Raises:
        ValueError: As `whole_run` at another α than 1; also if `points` is not from 1 to 100.
        DivergedError: If the run diverges at one of the points.

    Example:
        >>> paid = whole_run_shares(network, 100, evaluate_on(network))
        >>> paid.participants, paid.gap
    """
    run = WeightedRun(network, rounds, evaluation, 1.0, during, on, samples, length, played, exchange)
    weighted = [(weight, combine_rounds(sweep(replace(run, at=alpha)))) for alpha, weight in weighted_points(points)]
    trained, untrained = (final_value(replace(run, at=at, played=None)) for at in (1.0, 0.0))
    return share_out(weighted, trained, untrained)


def share_out(weighted: Sequence[tuple[float, WholeRun]], trained: float, untrained: float) -> WholeRun:
    """Shares from the weighted points of a quadrature, f(1) and f(0)."""
    by_round = torch.stack([weight * one.by_round for weight, one in weighted]).sum(0)
    samples = torch.stack([weight * one.samples for weight, one in weighted]).sum(0)
    gap = float(by_round.sum()) - (trained - untrained)
    return WholeRun(trained, weighted[0][1].first, by_round, samples, weighted[0][1].drawn, gap)


def contributions(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, points: int = POINTS, on: str | int = "all"
) -> Float[Tensor, " n"]:
    """What each participant contributed to the final models: its whole-run share.

    A RuntimeWarning says so if the shares miss what training changed by more than a tenth of it.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last; see `whole_run`.
        evaluation: What to measure, from `evaluate_on`.
        points: Quadrature points over α.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.

    Returns:
        A share for each participant, which sum to what training changed; negative helped.

    Raises:
        ValueError: As `whole_run_shares`.
        DivergedError: If the run diverges at one of the points.

    Example:
        >>> contributions(network, 100, evaluate_on(network))
    """
    shares = whole_run_shares(network, rounds, evaluation, points=points, on=on, samples=False)
    total = float(shares.participants.sum())
    if abs(shares.gap) > FAR * abs(change := total - shares.gap):
        warnings.warn(
            f"whole-run shares sum to {total:+.4g}, but training changed the measure by {change:+.4g}: do not read "
            f"them as parts of a whole. Use more points, e.g. points={more_points(points)}; if that brings the sum no "
            "closer, training is too rough for shares: lower the learning rate.",
            RuntimeWarning,
            stacklevel=2,
        )
    return shares.participants


def measured_at(
    network: Network, rounds: Rounds, evaluation: Evaluation, at: Alpha, *, during: range | None = None,
    on: str | int = "all", played: Callable[[], None] | None = None, exchange: Exchange | None = None,
) -> float:  # fmt: skip
    """f(α), measured on the final models of the run at α. Cost: a run; at α = 0 only its gossip.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last; see `whole_run`.
        evaluation: What to measure, from `evaluate_on`.
        at: α, one number or one per participant.
        during: The rounds whose updates α weights; defaults to all.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.
        played: Called after each round that was trained.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Returns:
        The measured sum.

    Raises:
        ValueError: As `whole_run`.
        DivergedError: If the run diverges at this α.

    Example:
        >>> measured_at(network, 100, evaluation, 1.0) - measured_at(network, 100, evaluation, 0.0)
    """
    return final_value(WeightedRun(network, rounds, evaluation, at, during, on, played=played, exchange=exchange))
