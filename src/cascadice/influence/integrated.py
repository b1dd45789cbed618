"""Reverse gossip integrated along everybody's updates: fair parts of what a round really achieved."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.execution import local_work
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round, mix
from cascadice.engine.simulation import play
from cascadice.influence.carrying import row_strategy
from cascadice.influence.cascades import check_rounds, gauss_legendre
from cascadice.influence.judging import Judge
from cascadice.influence.reverse import by_participant, reverse_gossip


def shares(network: Network, rounds: Sequence[Round], judge: Judge, points: int = 2) -> Float[Tensor, " n"]:
    """Aumann–Shapley shares: everybody's update of the round scaled together; they sum to the change it really made.

        share_j = ∫₀¹ A_j(α)ᵀ Δ_j dα        Σ_j share_j = Φ(1) − Φ(0)

    Cost: `points` × (a replay of the rounds and a sweep of reverse gossip).
    """
    check_rounds(rounds)
    total = torch.zeros(network.nodes, dtype=torch.float64, device=network.device)
    for alpha, weight in gauss_legendre(points):
        along = scaled(network, rounds, alpha)
        total += weight * by_participant(rounds[0], reverse_gossip(network, along, judge, direct=along[0].half.theta))
    return total


def scaled(network: Network, rounds: Sequence[Round], alpha: float) -> list[Round]:
    """These rounds again, with `alpha` of everybody's local work in the first."""
    work = local_work(row_strategy(network), network.learner)
    first = rounds[0]
    theta = first.before.theta + alpha * first.update
    state = {name: torch.lerp(first.before.state[name], value, alpha) for name, value in first.half.state.items()}
    half = Participants(theta, state, first.half.buffers)
    played = [first._replace(half=half, after=mix(first.W, half))]
    for done in rounds[1:]:
        played.append(play(network, work, done.drawn, played[-1].after))
    return played
