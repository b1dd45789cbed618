"""ComFedSV: FedSV from a part of the coalitions of each round; a low-rank matrix stands for all (Fan et al. 2022).

U[t, S] = f_t(S) − f_t(∅) ≈ a_t · b_S        min over a, b of Σ_observed (U[t, S] − a_t · b_S)² + λ (‖a‖² + ‖b‖²)
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice import seeds
from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice_experiments.rivals.coalitions import RoundGame, every_coalition, marginals, prefixes, random_orders
from cascadice_experiments.rivals.estimate import Estimate, looked_at


def comfedsv(
    network: Network, rounds: int | Sequence[Round], evaluation: Evaluation, seed: int = 0, *, every: int = 1,
    permutations: int | None = None, observed: float = 0.3, rank: int = 5, ridge: float = 0.1, sweeps: int = 30,
) -> Estimate:  # fmt: skip
    """The completed federated Shapley value of every participant (arXiv 2109.09046).

    Adapted: a round's game is that of gossip (see the package), in the loss. In the paper a round shows the coalitions
    of those whom the server selected; here everybody works, and each round is looked at for a random part of the
    coalitions, so that the completion saves evaluations. As in the paper all of them are looked at in the first round,
    the completed matrix replaces what was observed too, and for many participants the coalitions are the prefixes of
    permutations that are drawn once. Where participants hear few others, a third of the coalitions already takes nearly
    all of the models that FedSV evaluates: little is saved unless `observed` is small, and then the completion is poor.

    Args:
        permutations: How many permutations' prefixes are the columns; all coalitions unless given.
        observed: The part of the columns that each round is looked at for.
        rank: Of the completed matrix.
        ridge: λ, with U scaled to a root mean square of 1.
        sweeps: Of alternating least squares.
    """
    n = network.nodes
    orders = None if permutations is None else random_orders(n, permutations, seed)
    coalitions = every_coalition(n) if orders is None else prefixes(orders).flatten(0, 1)
    columns, place = torch.unique(coalitions, dim=0, return_inverse=True)  # nobody comes first
    operator, looks, evaluations = Operator(network), list[tuple[Tensor, Tensor, float]](), 0
    for round_, weight in looked_at(network, rounds, every):
        game = RoundGame(operator, round_, evaluation)
        chance = torch.rand(len(columns), generator=seeds.generator(seed, "observed coalitions", round_.t))
        seen = chance < (observed if looks else 1.0)
        looks.append((_utilities(game, columns, seen), seen, weight))
        evaluations += game.evaluations
    values, known = (torch.stack([look[i] for look in looks])[:, 1:] for i in (0, 1))
    matrix = completed(values, known, rank, ridge, sweeps)
    total = (torch.tensor([look[2] for look in looks], dtype=torch.float64)[:, None] * matrix).sum(0)
    whole = torch.cat([total.new_zeros(1), total])[place]
    scores = shapley(whole) if orders is None else marginals(whole.view(len(orders), n + 1), orders)
    return Estimate(scores, evaluations)


def _utilities(game: RoundGame, columns: Bool[Tensor, "columns n"], seen: Bool[Tensor, " columns"]) -> Tensor:
    """f_t(S) − f_t(∅) of the columns that are seen, 0 of the others."""
    nobody = game.value(columns[:1])
    return torch.zeros(len(columns), dtype=torch.float64).masked_scatter_(seen, game.value(columns[seen]) - nobody)


def completed(
    values: Float[Tensor, "rows columns"], seen: Bool[Tensor, "rows columns"], rank: int, ridge: float, sweeps: int
) -> Float[Tensor, "rows columns"]:
    """The low-rank matrix nearest to what was seen, by alternating least squares.

    It starts from the singular vectors of the matrix in which what was not seen is 0.
    """
    known = seen.to(values)
    scale = float((values * known).square().sum() / known.sum()) ** 0.5 or 1.0
    scaled = values * known / scale
    left, singular, _ = torch.linalg.svd(scaled, full_matrices=False)
    rows = left[:, :rank] * singular[:rank].sqrt()
    columns = _solved(scaled.T, known.T, rows, ridge)
    for _ in range(sweeps):
        rows = _solved(scaled, known, columns, ridge)
        columns = _solved(scaled.T, known.T, rows, ridge)
    matrix: Tensor = scale * rows @ columns.T
    return matrix


def _solved(values: Tensor, known: Tensor, other: Tensor, ridge: float) -> Tensor:
    """The factor of each row that fits what is known of it, given the other factor."""
    products = torch.einsum("tc,cr,cs->trs", known, other, other)
    products += ridge * torch.eye(other.shape[1], dtype=other.dtype)
    factors: Tensor = torch.linalg.solve(products, (values @ other)[..., None])[..., 0]
    return factors
