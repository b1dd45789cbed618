"""TRIP-Shapley: local Shapley values of each round, passed on as models are (Anada et al. 2025, arXiv 2505.23246).

φ_k^{t+1} = Σ_j W[k, j] φ_j^t + ψ_k^t        ψ_k^t[j]: the Shapley value of j's update for k's model after round t
"""

from collections.abc import Sequence

import torch

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice_experiments.rivals.coalitions import RoundGame, local_shapley, random_orders
from cascadice_experiments.rivals.estimate import Estimate, weighted_rounds


def trip_shapley(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1,
    permutations: int | None = None,
) -> Estimate:  # fmt: skip
    """The contribution of every participant to the final models: Σ_k q_k φ_k^T.

    The paper is about gossip, so little is adapted: the utility is the loss, not the accuracy, and what participants
    contributed to each final model is weighted by q, not reported model by model. In ψ_k a neighbour outside the
    coalition passes on the model it had before its local work, which is the game of this package. The recursion was
    read from public code that names equations 3 and 4 of the paper, whose own text was not at hand.

    A round's ψ reaches the end through the mixing matrices alone: Σ_k q_k φ_k^T = Σ_t qᵀ W^{T−1} ⋯ W^{t+1} ψ^t. Where
    qᵀ W = qᵀ (W doubly stochastic and equal weights), that is FedSV.

    Args:
        every: Look at one round in so many; contributions are passed on in all of them.
        permutations: How many random orders to average over in each round; all coalitions of each neighbourhood unless
            given.
    """
    operator, evaluations = Operator(network), 0
    phi = torch.zeros(network.nodes, network.nodes, dtype=torch.float64)
    for round_, weight in weighted_rounds(network, rounds, every):
        phi = round_.W.to_dense().to(phi) @ phi
        if weight:
            game = RoundGame(operator, round_, evaluation)
            orders = None if permutations is None else random_orders(network.nodes, permutations, seed, round_.t)
            phi += weight * local_shapley(game, orders)
            evaluations += game.evaluations
    return Estimate(network.q.double().cpu() @ phi, evaluations)
