"""Proximal influence over every link of a round, which a receiver can compute from its own data and messages.

    influence[j, k] = W[k, j] q_k ∇L(θ_k^{t+1})ᵀ Δ_j        cosine[j, k] = cos(∇L(θ_k^{t+1}), Δ_j)

Definition 4 of Zhu et al. 2025.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.data import Samples
from cascadice.data.inputs import Inputs, at, stacked
from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.engine.evaluation import check_asked
from cascadice.engine.exchange.geometry import inner_products, norms
from cascadice.influence.checks import check_form, check_round


class Proximity(NamedTuple):
    """`[j, k]` is about what j sent to k in round t; 0 if k received nothing from j. Negative helped."""

    t: int
    influence: Float[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def proximity(network: Network, round_: Round, evaluation: Evaluation) -> Proximity:
    """Proximal influence (Definition 4) over every link of the round, and the cosine between gradient and update.

    If everyone is evaluated on its own data, k needs only its own data and its neighbours' messages. Cost: one
    evaluation gradient per participant, then one product of [n, d] matrices.

    Args:
        network: The network that made the round.
        round_: The round whose links to score.
        evaluation: What to measure; `evaluate_on(network, own_data(network, 32))` uses nobody else's data.

    Returns:
        The influence and the cosine of every link.

    Raises:
        ValueError: If the round was mixed by a rule that does not average, so that its links have no weights.

    Example:
        >>> proximity(network, rounds[10], evaluate_on(network, own_data(network, 32))).influence
    """
    check_asked(network, evaluation)
    check_round(round_)
    return proximity_of(network, round_, evaluation, range(network.nodes), round_.update)


def proximity_of(
    network: Network, round_: Round, evaluation: Evaluation, sources: Sequence[int], updates: Float[Tensor, "sources d"]
) -> Proximity:
    """The proximity of these sources, given their updates, to the network's participants; 0 for all other pairs."""
    check_form(network, round_)
    if round_.rule is not None:
        raise ValueError(
            f"round {round_.t} was mixed by a rule that does not average, so its links have no weights. Use truth."
        )
    _, gradient = Operator(network).gradients(evaluation, round_.after, range(network.nodes))
    inner, own = inner_products(updates, gradient), network.members or range(network.nodes)
    lengths = torch.outer(norms(updates), norms(gradient))
    weight = round_.W.to_dense().to(inner)[list(own)][:, list(sources)].T
    cosine = torch.where((weight > 0) & (lengths > 0), inner / lengths, 0.0)
    influence = weight * network.weights.to(inner) * inner
    return Proximity(round_.t, *(placed(network, values, sources, own) for values in (influence, cosine)))


def placed(network: Network, values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Float[Tensor, "n n"]:
    """The matrix of the whole network with these values in these rows and columns, and 0 elsewhere."""
    if [*rows] == [*columns] == [*range(network.whole)]:
        return values
    whole = values.new_zeros(network.whole, network.whole)
    whole[torch.tensor(rows)[:, None], torch.tensor(columns)] = values
    return whole


def own_data(network: Network, size: int | Sequence[int]) -> list[Samples]:
    """Random samples of each participant's own training data, drawn by the network's seed, to evaluate it on.

    Args:
        network: The network, made with a partition.
        size: How many samples: one number for all participants, or one for each.

    Returns:
        A set for each participant, for `evaluate_on`.

    Raises:
        ValueError: If the network has no partition, or a participant holds fewer samples.

    Example:
        >>> evaluate_on(network, own_data(network, 32))
    """
    if network.partition is None:
        raise ValueError(
            "own_data needs a partition; this network was built from batches alone. Pass a partition, too."
        )
    sizes = [size] * network.nodes if isinstance(size, int) else list(size)
    if len(sizes) != network.nodes:
        raise ValueError(
            f"size must be one number, or one for each of {network.nodes} participants; found {len(sizes)}."
        )
    least = min(len(part) for part in network.partition)
    if isinstance(size, int) and not 1 <= size <= least:
        raise ValueError(f"size must be in 1..{least}, the fewest samples that a participant holds; found {size}.")
    sets = []
    for k, (part, count) in enumerate(zip(network.partition, sizes, strict=True)):
        if not 1 <= count <= len(part):
            raise ValueError(f"size must be in 1..{len(part)}, the samples of participant {k}; found {count}.")
        node = network.members[k] if network.members else k
        order = torch.randperm(len(part), generator=seeds.generator(network.seed, "own data", node))
        sets.append(network.data.train.subset(part[order[:count]].to(network.device)))
    return sets


def in_turn(evaluation: Evaluation, t: int, size: int) -> Evaluation:
    """A few samples of each participant for round t, rotating through all of them over the rounds.

    With the same few samples in every round, their chance similarity to a neighbour's data would add up.

    Args:
        evaluation: What to measure on samples of each participant, from `evaluate_on` and `own_data`.
        t: The round.
        size: How many samples of each participant to use.

    Returns:
        The evaluation on these samples.

    Example:
        >>> few = in_turn(evaluate_on(network, own_data(network, 128)), t=7, size=64)  # doctest: +SKIP
    """
    if not evaluation.own:
        raise ValueError("the evaluation must have samples of each participant; found one set for all. Use own_data.")
    least = min(len(y) for y in evaluation.y)
    if not 1 <= size <= least:
        raise ValueError(f"size must be in 1..{least}, the samples of the evaluation; found {size}.")
    if size == least and isinstance(evaluation.y, Tensor):
        return evaluation

    def turn(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        rows = torch.arange(t * size, (t + 1) * size, device=y.device) % len(y)
        return at(x, rows), y[rows]

    x, y = stacked([turn(*evaluation.of(k)) for k in range(len(evaluation.y))])
    return replace(evaluation, x=x, y=y)
