"""What every link carried in a round, as its receiver can tell: from its own data, and from what it received."""

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
from cascadice.engine.exchange.geometry import inner_products, norms
from cascadice.influence.checks import check_form, check_round


class Proximity(NamedTuple):
    """`[j, k]` is of what j sent to k in round t; 0 where k heard nothing from j. Negative helped."""

    t: int
    influence: Float[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def proximity(network: Network, round_: Round, evaluation: Evaluation) -> Proximity:
    """Proximal influence (Definition 4) over every link of the round, and its direction without its size.

        influence[j, k] = W[k, j] q_k ∇L(θ_k^{t+1})ᵀ Δ_j        cosine[j, k] = cos(∇L(θ_k^{t+1}), Δ_j)

    Evaluated on own data, k needs nothing but its own data and its neighbours' messages. Cost: an evaluation gradient a
    participant, then one product of [n, d] matrices.

    Args:
        round_: The round whose links are scored.
        evaluation: What everybody is evaluated on; `own_data` needs no data of others.

    Returns:
        The influence and the cosine of every link.

    Raises:
        ValueError: Where a rule that does not average mixed the round: its links have no weights.

    Example:
        >>> proximity(network, rounds[10], evaluate_on(network, own_data(network, 32))).influence
    """
    check_round(round_)
    return proximity_of(network, round_, evaluation, range(network.nodes), round_.update)


def proximity_of(
    network: Network, round_: Round, evaluation: Evaluation, sources: Sequence[int], updates: Float[Tensor, "sources d"]
) -> Proximity:
    """The proximity of these sources, whose updates are known, to the network's participants; 0 of all other pairs."""
    check_form(network, round_)
    if round_.rule is not None:
        raise ValueError(
            f"round {round_.t} was mixed by a rule that does not average, so its links have no weights. Use truth."
        )
    _, gradient = Operator(network).gradients(evaluation, round_.after, range(network.nodes))
    inner, own = inner_products(updates, gradient), network.members or range(network.nodes)
    lengths = torch.outer(norms(updates), norms(gradient))
    heard = round_.W.to_dense().to(inner)[list(own)][:, list(sources)].T
    cosine = torch.where((heard > 0) & (lengths > 0), inner / lengths, 0.0)
    influence = heard * network.weights.to(inner) * inner
    return Proximity(round_.t, *(placed(network, values, sources, own) for values in (influence, cosine)))


def placed(network: Network, values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Float[Tensor, "n n"]:
    """The matrix of everybody with these values in these rows and columns, and 0 elsewhere."""
    if [*rows] == [*columns] == [*range(network.whole)]:
        return values
    whole = values.new_zeros(network.whole, network.whole)
    whole[torch.tensor(rows)[:, None], torch.tensor(columns)] = values
    return whole


def own_data(network: Network, size: int | Sequence[int]) -> list[Samples]:
    """Samples of each participant's own training data, drawn by the network's seed: what it may be evaluated on.

    Args:
        size: How many samples, for all or for each participant.

    Returns:
        A set for each participant, as `evaluate_on` takes them.

    Raises:
        ValueError: Where the network does not know who holds what, or somebody holds fewer samples.

    Example:
        >>> evaluate_on(network, own_data(network, 32))
    """
    if network.partition is None:
        raise ValueError("participants must have data of their own; this network was given batches. Pass a partition.")
    sizes = [size] * network.nodes if isinstance(size, int) else list(size)
    if len(sizes) != network.nodes:
        raise ValueError(
            f"size must be one number, or one for each of {network.nodes} participants; found {len(sizes)}."
        )
    least = min(len(part) for part in network.partition)
    if isinstance(size, int) and not 1 <= size <= least:
        raise ValueError(f"size must be in 1..{least}, the least that a participant holds; found {size}.")
    sets = []
    for k, (part, count) in enumerate(zip(network.partition, sizes, strict=True)):
        if not 1 <= count <= len(part):
            raise ValueError(f"size must be in 1..{len(part)}, what participant {k} holds; found {count}.")
        who = network.members[k] if network.members else k
        order = torch.randperm(len(part), generator=seeds.generator(network.seed, "own data", who))
        sets.append(network.data.train.subset(part[order[:count]].to(network.device)))
    return sets


def in_turn(evaluation: Evaluation, t: int, size: int) -> Evaluation:
    """The evaluation of round t: `size` of everybody's samples, others in each round, until all have had their turn.

    Evaluated on the same few in every round, what those few happen to have in common with a neighbour's data adds up.
    """
    if not evaluation.own:
        raise ValueError("the evaluation must have samples of each participant; found one set for all. Use own_data.")
    least = min(len(y) for y in evaluation.y)
    if not 1 <= size <= least:
        raise ValueError(f"size must be in 1..{least}, the samples of the evaluation; found {size}.")
    if size == least and isinstance(evaluation.y, Tensor):
        return evaluation

    def taken(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        rows = torch.arange(t * size, (t + 1) * size, device=y.device) % len(y)
        return at(x, rows), y[rows]

    x, y = stacked([taken(*evaluation.of(k)) for k in range(len(evaluation.y))])
    return replace(evaluation, x=x, y=y)
