"""The truth that ledgers are compared with: networks trained again with each coalition of participants."""

import torch
from torch import Tensor

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Network
from cascadice.influence.retraining import retrain
from cascadice.influence.whole_run_shares import measured_at


def coalitions(nodes: int) -> Tensor:
    """All coalitions, `[2ⁿ, n]` of 0 and 1: bit j of a coalition's number says that j works."""
    return torch.stack([torch.arange(2**nodes) >> j & 1 for j in range(nodes)], dim=1).double()


def exact_shapley(network: Network, rounds: int, evaluation: Evaluation) -> Tensor:
    """Shapley values of the participants, from a training of every coalition. Negative helped."""
    nobody = torch.tensor([measured_at(network, rounds, evaluation, 0.0)], dtype=torch.float64)
    others = retrain(network, rounds, evaluation, updates=coalitions(network.nodes)[1:])
    return shapley(torch.cat([nobody, others]))
