"""The ground truth for ledgers: networks retrained with each coalition of participants."""

import torch
from torch import Tensor

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Network, Operator, simulate, with_weights
from cascadice.influence import retrain


def coalitions(nodes: int) -> Tensor:
    """All coalitions, `[2ⁿ, n]` of 0 and 1: bit j of a coalition's number says that j works."""
    return torch.stack([torch.arange(2**nodes) >> j & 1 for j in range(nodes)], dim=1).double()


def exact_shapley(network: Network, rounds: int, evaluation: Evaluation) -> Tensor:
    """Shapley values of the participants, by training every coalition. Negative helped."""
    *_, untrained = simulate(with_weights(network, 0.0), rounds, window=0)
    nobody = Operator(network).losses(evaluation, untrained.after, range(network.nodes)).mean(0, keepdim=True)
    others = retrain(network, rounds, evaluation, updates=coalitions(network.nodes)[1:])
    return shapley(torch.cat([nobody.double().cpu(), others]))
