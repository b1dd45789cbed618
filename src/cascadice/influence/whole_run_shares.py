"""Whole-run shares: everybody's part of what training as a whole achieved.

share_j = ∫₀¹ ∂f/∂α_j (α·1) dα        Σ_j share_j = f(1) − f(0)
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import DivergedError, Evaluation, Network, Round, draw, mix, simulate
from cascadice.engine.operator import Exchange, Operator
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.whole_run import (
    Alpha,
    Rounds,
    WholeRun,
    as_it_was,
    final,
    focused,
    in_words,
    network_at,
    span_of,
    whole_run,
)

POINTS = 3
"""Points of the quadrature over α, unless more are asked for."""


def whole_run_shares(
    network: Network,
    rounds: Rounds,
    evaluation: Evaluation,
    *,
    points: int = POINTS,
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
    parts = [
        (weight, whole_run(network, rounds, evaluation, at=alpha, on=on, samples=samples, length=length,
                           played=played, exchange=exchange))
        for alpha, weight in weighted_points(points)
    ]  # fmt: skip
    trained, untrained = (measured_at(network, rounds, evaluation, at, on=on, exchange=exchange) for at in (1.0, 0.0))
    return share_out(parts, trained, untrained)


def share_out(parts: Sequence[tuple[float, WholeRun]], trained: float, untrained: float) -> WholeRun:
    """Shares from the points of a quadrature, given f(1) and f(0)."""
    by_round = torch.stack([weight * part.by_round for weight, part in parts]).sum(0)
    samples = torch.stack([weight * part.samples for weight, part in parts]).sum(0)
    gap = float(by_round.sum()) - (trained - untrained)
    return WholeRun(trained, parts[0][1].first, by_round, samples, parts[0][1].drawn, gap)


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
    network: Network, rounds: Rounds, evaluation: Evaluation, at: Alpha, *, on: str | int = "all",
    played: Callable[[], None] | None = None, exchange: Exchange | None = None,
) -> float:  # fmt: skip
    """f(α): the measured sum on the final models of the run at α. Cost: a run; at 0 only its gossip.

    Args:
        played: Called after each round that was played.

    Example:
        >>> measured_at(network, 100, evaluation, 1.0) - measured_at(network, 100, evaluation, 0.0)
    """
    start, stop = span_of(rounds)
    there, on = focused(network_at(network, rounds, at), on)
    operator = Operator(there, exchange)
    if not isinstance(rounds, int) and as_it_was(at):
        last = rounds[-1]
    elif not isinstance(at, Tensor) and at == 0 and exchange is None:
        last = _only_gossip(there, start, stop)
    else:
        try:
            for round_ in simulate(there, stop, start=start, window=0, operator=operator):
                last = round_
                if played is not None:
                    played()
        except DivergedError as error:
            raise error.within(f"in the run at α = {in_words(at)}, ") from None
    return final(operator, evaluation, last, on)[1]


def _only_gossip(network: Network, start: int, stop: int) -> Round:
    """The last round of a run in which nobody trains."""
    here = network.initial
    for t in range(start, stop):
        here = mix(network.mixing(t), here)
    return Round(draw(network, stop - 1), here, here, here, here.theta[:, 0])
