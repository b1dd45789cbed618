"""Path-integrated influence: the first-order form, integrated along the source's update.

    Φ(α) = Σ q L with the source's update scaled by α        truth = Φ(1) − Φ(0) = ∫₀¹ Φ'(α) dα

Φ' is the first-order form along the run in which the update is scaled by α; a quadrature with few points sums to the
truth.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.engine.rounds import Perturbation
from cascadice.influence.cascade import Cascade, Entries, at_pairs, cascade_of, scaled_updates
from cascadice.influence.checks import Sources, check_samples_are_separate, check_sources
from cascadice.influence.quadrature import weighted_points
from cascadice.influence.reverse_gossip import by_sample
from cascadice.influence.shares import mean_adjoint


def path_integrated(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources = None,
    points: int = 2, *, operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The influence of each source's update, integrated along it; it sums to the truth if networks are smooth.

    At each α the light cone is replayed and one tangent is pushed through it. Cost: `points` × (truth + first order),
    so `truth` itself is cheaper wherever it can be computed.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the update; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        sources: Participants whose updates to score; defaults to all.
        points: Quadrature points.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        The cascade `value[hop, source, receiver]`; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's, or `points` is not from 1 to 100.

    Example:
        >>> path_integrated(network, rounds[10:12], evaluate_on(network), sources=[3]).value.sum()
    """
    chosen, op = check_sources(network, rounds, evaluation, sources), operator or Operator(network)
    quadrature = weighted_points(points)

    def entries(group: list[int]) -> Entries:
        for alpha, weight in quadrature:
            for hop, tangent, value in _along(op, rounds, evaluation, group, alpha):
                yield hop, tangent, weight * value

    return cascade_of(f"path-integrated, {points} points", network, rounds, chosen, entries)


def _along(
    operator: Operator, rounds: Sequence[Round], evaluation: Evaluation, sources: list[int], alpha: float
) -> Entries:
    """The first-order form where each source made only α of its update."""
    away, tangent = scaled_updates(rounds[0], sources, alpha - 1), scaled_updates(rounds[0], sources, 1.0)
    here, before, tangent_before = rounds[0].half, None, None
    for hop in range(len(rounds) + 1):
        if hop > 0:
            round_ = rounds[hop - 1]
            if hop > 1:
                tangent, away = operator.push(round_, tangent, away), operator.replay(round_, away)
            exchange = operator.exchange(round_)
            tangent, away = (
                exchange.push(round_, (before, away), tangent_before, tangent),
                exchange.replay(round_, before, away),
            )
            tangent, away = _of_the_same_pairs(tangent, away)
            here, before, tangent_before = round_.after, away, tangent
        if not len(tangent.nodes):  # it reached nobody
            return
        at = at_pairs(here, away, here.theta[away.nodes] + away.theta)
        _, gradient = operator.gradients(evaluation, at, away.nodes.tolist())
        yield hop, tangent, (gradient * tangent.theta).sum(-1)


def _of_the_same_pairs(tangent: Perturbation, away: Perturbation) -> tuple[Perturbation, Perturbation]:
    """Both, with a row for each pair of either: a rule that selects may pass on a change but not its derivative."""
    if torch.equal(tangent.nodes, away.nodes) and torch.equal(tangent.sources, away.sources):
        return tangent, away
    pairs = [torch.stack([change.sources, change.nodes], 1) for change in (tangent, away)]
    union, places = torch.unique(torch.cat(pairs), dim=0, return_inverse=True)
    sources, nodes = union.unbind(1)

    def widened(change: Perturbation, own: Tensor) -> Perturbation:
        def rows(value: Tensor) -> Tensor:
            return value.new_zeros(len(union), *value.shape[1:]).index_copy_(0, own, value)

        return Perturbation(nodes, sources, *tree_map(rows, (change.theta, change.state)))

    own, others = places.split([len(tangent.nodes), len(away.nodes)])
    return widened(tangent, own), widened(away, others)


def path_integrated_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, source: int, points: int = 2, *,
    operator: Operator | None = None,
) -> Float[Tensor, " batch"]:  # fmt: skip
    """Each sample's part of its participant's `path_integrated` influence: only the source's own update is scaled.

    The parts sum to it as `shares_of_samples` sum to `shares`. Cost: that of `shares`.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the update; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        source: The participant whose batch to score.
        points: Quadrature points.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        A score for each sample of the source's batches in the first round; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's, or the loss or model couples samples.

    Example:
        >>> path_integrated_samples(network, rounds[10:12], evaluate_on(network), source=3).argmax()
    """
    (source,) = check_sources(network, rounds, evaluation, [source])
    check_samples_are_separate(network, rounds[0].draw, rounds[0].before)
    adjoint = mean_adjoint(network, rounds, evaluation, points, only=source, operator=operator)
    return by_sample(network, rounds[0], adjoint)[source]
