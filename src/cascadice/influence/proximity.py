"""What every link carried in a round, judged by its receiver alone: its own data, and what it received."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.data import Samples
from cascadice.engine.exchange.geometry import inner_products, norms
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence.cascades import check_form
from cascadice.influence.evaluation import Evaluation, slopes


class Proximity(NamedTuple):
    """`[j, k]` is of what j sent to k in round t; 0 where k heard nothing from j. Negative helped."""

    t: int
    influence: Float[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def proximity(network: Network, done: Round, evaluation: Evaluation) -> Proximity:
    """Proximal influence (Definition 4) over every link of the round, and its direction without its size.

        influence[j, k] = W[k, j] q_k ∇L(θ_k^{t+1})ᵀ Δ_j        cosine[j, k] = cos(∇L(θ_k^{t+1}), Δ_j)

    With `evaluate_on(network, own_data(network, size))`, k needs its own data and its neighbours' messages only. Cost: an
    evaluation gradient a participant, then one product of [n, d] matrices.
    """
    check_form(network, done)
    _, slope = slopes(network, evaluation, done.after.theta, done.after.buffers, range(network.nodes))
    update = done.update
    inner = inner_products(update, slope)
    lengths = torch.outer(norms(update), norms(slope))
    heard = done.W.to_dense().T.to(inner)
    cosine = torch.where((heard > 0) & (lengths > 0), inner / lengths, 0.0)
    return Proximity(done.t, heard * network.weights.to(inner) * inner, cosine)


def own_data(network: Network, size: int) -> list[Samples]:
    """`size` samples of each participant's own training data, drawn by the network's seed: what it may evaluate on."""
    if network.partition is None:
        raise ValueError("participants must have data of their own; this network was given batches. Pass a partition.")
    least = min(len(part) for part in network.partition)
    if not 1 <= size <= least:
        raise ValueError(f"size must be in 1..{least}, the least that a participant holds; found {size}.")
    found = []
    for k, part in enumerate(network.partition):
        order = torch.randperm(len(part), generator=seeds.generator(network.seed, "own data", k))
        found.append(network.data.train.subset(part[order[:size]].to(network.device)))
    return found


def in_turn(evaluation: Evaluation, t: int, size: int) -> Evaluation:
    """The evaluation of round t: `size` of everybody's samples, others in each round, until all have had their turn.

    Judged by the same few in every round, what those few happen to have in common with a neighbour's data adds up.
    """
    if not evaluation.own:
        raise ValueError("the evaluation must have samples of each participant; found one set for all. Use own_data.")
    there = evaluation.x.shape[1]
    if not 1 <= size <= there:
        raise ValueError(f"size must be in 1..{there}, the samples of the evaluation; found {size}.")
    taken = torch.arange(t * size, (t + 1) * size, device=evaluation.x.device) % there
    return evaluation if size == there else replace(evaluation, x=evaluation.x[:, taken], y=evaluation.y[:, taken])
