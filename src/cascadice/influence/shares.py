"""Aumann–Shapley shares: all updates of a round are scaled together, and each gets its part of the change.

    share_j = ∫₀¹ A_j(α)ᵀ Δ_j dα        Σ_j share_j = Φ(1) − Φ(0)

A_j(α) is the adjoint of reverse gossip along the rounds in which all updates of the first one are scaled by α.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network, Operator, Round, send
from cascadice.engine.evaluation import check_asked
from cascadice.influence.checks import check_recording, check_samples_are_separate
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.reverse_gossip import RoundAdjoint, by_participant, by_sample, reverse_sweep


def shares(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2, *,
    operator: Operator | None = None,
) -> Float[Tensor, " n"]:  # fmt: skip
    """Each participant's share of the change that the round's updates made; the shares sum to that change.

    Cost: `points` × (a replay of the rounds and a sweep of reverse gossip).

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the updates; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        points: Quadrature points.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        A share for each participant; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's.

    Example:
        >>> shares(network, rounds[10:12], evaluate_on(network)).sum()
    """
    check_asked(network, evaluation)
    check_recording(network, rounds)
    return by_participant(rounds[0], mean_adjoint(network, rounds, evaluation, points, operator=operator))


def shares_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2, *,
    operator: Operator | None = None,
) -> Float[Tensor, "n batch"]:  # fmt: skip
    """Each sample's part of its participant's share.

    With one SGD step per round the parts sum to `shares`. What a step does without a gradient (old momentum, weight
    decay) belongs to no sample. If a step is not linear in the gradient (Adam, clipping), parts are those of its
    derivative. Cost: that of `shares`.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the updates; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        points: Quadrature points.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        A score for each sample of everyone's batches in the first round; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's, or the loss or model couples samples.

    Example:
        >>> shares_of_samples(network, rounds[10:12], evaluate_on(network))[3].argmax()
    """
    check_asked(network, evaluation)
    check_recording(network, rounds)
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    return by_sample(network, rounds[0], mean_adjoint(network, rounds, evaluation, points, operator=operator))


def mean_adjoint(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int, *, only: int | None = None,
    direct: bool = True, operator: Operator | None = None,
) -> RoundAdjoint:  # fmt: skip
    """∫₀¹ A(α) dα: the mean adjoint along everyone's updates, or along that of one participant, `only`.

    If `direct` is false, the effect of an update on its own participant before gossip is left out.
    """
    half, operator = rounds[0].half, operator.fresh() if operator else Operator(network)  # its gradients are those at α
    theta, state = torch.zeros_like(half.theta), {name: torch.zeros_like(value) for name, value in half.state.items()}
    for alpha, weight in weighted_points(points):
        scaled = scaled_rounds(operator, rounds, alpha, only)
        half = scaled[0].half
        operator.drop_gradients()
        adjoint = reverse_sweep(network, scaled, evaluation, direct=half.theta, operator=operator)
        theta.add_(adjoint.theta if direct else adjoint.theta - operator.objective(evaluation, half), alpha=weight)
        for name, total in state.items():
            total.add_(adjoint.state[name], alpha=weight)
    return RoundAdjoint(rounds[0].t, theta, state)


def scaled_rounds(operator: Operator, rounds: Sequence[Round], alpha: float, only: int | None = None) -> list[Round]:
    """Replay these rounds with everyone's first update scaled by `alpha`, or that of one participant, `only`.

    Buffers (running statistics of BatchNorm) keep their recorded values.
    """
    first = rounds[0]
    weights = torch.ones_like(first.half.theta[:, 0])
    weights[slice(None) if only is None else only] = alpha
    half = send.part(first.before, first.half, weights)._replace(buffers=first.half.buffers)
    replayed = [first._replace(half=half, after=operator.exchange(first).apply(first, half), tape=())]
    for round_ in rounds[1:]:
        before = replayed[-1].after._replace(buffers=round_.before.buffers)
        half, loss, _ = operator.work(round_.draw, before)
        round_ = Round(round_.draw, before, half._replace(buffers=round_.half.buffers), half, loss, (), round_.rule)
        after = operator.exchange(round_).apply(round_, round_.half)
        replayed.append(round_._replace(after=after))
    return replayed
