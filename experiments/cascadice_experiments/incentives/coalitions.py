"""The truth that ledgers are compared with: networks retrained with each coalition of participants."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Network, by_network, evaluate, fleet, simulate
from cascadice_experiments.data_sets import first
from cascadice_experiments.incentives.settings import Setting


class Retrained(NamedTuple):
    """The mean test loss and accuracy of the network, for each coalition."""

    loss: Tensor
    accuracy: Tensor


def coalitions(nodes: int) -> Tensor:
    """All coalitions, `[2ⁿ, n]` of 0 and 1: bit j of a coalition's number says that j works."""
    return torch.stack([torch.arange(2**nodes) >> j & 1 for j in range(nodes)], dim=1)


def all_but_one(nodes: int) -> Tensor:
    """The coalition of everyone, then those without 0, without 1, …"""
    return torch.cat([torch.ones(1, nodes), 1 - torch.eye(nodes)])


def retrain(network: Network, members: Tensor, setting: Setting) -> Retrained:
    """Train the network with each of these coalitions, `[coalitions, n]` of 0 and 1, side by side.

    Whoever is no member has a learning rate of 0. Senders of noise draw anew in every coalition.
    """
    working = members.reshape(-1)
    rates = (working * setting.lr).to(network.initial.theta)
    idle = set((working == 0).nonzero().flatten().tolist())
    many = fleet([replace(network, behaviours=())] * len(members))
    noisy = [
        replace(b, nodes=tuple(k for k in range(b.nodes[0], many.nodes, network.nodes) if k not in idle))
        for b in network.behaviours
    ]
    many = replace(
        many,
        batches=lambda t: network.batches(t).repeat(len(members), 1, 1),
        lr=lambda t: rates,  # one rate per participant
        behaviours=tuple(b for b in noisy if b.nodes),
    )
    *_, last = simulate(many, setting.rounds, window=0)
    metrics = evaluate(many, last.after, first(network.data.test, setting.judged))
    return Retrained(*(by_network(part.double().cpu(), len(members)).mean(1) for part in metrics))
