"""Ground truth (DICE-GT): replay the rounds without the update, and compare.

    truth[0, j] = q_j (L(θ_j^{t+½}) − L(θ_j^t))        truth[h, k] = q_k (L(θ_k^{t+h}) − L(θ_{k∖j}^{t+h}))

Definitions 1 and 2 of Zhu et al. 2025. Only the source's light cone changes, so only that is replayed.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from cascadice.data.batches import PADDING
from cascadice.engine import Evaluation, Operator, Participants
from cascadice.engine.networks import Network, Weights
from cascadice.engine.rounds import Perturbation, Round, difference, rows_of
from cascadice.influence.cascade import Cascade, Entries, at_pairs, cascade_of, scaled_updates
from cascadice.influence.checks import Sources, check_samples_are_separate, check_sources


def truth(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources = None, *,
    operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The true influence of each source's update: the source skips its local step, and its light cone is replayed.

    Buffers (running statistics of BatchNorm) keep their recorded values. Cost: for each source and round, a training
    step and an evaluation for each participant that the update has reached.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the update; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        sources: Participants whose updates to score; defaults to all.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        The cascade `value[hop, source, receiver]`; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's.

    Example:
        >>> truth(network, rounds[10:13], evaluate_on(network), sources=[3]).total
    """
    chosen = check_sources(network, rounds, evaluation, sources)
    replayed = partial(_replayed, operator or Operator(network), rounds, evaluation)
    return cascade_of("truth", network, rounds, chosen, lambda group: replayed(scaled_updates(rounds[0], group, -1.0)))


def truth_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, source: int,
    samples: Sequence[int] | None = None, *, operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The true influence of single samples: the source repeats its local work without the sample's gradient term.

        g_{∖i} = g − J_iᵀ ∂L/∂output_i        so that to first order the samples add up to the batch

    The local steps are repeated from (θ, state) with any optimizer, and the light cone is replayed. With several local
    steps, the term is left out of the step that used it, and the later steps follow from that. Cost: that of `truth`
    with every sample as a source.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the update; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        source: The participant whose batch to score.
        samples: Positions in `draw.batch[source].flatten()`, which holds the batches of all local steps in order, as in
            `by_sample`; defaults to all.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        The cascade `value[hop, sample, receiver]`; negative helped.

    Raises:
        ValueError: If the rounds are not this network's, a position is not in the batch, or the loss or model couples
            samples.

    Example:
        >>> truth_of_samples(network, rounds[10:12], evaluate_on(network), source=3, samples=[0, 1]).value.sum(2)
    """
    (source,) = check_sources(network, rounds, evaluation, [source])
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    drawn, op = rounds[0].draw.batch[source].flatten().cpu(), operator or Operator(network)
    used = (drawn != PADDING).nonzero().flatten().tolist()
    positions = used if samples is None else list(samples)
    if unknown := [position for position in positions if position not in used]:
        where = f"from 0 to {max(used, default=0)}; found {unknown[0]}."
        raise ValueError(f"samples must be positions in a batch of {len(used)}, {where}")

    def entries(group: list[int]) -> Entries:
        return _replayed(op, rounds, evaluation, _without_samples(op, rounds[0], source, group))

    return cascade_of("truth", network, rounds, [source] * len(positions), entries, positions)


def _without_samples(operator: Operator, first: Round, source: int, positions: list[int]) -> Perturbation:
    """How leaving out each sample changes what the source sends, one row per sample."""
    rows, (steps, size) = torch.arange(len(positions)), first.draw.batch.shape[1:]
    weights = first.half.theta.new_ones(len(positions), steps * size)
    weights[rows, positions] = 0
    nodes = torch.full_like(rows, source).to(first.loss.device)
    before = rows_of(first.before, nodes)
    sent, _, _ = operator.work(first.draw, before, nodes.tolist(), Weights(samples=(weights.view(-1, steps, size),)))
    return difference(sent, first.half, Perturbation(nodes, rows.to(nodes.device), before.theta, before.state))


def _replayed(operator: Operator, rounds: Sequence[Round], evaluation: Evaluation, change: Perturbation) -> Entries:
    """Everyone's loss minus its loss if `change` had been made after the local work of the first round."""
    yield 0, change, _excess(operator, evaluation, rounds[0].half, change)
    before = None
    for hop, round_ in enumerate(rounds, start=1):
        half = change if hop == 1 else operator.replay(round_, change)
        change = before = operator.exchange(round_).replay(round_, before, half)
        if not len(change.nodes):  # it reached nobody
            return
        yield hop, change, _excess(operator, evaluation, round_.after, change)


def _excess(operator: Operator, evaluation: Evaluation, here: Participants, change: Perturbation) -> Tensor:
    """L(θ_k) − L(θ_k + change) of every pair."""
    theta, nodes = here.theta[change.nodes], change.nodes.tolist()
    with_update = operator.losses(evaluation, at_pairs(here, change, theta), nodes)
    return with_update - operator.losses(evaluation, at_pairs(here, change, theta + change.theta), nodes)
