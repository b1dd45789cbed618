"""Aumann–Shapley shares: everybody's update of a round is scaled together, and each gets its part of the change.

share_j = ∫₀¹ A_j(α)ᵀ Δ_j dα        Σ_j share_j = Φ(1) − Φ(0)
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network, Operator, Round, send
from cascadice.influence.checks import check_recording, check_samples_are_separate
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.reverse_gossip import RoundAdjoint, by_participant, by_sample, swept


def shares(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2, *,
    operator: Operator | None = None,
) -> Float[Tensor, " n"]:  # fmt: skip
    """Each participant's share of what the round's updates really did; the shares sum to that change.

    Cost: `points` × (a replay of the rounds and a sweep of reverse gossip).

    Args:
        rounds: Consecutive rounds, from the one of the updates on; their number is the number of hops.
        points: Points of the quadrature.
        operator: The operator to use, where its exchange is not the one in memory.

    Returns:
        A share for each participant; negative helped.

    Example:
        >>> shares(network, rounds[10:12], evaluate_on(network)).sum()
    """
    check_recording(network, rounds)
    return by_participant(rounds[0], mean_adjoint(network, rounds, evaluation, points, operator=operator))


def shares_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2, *,
    operator: Operator | None = None,
) -> Float[Tensor, "n batch"]:  # fmt: skip
    """Every sample's part of its participant's share.

    With one step of SGD a round they sum to `shares`. What a step does without any gradient (old momentum, weight
    decay) belongs to no sample; where a step is not linear in the gradient (Adam, clipping), parts are of its
    derivative. Cost: as `shares`.

    Args:
        rounds: Consecutive rounds, from the one of the updates on.
        points: Points of the quadrature.
        operator: The operator to use, where its exchange is not the one in memory.

    Returns:
        A score for each sample of everybody's batches in the first round; negative helped.

    Example:
        >>> shares_of_samples(network, rounds[10:12], evaluate_on(network))[3].argmax()
    """
    check_recording(network, rounds)
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    return by_sample(network, rounds[0], mean_adjoint(network, rounds, evaluation, points, operator=operator))


def mean_adjoint(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int, *, only: int | None = None,
    direct: bool = True, operator: Operator | None = None,
) -> RoundAdjoint:  # fmt: skip
    """∫₀¹ A(α) dα: the mean adjoint along everybody's updates, or along those of `only` one participant.

    Without `direct`, the effect of an update on its own participant before gossip is left out.
    """
    first, operator = rounds[0].half, operator.fresh() if operator else Operator(network)  # it will know A(α) alone
    theta, state = torch.zeros_like(first.theta), {name: torch.zeros_like(value) for name, value in first.state.items()}
    for alpha, weight in weighted_points(points):
        along = scaled_rounds(operator, rounds, alpha, only)
        here = along[0].half
        operator.forget()
        adjoint = swept(network, along, evaluation, direct=here.theta, operator=operator)
        theta.add_(adjoint.theta if direct else adjoint.theta - operator.objective(evaluation, here), alpha=weight)
        for name, total in state.items():
            total.add_(adjoint.state[name], alpha=weight)
    return RoundAdjoint(rounds[0].t, theta, state)


def scaled_rounds(operator: Operator, rounds: Sequence[Round], alpha: float, only: int | None = None) -> list[Round]:
    """These rounds again, with `alpha` of everybody's local work in the first, or of `only` one participant's.

    Buffers (running statistics of BatchNorm) are held as they were.
    """
    first = rounds[0]
    weights = torch.ones_like(first.half.theta[:, 0])
    weights[slice(None) if only is None else only] = alpha
    half = send.part(first.before, first.half, weights)._replace(buffers=first.half.buffers)
    played = [first._replace(half=half, after=operator.exchange(first).apply(first, half), tape=())]
    for round_ in rounds[1:]:
        before = played[-1].after._replace(buffers=round_.before.buffers)
        half, loss, _ = operator.work(round_.draw, before)
        round_ = Round(round_.draw, before, half._replace(buffers=round_.half.buffers), half, loss, (), round_.rule)
        after = operator.exchange(round_).apply(round_, round_.half)
        played.append(round_._replace(after=after))
    return played
