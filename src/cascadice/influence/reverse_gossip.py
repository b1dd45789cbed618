"""Reverse gossip: one sweep backwards over the rounds scores every participant and every single sample at once.

    λ_k ← q_k ∇L(θ_k) + (I − η H_k) Σ_l W[l, k] λ_l        A_j = q_j ∇L(θ_j^t) + Σ_k W[k, j] λ_k

Theorem 2 of Zhu et al. 2025, transposed: the influence of any piece Δ of j's update is A_jᵀ Δ.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import Evaluation, Network, Operator
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.checks import check_form, check_recording, check_samples_are_separate
from cascadice.optimizers import State


class RoundAdjoint(NamedTuple):
    """A_j: the derivative of the measured sum by what participant j carries after its local step in round t."""

    t: int
    theta: Float[Tensor, "n d"]
    state: State


def reverse_gossip(
    network: Network,
    rounds: Sequence[Round],
    evaluation: Evaluation,
    *,
    direct: Float[Tensor, "n d"] | None = None,
    operator: Operator | None = None,
) -> RoundAdjoint:
    """Sweep backwards over consecutive rounds, from the last one's receivers to the sources of the first.

    For optimizers with state the pair (θ, state) is pulled back. Cost: a Hessian-vector product and an evaluation
    gradient a participant and hop.

    Args:
        rounds: Consecutive rounds, from the one of the updates on; their number is the number of hops.
        direct: Where an update's effect on its own participant is differentiated; θ^t unless given.
        operator: The operator to use: with an exchange of its own, or to share evaluation gradients between windows
            that overlap. What is returned is overwritten by its next use.

    Returns:
        The adjoint of what everybody has after the local work of the first round. `by_participant` and `by_sample` turn
        it into scores.

    Raises:
        ValueError: Where the rounds are not this network's, or do not follow one another.

    Example:
        >>> adjoint = reverse_gossip(network, rounds[10:13], evaluate_on(network))
        >>> by_participant(rounds[10], adjoint)
    """
    check_recording(network, rounds, many=1)
    return swept(network, rounds, evaluation, direct=direct, operator=operator)


def swept(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, *, direct: Float[Tensor, "n d"] | None = None,
    operator: Operator | None = None,
) -> RoundAdjoint:  # fmt: skip
    """`reverse_gossip` over rounds that were checked, or made from such rounds with other updates."""
    for round_ in rounds:
        check_form(network, round_)
    op = operator or Operator(network)
    if operator and network.initial.buffers:  # gradients depend on these too, and are kept by round alone
        op = operator.fresh()
    first, last = rounds[0], rounds[-1]
    adjoint = Adjoint(op.objective(evaluation, last.after, last.t + 1), tree_map(torch.zeros_like, last.after.state))
    for round_ in reversed(rounds[1:]):
        adjoint = op.pull(round_, adjoint)
        adjoint.theta.add_(op.objective(evaluation, round_.before, round_.t))
    if direct is None:
        own = op.objective(evaluation, first.half._replace(theta=first.before.theta), first.t)
    else:
        own = op.objective(evaluation, first.half._replace(theta=direct))
    return RoundAdjoint(first.t, *op.pull_exchange(first, adjoint, plus=own))


def by_participant(first: Round, adjoint: RoundAdjoint) -> Float[Tensor, " n"]:
    """The r-hop influence of every participant's update in the round of the adjoint: A_jᵀ Δ_j.

    Args:
        first: The round of the updates.
        adjoint: What `reverse_gossip` returned for the rounds that start with it.

    Returns:
        A score for each participant; negative helped.

    Example:
        >>> by_participant(rounds[0], reverse_gossip(network, rounds, evaluate_on(network)))
    """
    _check_round(first, adjoint)
    return Operator.scores_of_updates(first, _plain(adjoint))


def by_sample(network: Network, first: Round, adjoint: RoundAdjoint) -> Float[Tensor, "n samples"]:
    """The part of every single sample: the derivative of its own term of the loss along the gradient's adjoint.

        score_i = cᵀ J_iᵀ ∂L/∂output_i,   c = derivative of A_jᵀ (θ, state)^{t+½} by j's gradient   (−η A_j for SGD)

    No gradient of a sample is ever formed. Cost: as much as a training pass, a third of one if the round was taped.

    Args:
        first: The round of the updates.
        adjoint: What `reverse_gossip` returned for the rounds that start with it.

    Returns:
        A score for each sample of everybody's batches, those of several local steps one after the other; negative
        helped, and 0 where a participant has fewer samples than others.

    Raises:
        ValueError: Where the round is not this network's, or samples have no part of their own in the outputs or in the
            loss.

    Example:
        >>> by_sample(network, rounds[0], reverse_gossip(network, rounds, evaluate_on(network)))[3].argmax()
    """
    _check_round(first, adjoint)
    check_recording(network, [first], many=1)
    check_samples_are_separate(network, first.draw, first.before)
    return Operator(network).scores_of_samples(first, _plain(adjoint))


def samples_by_receiver(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, receivers: Sequence[int] | None = None
) -> Float[Tensor, "receivers n samples"]:
    """The part of every single sample in what its update did to each receiver: whose text helped whom.

    `reverse_gossip` from one receiver at a time, so that the sum over all receivers is `by_sample`. Cost: a sweep and a
    training pass for each receiver.

    Args:
        rounds: Consecutive rounds, from the one of the updates on; their number is the number of hops.
        receivers: Whose loss is measured, each by itself and times its weight q; everybody's unless given.

    Returns:
        For each receiver, a score for each sample of everybody's batches; negative helped.

    Example:
        >>> scores = samples_by_receiver(network, rounds[10:13], evaluate_on(network), receivers=[3])
        >>> scores[0].sum(1)  # what each participant's samples did to participant 3
    """
    check_recording(network, rounds, many=1)
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    chosen, scores = range(network.nodes) if receivers is None else receivers, []
    for k in chosen:
        if not 0 <= k < network.nodes:
            raise ValueError(f"receivers must be from 0 to {network.nodes - 1}; found {k}.")
        alone = replace(network, q=network.q * (torch.arange(network.nodes) == k))
        adjoint = _plain(swept(alone, rounds, evaluation))
        scores.append(Operator(alone).scores_of_samples(rounds[0], adjoint))
    return torch.stack(scores)


def by_both(
    operator: Operator, first: Round, adjoint: RoundAdjoint
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n samples"]]:
    """`by_participant` and `by_sample` of one adjoint."""
    check_samples_are_separate(operator.network, first.draw, first.before)
    return operator.scores_of_both(first, _plain(adjoint))


def _plain(adjoint: RoundAdjoint) -> Adjoint:
    return Adjoint(adjoint.theta, adjoint.state)


def _check_round(first: Round, adjoint: RoundAdjoint) -> None:
    if first.t != adjoint.t:
        raise ValueError(
            f"the adjoint is of round {adjoint.t}, the updates are of round {first.t}. Use one round for both."
        )
