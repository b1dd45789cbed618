"""Rules that guard gossip against attackers by looking at the models alone: what influence-aware gossip must beat.

All are given a `share`: how much of what a participant hears may be false. None looks at data or remembers anything.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.engine.exchange.geometry import inner_products as products
from cascadice.engine.exchange.stacked import mix
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw, MixingRule

ROOM = 2**25  # numbers that are sorted at once


def clipping(share: float = 0.25) -> MixingRule:
    """Self-centred clipping (He, Karimireddy & Jaggi 2022): nobody moves anybody far.

        W'[k, j] = W[k, j] min(1, τ_k / ‖θ_j − θ_k‖),  the rest to oneself

    τ_k is the distance to the farthest neighbour but f, with f those of k's neighbours that may be false; the authors'
    program has f = 1. Cost: the distances, one product of [n, d] matrices.
    """
    check_share(share)

    def rule(drawn: Draw, before: Participants, half: Participants) -> Tensor:
        W = drawn.W.to_dense()
        far = distances(half.theta).to(W)
        heard = others(W)
        beyond = torch.where(heard, far, -1.0).sort(1, descending=True).values
        f = falsehoods(heard.sum(1), share).clamp(max=heard.sum(1) - 1).clamp(min=0)
        reach = beyond.gather(1, f[:, None]).clamp(min=0)
        kept = torch.where(heard, W * (reach / far.clamp(min=1e-30)).clamp(max=1), 0.0)
        return kept + (1 - kept.sum(1)).diag()

    return rule


def krum(share: float = 0.25) -> MixingRule:
    """Krum (Blanchard et al. 2017): take over the one model that lies nearest to most of those received.

    A model's score is the sum of squared distances to its m − f − 2 nearest among the m that k holds, its own included.
    """
    check_share(share)

    def rule(drawn: Draw, before: Participants, half: Participants) -> Tensor:
        W = drawn.W.to_dense()
        sources, absent = _held(W)
        m = (~absent).sum(1)
        squared = distances(half.theta).to(W).square()
        among = squared[sources[:, :, None], sources[:, None, :]]  # [receiver, one, other]
        among.masked_fill_(absent[:, None] | absent[:, :, None], torch.inf).diagonal(dim1=1, dim2=2).fill_(torch.inf)
        nearest = (m - falsehoods(m - 1, share) - 2).clamp(min=1)
        ranked = among.sort(2).values
        counted = torch.arange(ranked.shape[2]) < nearest[:, None, None]
        scores = torch.where(counted & ranked.isfinite(), ranked, 0.0).sum(2)
        own = sources == torch.arange(len(W))[:, None]
        scores[own] *= 1 - 1e-9  # of two that are equally near, one's own
        best = scores.masked_fill(absent, torch.inf).argmin(1, keepdim=True)
        return torch.nn.functional.one_hot(sources.gather(1, best)[:, 0], len(W)).to(W)

    return rule


def _held(W: Float[Tensor, "n n"]) -> tuple[Int[Tensor, "n most"], Bool[Tensor, "n most"]]:
    """Whose models everybody holds, its own included, and which places of a row are empty."""
    held = others(W) | torch.eye(len(W), dtype=torch.bool)
    m = held.sum(1)
    most = int(m.max())
    return held.int().argsort(dim=1, descending=True, stable=True)[:, :most], torch.arange(most) >= m[:, None]


def trimmed_mean(share: float = 0.25) -> MixingRule:
    """Coordinate-wise trimmed mean (Yin et al. 2018): in every coordinate, without the f least and the f greatest.

    No average: it gives the participants, not a W. Cost: a sort of what everybody received.
    """
    check_share(share)

    def rule(drawn: Draw, before: Participants, half: Participants) -> Participants:
        W = drawn.W.to_dense()
        sources, absent = (part.to(half.theta.device) for part in _held(W))
        theta = _trimmed(half.theta, sources, absent, share)
        buffers = mix(drawn.W, half._replace(theta=half.theta[:, :1])).buffers if half.buffers else {}
        return Participants(theta, half.state, buffers)

    return rule


def _trimmed(
    theta: Float[Tensor, "n d"], sources: Int[Tensor, "n most"], absent: Bool[Tensor, "n most"], share: float
) -> Float[Tensor, "n d"]:
    m = (~absent).sum(1)
    f = torch.minimum(falsehoods(m - 1, share), (m - 1) // 2)
    place = torch.arange(sources.shape[1], device=theta.device)
    inner = (place >= f[:, None]) & (place < (m - f)[:, None])
    found = torch.empty_like(theta)
    width = max(1, ROOM // sources.numel())
    for here, there in zip(torch.split(theta, width, 1), torch.split(found, width, 1), strict=True):
        received = here[sources].nan_to_num_(torch.inf, torch.inf, -torch.inf)
        ranked = _ranked(
            [r.masked_fill_(a[:, None], torch.inf) for r, a in zip(received.unbind(1), absent.T, strict=True)]
        )
        total = sum((r.masked_fill_(~i[:, None], 0.0) for r, i in zip(ranked, inner.T, strict=True)), torch.zeros(()))
        torch.div(total, inner.sum(1)[:, None], out=there)
    return found


def _ranked(rows: list[Tensor]) -> list[Tensor]:
    """Sorted in every coordinate, by exchanges of neighbours: for a handful of rows much faster than a sort on CUDA."""
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
    return rows


def alone(drawn: Draw, before: Participants, half: Participants) -> Float[Tensor, "n n"]:
    """Nobody listens to anybody."""
    return torch.eye(drawn.W.shape[0], dtype=torch.float64)


def without(attackers: Sequence[int]) -> MixingRule:
    """The oracle: everybody knows the attackers and gives their weight to the others. Attackers do as they like."""
    bad = torch.tensor(list(attackers), dtype=torch.int64)

    def rule(drawn: Draw, before: Participants, half: Participants) -> Tensor:
        W = drawn.W.to_dense().clone()
        theirs = W[bad]
        W[:, bad] = 0
        W[bad] = theirs
        return W / W.sum(1, keepdim=True)

    return rule


def within(group: Int[Tensor, " n"]) -> MixingRule:
    """The oracle of groups: everybody listens to its own group alone."""

    def rule(drawn: Draw, before: Participants, half: Participants) -> Tensor:
        W = drawn.W.to_dense() * (group[:, None] == group[None])
        return W / W.sum(1, keepdim=True)

    return rule


def others(W: Float[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """`[k, j]`: whether k hears j, another."""
    return (W > 0) & ~torch.eye(len(W), dtype=torch.bool, device=W.device)


def falsehoods(neighbours: Int[Tensor, " n"], share: float) -> Int[Tensor, " n"]:
    """How many of so many neighbours may be false."""
    return torch.ceil(neighbours * share - 1e-9).long()


def distances(theta: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """‖θ_j − θ_k‖ for every pair, from their differences to the first: models in a network are much alike."""
    apart = theta - theta[0]
    inner = products(apart, apart)
    squares = inner.diag()
    return (squares[:, None] + squares[None] - 2 * inner).clamp(min=0).sqrt()


def check_share(share: float) -> None:
    """Half or more of what is heard cannot be false, or truth has no majority."""
    if not 0 <= share < 0.5:
        raise ValueError(f"share, how much of what is heard may be false, must be in 0..0.5; found {share}.")
