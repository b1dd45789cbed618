"""Reverse gossip: one backward sweep over the rounds scores every participant and every single sample.

    λ_k ← q_k ∇L(θ_k) + (I − η H_k) Σ_l W[l, k] λ_l        A_j = q_j ∇L(θ_j^t) + Σ_k W[k, j] λ_k

Theorem 2 of Zhu et al. 2025, transposed: the influence of any part Δ of j's update is A_jᵀ Δ.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import Evaluation, Network, Operator
from cascadice.engine.evaluation import check_asked
from cascadice.engine.rounds import Adjoint, Round
from cascadice.influence.checks import check_form, check_recording, check_samples_are_separate
from cascadice.optimizers import State


class RoundAdjoint(NamedTuple):
    """A_j: the derivative of the measured sum by what participant j has after its local step in round t."""

    t: int
    theta: Float[Tensor, "n d"]
    state: State

    @property
    def pair(self) -> Adjoint:
        """The adjoint of (θ, state), as the operator takes it."""
        return Adjoint(self.theta, self.state)


def reverse_gossip(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, *, direct: Float[Tensor, "n d"] | None = None,
    operator: Operator | None = None,
) -> RoundAdjoint:  # fmt: skip
    """Sweep backwards over consecutive rounds, from the receivers after the last to the sources in the first.

    For optimizers with state, the pair (θ, state) is pulled back. Cost: one Hessian-vector product and one evaluation
    gradient per participant and hop.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the updates; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        direct: The parameters at which to differentiate an update's effect on its own participant; defaults to θ^t.
        operator: The operator to use, to exchange in another way or to share evaluation gradients between overlapping
            windows. Its next use overwrites the returned adjoint.

    Returns:
        The adjoint of what everyone has after the local work of the first round. `by_participant` and `by_sample` turn
        it into scores.

    Raises:
        ValueError: If the rounds do not join or are not this network's.

    Example:
        >>> adjoint = reverse_gossip(network, rounds[10:13], evaluate_on(network))
        >>> by_participant(rounds[10], adjoint)
    """
    check_asked(network, evaluation)
    check_recording(network, rounds, many=1)
    return reverse_sweep(network, rounds, evaluation, direct=direct, operator=operator)


def reverse_sweep(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, *, direct: Float[Tensor, "n d"] | None = None,
    operator: Operator | None = None,
) -> RoundAdjoint:  # fmt: skip
    """`reverse_gossip` without its checks, for rounds that were checked or are replays of checked rounds."""
    for round_ in rounds:
        check_form(network, round_)
    op = operator or Operator(network)
    if operator and network.initial.buffers:  # gradients also depend on buffers, and are remembered by round alone
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
    """The r-hop influence of each participant's update in the adjoint's round: A_jᵀ Δ_j.

    Args:
        first: The round of the updates.
        adjoint: What `reverse_gossip` returned for the rounds that start with it.

    Returns:
        A score for each participant; negative helped.

    Raises:
        ValueError: If the adjoint is of another round.

    Example:
        >>> by_participant(rounds[0], reverse_gossip(network, rounds, evaluate_on(network)))
    """
    _check_round(first, adjoint)
    return Operator.scores_of_updates(first, adjoint.pair)


def by_sample(network: Network, first: Round, adjoint: RoundAdjoint) -> Float[Tensor, "n samples"]:
    """The part of every sample in its participant's score: the derivative of its loss term along c.

        score_i = cᵀ J_iᵀ ∂L/∂output_i,   c = derivative of A_jᵀ (θ, state)^{t+½} by j's gradient   (−η A_j for SGD)

    Per-sample gradients are never formed. Cost: that of a training pass, or a third of it if the round was taped.

    Args:
        network: The network that made the round.
        first: The round of the updates.
        adjoint: What `reverse_gossip` returned for the rounds that start with it.

    Returns:
        A score for each sample of everyone's batches, those of several local steps in order. Negative helped; 0 pads
        the rows of participants that drew fewer samples.

    Raises:
        ValueError: If the round is not this network's or not the adjoint's, or the loss or model couples samples.

    Example:
        >>> by_sample(network, rounds[0], reverse_gossip(network, rounds, evaluate_on(network)))[3].argmax()
    """
    _check_round(first, adjoint)
    check_recording(network, [first], many=1)
    check_samples_are_separate(network, first.draw, first.before)
    return Operator(network).scores_of_samples(first, adjoint.pair)


def samples_by_receiver(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, receivers: Sequence[int] | None = None
) -> Float[Tensor, "receivers n samples"]:
    """The influence of every sample on each receiver separately: whose text helped whom.

    `reverse_gossip` from one receiver at a time, so that the sum over all receivers is `by_sample`. Cost: a sweep and a
    training pass per receiver.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the updates; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        receivers: Participants whose losses to measure, each times its weight q; defaults to all.

    Returns:
        For each receiver, a score for each sample of everyone's batches; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's, the loss or model couples samples, or there
            is no such receiver.

    Example:
        >>> scores = samples_by_receiver(network, rounds[10:13], evaluate_on(network), receivers=[3])
        >>> scores[0].sum(1)  # what each participant's samples did to participant 3
    """
    check_asked(network, evaluation)
    check_recording(network, rounds, many=1)
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    scores = []
    for k in range(network.nodes) if receivers is None else receivers:
        if not 0 <= k < network.nodes:
            raise ValueError(f"receivers must be from 0 to {network.nodes - 1}; found {k}.")
        alone = replace(network, q=network.q * (torch.arange(network.nodes) == k))
        adjoint = reverse_sweep(alone, rounds, evaluation)
        scores.append(Operator(alone).scores_of_samples(rounds[0], adjoint.pair))
    return torch.stack(scores)


def _check_round(first: Round, adjoint: RoundAdjoint) -> None:
    if first.t != adjoint.t:
        raise ValueError(
            f"the adjoint is of round {adjoint.t}, the updates are of round {first.t}. Use one round for both."
        )
