"""Mixing rules that guard gossip against attackers by looking at the models alone; rivals of trust by cosine.

`simulate(network, rounds, rule=krum())` uses one. Of the neighbours that a participant hears, at most the part `share`,
in [0, 0.5), may be false: f of them.
"""

from collections.abc import Sequence
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.engine.exchange.geometry import distances, neighbours
from cascadice.engine.exchange.stacked import mix
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw, MixingRule

SORTED_AT_ONCE = 2**25  # numbers


def clipping(share: float = 0.25) -> MixingRule:
    """Self-centred clipping (He, Karimireddy & Jaggi 2022): no neighbour moves a participant far.

        W'[k, j] = W[k, j] min(1, τ_k / ‖θ_j − θ_k‖),  and W'[k, k] is the rest

    τ_k is the distance to the (f + 1)-th farthest neighbour; the authors' program has f = 1. Cost: the distances, one
    product of [n, d] matrices.

    Args:
        share: The share of neighbours that may be attackers, which gives f.

    Returns:
        A rule for `simulate(rule=...)`.

    Example:
        >>> *_, last = simulate(network, 100, rule=clipping())  # doctest: +SKIP
    """
    _check_share(share)

    def rule(draw: Draw, before: Participants, half: Participants) -> Tensor:
        W = draw.W.to_dense()
        distance, heard = distances(half.theta).to(W), neighbours(W)
        farthest = torch.where(heard, distance, -1.0).sort(1, descending=True).values
        f = _false(heard.sum(1), share).clamp(max=heard.sum(1) - 1).clamp(min=0)
        radius = farthest.gather(1, f[:, None]).clamp(min=0)
        clipped = torch.where(heard, W * (radius / distance.clamp(min=1e-30)).clamp(max=1), 0.0)
        return clipped + (1 - clipped.sum(1)).diag()

    return rule


def krum(share: float = 0.25) -> MixingRule:
    """Krum (Blanchard et al. 2017): each participant adopts the model that lies nearest to most of those it holds.

    A model's score is the sum of squared distances to its m − f − 2 nearest among the m that k holds, its own included;
    the lowest score wins.

    Args:
        share: The share of neighbours that may be attackers, which gives f.

    Returns:
        A rule for `simulate(rule=...)`.

    Example:
        >>> *_, last = simulate(network, 100, rule=krum(share=0.2))  # doctest: +SKIP
    """
    _check_share(share)

    def rule(draw: Draw, before: Participants, half: Participants) -> Tensor:
        W = draw.W.to_dense()
        heard = neighbours(W)
        m = heard.sum(1) + 1
        scores = krum_scores(distances(half.theta).to(W).square(), heard, m - _false(m - 1, share) - 2)
        scores.diagonal().mul_(1 - 1e-9)  # of two equally near models, k keeps its own
        return torch.nn.functional.one_hot(scores.argmin(1), len(W)).to(W)

    return rule


def krum_scores(
    squared: Float[Tensor, "n n"], heard: Bool[Tensor, "n n"], nearest: Int[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """`[k, j]`: summed squared distances of j's row to its `nearest[k]` (at least 1) nearest among those k holds.

    k holds its own row and those it hears; infinite where it does not hold j's.
    """
    sources, absent = (part.to(squared.device) for part in _held(heard))
    among = squared[sources[:, :, None], sources[:, None, :]]  # [receiver, one, other]
    among.masked_fill_(absent[:, None] | absent[:, :, None], torch.inf).diagonal(dim1=1, dim2=2).fill_(torch.inf)
    ranked = among.sort(2).values[:, :, :-1]  # the last is the distance to oneself
    places = torch.arange(ranked.shape[2], device=squared.device)
    counted = places < nearest.to(squared.device).clamp(min=1)[:, None, None]
    totals = torch.where(counted & ranked.isfinite(), ranked, 0.0).sum(2).masked_fill(absent, torch.inf)
    return torch.full_like(squared, torch.inf).scatter(1, sources, totals)


def _held(heard: Bool[Tensor, "n n"]) -> tuple[Int[Tensor, "n most"], Bool[Tensor, "n most"]]:
    """Whose models each participant holds, its own included, in rows of equal length; and which places are empty."""
    held = heard | torch.eye(len(heard), dtype=torch.bool, device=heard.device)
    m = held.sum(1)
    most = int(m.max())
    sources = held.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return sources, torch.arange(most, device=heard.device) >= m[:, None]


def trimmed_mean(share: float = 0.25) -> MixingRule:
    """Coordinate-wise trimmed mean (Yin et al. 2018): the mean without the f smallest and f largest values.

    It does not average by a W, so it returns the mixed parameters. Cost: a sort of what each participant received.

    Args:
        share: The share of neighbours that may be attackers, which gives f.

    Returns:
        A rule for `simulate(rule=...)`.

    Example:
        >>> *_, last = simulate(network, 100, rule=trimmed_mean())  # doctest: +SKIP
    """
    _check_share(share)

    def rule(draw: Draw, before: Participants, half: Participants) -> Participants:
        sources, absent = (part.to(half.theta.device) for part in _held(neighbours(draw.W)))
        m = (~absent).sum(1)
        f = torch.minimum(_false(m - 1, share), (m - 1) // 2)
        place = torch.arange(sources.shape[1], device=m.device)
        inner = (place >= f[:, None]) & (place < (m - f)[:, None])
        width, parts = max(1, SORTED_AT_ONCE // sources.numel()), []
        for columns in torch.split(half.theta, width, 1):  # out of place, so that the rule can be differentiated
            received = columns[sources].nan_to_num(torch.inf, torch.inf, -torch.inf).unbind(1)
            ranked = _sorted([r.masked_fill(a[:, None], torch.inf) for r, a in zip(received, absent.T, strict=True)])
            kept = [r.masked_fill(~i[:, None], 0.0) for r, i in zip(ranked, inner.T, strict=True)]
            parts.append(torch.stack(kept).sum(0) / inner.sum(1)[:, None])
        buffers = mix(draw.W, half._replace(theta=half.theta[:, :1])).buffers if half.buffers else {}
        return Participants(torch.cat(parts, 1), half.state, buffers)

    return rule


def _sorted(rows: list[Tensor]) -> list[Tensor]:
    """Sorted in each coordinate by an odd-even network: for a handful of rows much faster than a sort on CUDA."""
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
    return rows


def alone(draw: Draw, before: Participants, half: Participants) -> Float[Tensor, "n n"]:
    """The rule by which nobody listens to anybody."""
    return torch.eye(draw.W.shape[0], dtype=torch.float64)


def without(attackers: Sequence[int]) -> MixingRule:
    """The oracle: all others know the attackers and give them no weight. Attackers mix as before."""
    bad = torch.tensor(list(attackers), dtype=torch.int64)

    def rule(draw: Draw, before: Participants, half: Participants) -> Tensor:
        given = draw.W.to_dense()
        W = given.clone()
        W[:, bad] = 0
        W[bad] = given[bad]
        return W / W.sum(1, keepdim=True)

    return rule


def within(group: Int[Tensor, " n"]) -> MixingRule:
    """The oracle for groups: each participant listens to its own group only."""

    def rule(draw: Draw, before: Participants, half: Participants) -> Tensor:
        W = draw.W.to_dense() * (group[:, None] == group[None])
        return W / W.sum(1, keepdim=True)

    return rule


def _false(heard: Int[Tensor, " n"], share: float) -> Int[Tensor, " n"]:
    """f: how many of so many neighbours may be false."""
    return torch.ceil(heard * share - 1e-9).long()


def _check_share(share: float) -> None:
    what = "share, the fraction of neighbours that may be false, must be"
    if not isinstance(share, Real):
        raise TypeError(f"{what} a number; found {type(share).__name__}. These rules do not need the network.")
    if not 0 <= share < 0.5:
        raise ValueError(f"{what} in 0..0.5; found {share}.")
