"""Ground truth (DICE-GT): replay the rounds without the update, and compare.

    truth[0, j] = q_j (L(θ_j^{t+½}) − L(θ_j^t))        truth[h, k] = q_k (L(θ_k^{t+h}) − L(θ_{k∖j}^{t+h}))

Definitions 1 and 2 of Zhu et al. 2025. Only the light cone of the source changes, so only that is replayed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cascadice.data.batches import PADDING
from cascadice.engine import Evaluation, Operator, Participants
from cascadice.engine.networks import Network, Weights
from cascadice.engine.rounds import Perturbation, Round, difference, rows_of
from cascadice.influence.cascade import Cascade, Entries, at_pairs, cascade_values, scaled_updates
from cascadice.influence.checks import Sources, check_samples_are_separate, check_sources


def truth(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources = None, *,
    operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The true influence of each source's update: it skips its local step, and its light cone is replayed.

    Buffers (running statistics of BatchNorm) are held as they were. Cost: for each source, a training step for everyone
    it reached in each round, and an evaluation.

    Args:
        rounds: Consecutive rounds, from the one of the update on; their number is the number of hops.
        sources: Whose updates; everybody's unless given.
        operator: The operator to use, where its exchange is not the one in memory.

    Returns:
        The cascade `value[hop, source, receiver]`; negative helped.

    Raises:
        ValueError: Where the rounds are not this network's, or do not follow one another.

    Example:
        >>> truth(network, rounds[10:13], evaluate_on(network), sources=[3]).total
    """
    chosen, op = check_sources(network, rounds, sources), operator or Operator(network)

    def entries(group: list[int]) -> Entries:
        return _replayed(op, rounds, evaluation, scaled_updates(rounds[0], group, -1.0))

    return Cascade("truth", rounds[0].t, tuple(chosen), cascade_values(network, rounds, chosen, entries))


def truth_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, source: int,
    samples: Sequence[int] | None = None, *, operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The true influence of single samples: the source's local work with one term fewer in one gradient.

        g_{∖i} = g − J_iᵀ ∂L/∂output_i        so that to first order the parts add up to the batch's

    The local steps are made again from (θ, state) with any optimizer, and the light cone is replayed. With several
    local steps, a term is left out of the step that used it, and the later ones follow. Cost: as `truth`, with each
    sample as a source.

    Args:
        rounds: Consecutive rounds, from the one of the update on.
        source: Whose batch.
        samples: Places in `draw.batch[source].flatten()`: the batches of local steps follow one another, as in
            `by_sample`. All unless given.
        operator: The operator to use, where its exchange is not the one in memory.

    Returns:
        The cascade `value[hop, sample, receiver]`; negative helped.

    Raises:
        ValueError: Where the rounds are not this network's, or samples have no part of their own in the loss.

    Example:
        >>> truth_of_samples(network, rounds[10:12], evaluate_on(network), source=3, samples=[0, 1]).value.sum(2)
    """
    (source,) = check_sources(network, rounds, [source])
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    drawn, op = rounds[0].draw.batch[source].flatten().cpu(), operator or Operator(network)
    used = (drawn != PADDING).nonzero().flatten().tolist()
    places = used if samples is None else list(samples)
    for place in places:
        if place not in used:
            last = max(used, default=0)
            raise ValueError(f"samples must be places in a batch of {len(used)}, from 0 to {last}; found {place}.")

    def entries(group: list[int]) -> Entries:
        return _replayed(op, rounds, evaluation, _without_samples(op, rounds[0], source, group))

    value = cascade_values(network, rounds, places, entries)
    return Cascade("truth", rounds[0].t, (source,) * len(places), value, tuple(places))


def _without_samples(operator: Operator, first: Round, source: int, places: list[int]) -> Perturbation:
    """What the source's local work would leave changed without one sample's term, a row each. Cost: that work each."""
    device, dtype = first.loss.device, first.half.theta.dtype
    chosen = torch.tensor(places, device=device)
    _, steps, size = first.draw.batch.shape
    weights = (chosen[:, None] != torch.arange(steps * size, device=device)).to(dtype).view(-1, steps, size)
    nodes = torch.full_like(chosen, source)
    before = rows_of(first.before, nodes)
    again, _, _ = operator.work(first.draw, before, nodes.tolist(), Weights(samples=(weights,)))
    pairs = Perturbation(nodes, torch.arange(len(places), device=device), before.theta, before.state)
    return difference(again, first.half, pairs)


def _replayed(operator: Operator, rounds: Sequence[Round], evaluation: Evaluation, change: Perturbation) -> Entries:
    """How much more everyone's loss is than if, after the first local work, the change had been made."""
    yield 0, change, _excess(operator, evaluation, rounds[0].half, change)
    before = None
    for hop, round_ in enumerate(rounds, start=1):
        half = change if hop == 1 else operator.replay(round_, change)
        change = operator.exchange(round_).replay(round_, before, half)
        if not len(change.nodes):  # it reached nobody
            return
        yield hop, change, _excess(operator, evaluation, round_.after, change)
        before = change


def _excess(operator: Operator, evaluation: Evaluation, here: Participants, change: Perturbation) -> Tensor:
    """L(θ_k) − L(θ_k + change) of every pair."""
    own, nodes = here.theta[change.nodes], change.nodes.tolist()
    kept = operator.losses(evaluation, at_pairs(here, change, own), nodes)
    return kept - operator.losses(evaluation, at_pairs(here, change, own + change.theta), nodes)
