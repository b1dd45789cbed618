"""The ground truth for ledgers: networks retrained with each coalition of participants."""

import torch
from torch import Tensor

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Network, Operator, simulate, with_weights
from cascadice.influence import retrain
from cascadice_experiments.rivals.coalitions import every_coalition


def exact_shapley(network: Network, rounds: int, evaluation: Evaluation) -> Tensor:
    """Shapley values of the participants, by training every coalition. Negative helped."""
    *_, untrained = simulate(with_weights(network, 0.0), rounds, window=0)
    nobody = Operator(network).losses(evaluation, untrained.after, range(network.nodes)).mean(0, keepdim=True)
    others = retrain(network, rounds, evaluation, updates=every_coalition(network.nodes)[1:].double())
    return shapley(torch.cat([nobody.double().cpu(), others]))
