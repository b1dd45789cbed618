"""GTG-Shapley: permutations that start with everybody in turn, cut short where little is left (Liu et al. 2022).

φ_j = Σ_t mean over orders of f_t(before j ∪ j) − f_t(before j)        0 for those who join once f_t is near f_t(all)
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice_experiments.rivals.coalitions import RoundGame, prefixes
from cascadice_experiments.rivals.estimate import Estimate, looked_at


def gtg_shapley(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1,
    between: float = 1e-5, within: float = 0.05, tolerance: float = 0.05, least: int = 30, most: int = 200,
) -> Estimate:  # fmt: skip
    """The guided truncated gradient Shapley value of every participant (arXiv 2109.02053).

    In each round: nothing, if updates changed the loss by `between` or less. Else permutations, of which each
    participant leads the same number, and in which those who join once the loss is within reach of its final value get
    0; until the running mean changed by less than `tolerance` over the last ten permutations:

        1/n Σ_j |φ_j^m − φ_j^{m−10}| / |φ_j^m| < tolerance

    Adapted: a round's game is that of gossip (see the package), in the loss. The paper's thresholds are of accuracy and
    of rounds of whole epochs; a round of gossip moves the loss by thousandths, so `within` is a part of the round's
    change. The means are compared after each participant has led once, so that those orders are evaluated together.

    Args:
        between: Rounds whose updates change the loss by no more are not looked at further.
        within: Who joins when no more than this part of the round's change is left gets 0.
        least: Permutations of a round, at least.
        most: At most; rounded up so that everybody leads as often.
    """
    operator = Operator(network)
    scores, evaluations = torch.zeros(network.nodes, dtype=torch.float64), 0
    for round_, weight in looked_at(network, rounds, every):
        game = RoundGame(operator, round_, evaluation)
        nobody, everybody = game.value(torch.tensor([[False], [True]]).expand(2, network.nodes)).tolist()
        means = torch.zeros(1, network.nodes, dtype=torch.float64)
        while abs(everybody - nobody) > between and _goes_on(means, tolerance, least, most):
            orders = guided_orders(network.nodes, seed, round_.t, len(means) - 1)
            changes = _changes(game, orders, nobody, everybody, within)
            counts = torch.arange(len(means), len(means) + len(orders))[:, None]
            means = torch.cat([means, (means[-1] * (len(means) - 1) + changes.cumsum(0)) / counts])
        scores += weight * means[-1]
        evaluations += game.evaluations
    return Estimate(scores, evaluations)


def guided_orders(players: int, seed: int, t: int, count: int) -> Int[Tensor, "players players"]:
    """A permutation that each player leads, the others in random order; `count` says how many were drawn before."""
    draw = seeds.generator(seed, "guided permutations", players, t, count)
    others = torch.stack([torch.randperm(players - 1, generator=draw) for _ in range(players)])
    leader = torch.arange(players)[:, None]
    return torch.cat([leader, others + (others >= leader)], 1)


def _changes(
    game: RoundGame, orders: Int[Tensor, "orders n"], nobody: float, everybody: float, within: float
) -> Float[Tensor, "orders n"]:
    """What each player changed as it joined, order by order; all orders advance together, the truncated ones stop."""
    count, n = orders.shape
    coalitions, enough = prefixes(orders), within * abs(everybody - nobody)
    values = torch.full((count, n + 1), nobody, dtype=torch.float64)
    for place in range(1, n + 1):
        values[:, place] = values[:, place - 1]
        going_on = (everybody - values[:, place - 1]).abs() >= enough
        if bool(going_on.any()):
            values[going_on, place] = game.value(coalitions[going_on, place])
    return torch.zeros(count, n, dtype=torch.float64).scatter_(1, orders, values.diff(dim=1))


def _goes_on(means: Float[Tensor, "orders n"], tolerance: float, least: int, most: int, last: int = 10) -> bool:
    """Whether more permutations are needed, given the running means from none to all of them so far."""
    count = len(means) - 1
    if count >= most or count < max(least, last + 1):
        return count < most
    scale = means[-1].abs().clamp(min=torch.finfo(means.dtype).tiny)
    return not bool(((means[-1] - means[-1 - last]).abs() / scale).mean() < tolerance)
