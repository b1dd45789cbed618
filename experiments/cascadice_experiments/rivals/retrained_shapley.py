"""Shapley values by retraining: the network is trained again with each coalition (Shapley 1953).

φ_j = Σ_{S ∌ j} |S|! (n − |S| − 1)! / n! · (f(S ∪ j) − f(S))        f(S) = Σ_k q_k L(θ_k^T), trained with S alone
"""

from collections.abc import Callable, Sequence

import torch

from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Network, Round
from cascadice.influence.retraining import retrain
from cascadice.influence.whole_run_shares import measured_at
from cascadice_experiments.rivals.coalitions import every_coalition, marginals, prefixes, random_orders
from cascadice_experiments.rivals.estimate import Estimate

LARGEST = 8
"""The most participants for which every coalition is trained: 255 trainings."""


def retrained_shapley(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *,
    permutations: int | None = None, trained: Callable[[int], None] | None = None,
) -> Estimate:  # fmt: skip
    """The Shapley value of every participant, by training.

    Adapted: those outside the coalition do not train and still pass on what they hear, so that the value of data is not
    mixed up with the value of links. With `permutations` it is the sampled estimate of Castro et al. 2009, whose
    coalitions are those that players form as they join in random order.

    Args:
        rounds: How many to train; of rounds that were kept, which must be the run from its start, only the number
            counts.
        permutations: How many random orders to average over; all coalitions unless given.
        trained: Called with how many networks were trained, each time some are done.

    Raises:
        ValueError: Where all coalitions would be too many, or the rounds do not start at 0.
    """
    n = network.nodes
    if not isinstance(rounds, int) and rounds[0].t != 0:
        raise ValueError(f"a run is trained again from round 0; the rounds start at {rounds[0].t}. Keep all of them.")
    if permutations is None and n > LARGEST:
        raise ValueError(f"all coalitions of {n} participants are too many; at most {LARGEST}. Give permutations.")
    count = rounds if isinstance(rounds, int) else len(rounds)
    orders = None if permutations is None else random_orders(n, permutations, seed)
    coalitions = every_coalition(n) if orders is None else prefixes(orders).flatten(0, 1)
    cases, place = torch.unique(coalitions, dim=0, return_inverse=True)  # nobody comes first
    nobody = measured_at(network, count, evaluation, 0.0)
    values = retrain(network, count, evaluation, updates=cases[1:].double(), trained=trained)
    values = torch.cat([torch.tensor([nobody], dtype=torch.float64), values])[place]
    scores = shapley(values) if orders is None else marginals(values.view(len(orders), n + 1), orders)
    return Estimate(scores, evaluations=len(cases) * n, trainings=len(cases) - 1)
