"""FedSV: Shapley values of each round's updates, summed over rounds (Wang et al. 2020, arXiv 2009.06192).

φ_j = Σ_t Σ_{S ∌ j} |S|! (n − |S| − 1)! / n! · (f_t(S ∪ j) − f_t(S))        Σ_j φ_j = Σ_t f_t(all) − f_t(∅)
"""

from collections.abc import Sequence

import torch

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice_experiments.rivals.coalitions import RoundGame, local_shapley, random_orders
from cascadice_experiments.rivals.estimate import Estimate, looked_at


def fedsv(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1,
    permutations: int | None = None,
) -> Estimate:  # fmt: skip
    """The federated Shapley value of every participant.

    Adapted: a round's game is that of gossip (see the package), in the loss. Everybody works in every round, where the
    paper has a server that selects some. The game is a sum over receivers and Shapley values are linear, so they are
    exact from the coalitions of each receiver's neighbours: Σ_k 2^(degree of k) evaluations, not n 2^n.

    Args:
        permutations: How many random orders to average over in each round, as the paper does for many participants;
            all coalitions unless given.
    """
    operator, q = Operator(network), network.q.double().cpu()
    scores, evaluations = torch.zeros(network.nodes, dtype=torch.float64), 0
    for round_, weight in looked_at(network, rounds, every):
        game = RoundGame(operator, round_, evaluation)
        orders = None if permutations is None else random_orders(network.nodes, permutations, seed, round_.t)
        scores += weight * q @ local_shapley(game, orders)
        evaluations += game.evaluations
    return Estimate(scores, evaluations)
