"""The game of a round: everyone's model after the exchange if only a coalition had worked.

θ_k^{t+1}(S) = Σ_j W[k, j] (θ_j^t + 1[j ∈ S] Δ_j)        f_t(S) = Σ_k q_k L(θ_k^{t+1}(S))
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Operator, Participants, Round, mix

TOGETHER = 256
"""How many models are evaluated at a time."""

LARGEST = 12
"""The most players for which every coalition is evaluated."""


class RoundGame:
    """The losses of a round's coalitions, each evaluated once.

    Receiver k's model depends only on those whom k hears, so coalitions that are the same to k are one evaluation.

    Attributes:
        evaluations: Models evaluated so far.
    """

    evaluations: int

    def __init__(self, operator: Operator, round_: Round, evaluation: Evaluation) -> None:
        if round_.rule is not None:
            raise ValueError(
                f"coalitions need rounds that a matrix mixed; round {round_.t} was mixed by a rule that does not "
                "average. Train without the rule."
            )
        self._operator, self._evaluation, self._buffers = operator, evaluation, round_.after.buffers
        self._W = round_.W.to_dense().to(round_.before.theta)
        self._idle, self._update = mix(round_.W, round_.before).theta, round_.update
        self._known: dict[bytes, float] = {}
        self.hears: Bool[Tensor, "n n"] = (self._W != 0).cpu()
        self.evaluations = 0

    def losses(self, nodes: Int[Tensor, " rows"], members: Bool[Tensor, "rows n"]) -> Float[Tensor, " rows"]:
        """L(θ_k^{t+1}(S)) of each row's receiver k and coalition S."""
        asked = torch.cat([nodes[:, None], members & self.hears[nodes]], 1)
        cases, place = torch.unique(asked, dim=0, return_inverse=True)
        keys = [case.tobytes() for case in cases.numpy()]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        for start in range(0, len(new), TOGETHER):
            some = new[start : start + TOGETHER]
            found = self._evaluated(cases[some, 0], cases[some, 1:])
            self._known.update(zip((keys[i] for i in some), found.tolist(), strict=True))
        self.evaluations += len(new)
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float64)[place]

    def _evaluated(self, nodes: Tensor, members: Tensor) -> Tensor:
        rows = nodes.to(self._W.device)
        theta = self._idle[rows] + (self._W[rows] * members.to(self._W)) @ self._update
        buffers = {name: value[rows] for name, value in self._buffers.items()}
        return self._operator.losses(self._evaluation, Participants(theta, {}, buffers), nodes.tolist()).double()

    def by_receiver(self, members: Bool[Tensor, "coalitions n"]) -> Float[Tensor, "coalitions n"]:
        """The loss of every receiver under each coalition."""
        count, n = members.shape
        return self.losses(torch.arange(n).repeat(count), members.repeat_interleave(n, 0)).view(count, n)

    def value(self, members: Bool[Tensor, "coalitions n"]) -> Float[Tensor, " coalitions"]:
        """f_t(S) of each coalition; receivers that do not count are not evaluated."""
        q = self._operator.network.q.double().cpu()
        counted = q.nonzero().flatten()
        rows = counted.repeat(len(members)), members.repeat_interleave(len(counted), 0)
        return self.losses(*rows).view(len(members), -1) @ q[counted]


def local_shapley(game: RoundGame, orders: Int[Tensor, "orders n"] | None = None) -> Float[Tensor, "n n"]:
    """ψ[k, j]: the Shapley value of j's update for receiver k's loss after the round. Negative helped.

        Σ_j ψ[k, j] = L(θ_k^{t+1}) − L(θ_k^{t+1}(∅))

    Those whom k does not hear get 0, so the exact value takes the coalitions of k's neighbourhood alone.

    It is the average over `orders`, or over all coalitions of each neighbourhood unless these are given.
    """
    if orders is not None:
        losses = game.by_receiver(prefixes(orders).flatten(0, 1))
        return marginals(losses.view(len(orders), -1, losses.shape[1]), orders).T
    n = len(game.hears)
    heard = [row.nonzero().flatten() for row in game.hears]
    members = [every_coalition(len(own)) for own in heard]
    nodes = torch.arange(n).repeat_interleave(torch.tensor([len(own) for own in members]))
    rows = torch.cat([_among(n, own, each) for own, each in zip(heard, members, strict=True)])
    values = torch.split(game.losses(nodes, rows), [len(own) for own in members])
    psi = torch.zeros(n, n, dtype=torch.float64)
    for k, (own, of_k) in enumerate(zip(heard, values, strict=True)):
        psi[k, own] = shapley(of_k)
    return psi


def _among(n: int, players: Tensor, members: Tensor) -> Tensor:
    return torch.zeros(len(members), n, dtype=torch.bool).index_copy_(1, players, members)


def every_coalition(players: int) -> Bool[Tensor, "coalitions players"]:
    """All coalitions in the order of `shapley`: j belongs to number c if bit j of c is set.

    Example:
        >>> every_coalition(2).int().tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    if players > LARGEST:
        raise ValueError(f"all coalitions are too many for {players} players; at most {LARGEST}. Give permutations.")
    return (torch.arange(2**players)[:, None] >> torch.arange(players) & 1).bool()


def random_orders(players: int, count: int, seed: int, t: int = 0) -> Int[Tensor, "count players"]:
    """Random permutations of the players, others for each round t."""
    draw = seeds.generator(seed, "permutations", players, t)
    return torch.stack([torch.randperm(players, generator=draw) for _ in range(count)])


def prefixes(orders: Int[Tensor, "orders n"]) -> Bool[Tensor, "orders joined n"]:
    """The coalitions as players join one by one, from nobody to everybody.

    Example:
        >>> prefixes(torch.tensor([[1, 0]])).int().tolist()
        [[[0, 0], [0, 1], [1, 1]]]
    """
    joined_after = orders.argsort(1)
    return joined_after[:, None] < torch.arange(orders.shape[1] + 1)[:, None]


def marginals(
    values: Float[Tensor, "orders joined *games"], orders: Int[Tensor, "orders n"]
) -> Float[Tensor, "n *games"]:
    """Shapley values by permutations, from the values of each order's `prefixes`: the mean change as a player joined.

    Example:
        >>> marginals(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[1, 0]]))
        tensor([-2., -1.])
    """
    changes = values.diff(dim=1).flatten(0, 1)
    total = changes.new_zeros(orders.shape[1], *changes.shape[1:])
    return total.index_add_(0, orders.flatten(), changes) / len(orders)
