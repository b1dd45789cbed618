"""Evidence about every neighbour, accumulated over rounds in a robust way. With x any of the signals:

    z[j, k] = (x[j, k] − median) / mean |x[·, k] − median|     in each round, among those k has heard
    M[j, k] = mean of z[j, k] over the rounds
    D[j, k] = (M[j, k] − median) / max(1.4826 MAD, √(π/2 · m/(m − 1) / N + allowance²))

In one round nobody counts for more than m, the number of neighbours, however large its update. The noise of z averages
out over N rounds; the lasting differences between honest participants, whose data differ, are covered by `allowance`.
Column k depends on k's own data and on what k received, on nothing else.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice import seeds

LEAST = 3  # neighbours: of two that differ, nobody knows which is the odd one out


class Evidence(NamedTuple):
    """Sums over rounds of weights, of squared weights and of weighted z, `[j, k]`; and the scores heard last."""

    weight: Float[Tensor, "n n"]
    squares: Float[Tensor, "n n"]
    total: Float[Tensor, "signals n n"]
    latest: Float[Tensor, "signals n n"]


def no_evidence(scores: Float[Tensor, "signals n n"]) -> Evidence:
    """Evidence before the first round, for scores of this shape."""
    zeros = torch.zeros_like(scores, dtype=torch.float64)
    return Evidence(zeros[0], zeros[0], zeros, zeros)


def accumulate(
    evidence: Evidence, scores: Float[Tensor, "signals n n"], heard: Bool[Tensor, "n n"], keep: float = 1.0
) -> Evidence:
    """Evidence after one more round.

    A neighbour not heard in this round counts with its last scores, so that neighbours who take turns can be compared.
    `heard[j, k]`: whether k heard j; `keep`: how much of the old evidence to keep. Cost: a sort of each column.
    """
    latest = torch.where(heard, scores.double(), evidence.latest)
    known = heard | (evidence.weight > 0)
    offset = torch.where(known, latest - _median(latest, known), 0.0)
    spread = offset.abs().sum(1, keepdim=True) / known.sum(0).clamp_min(1)
    z = torch.where(heard & (spread > 0), offset / spread, 0.0)
    weight, squares = keep * evidence.weight + heard, keep**2 * evidence.squares + heard
    return Evidence(weight, squares, keep * evidence.total + z, latest)


def deviations(evidence: Evidence, allowance: float = 0.5) -> Float[Tensor, "signals n n"]:
    """D, in robust standard deviations; 0 where k heard nothing from j, or knows fewer than three neighbours."""
    offset, spread = _offsets(evidence)
    neighbours = (evidence.weight > 0).sum(0)
    rounds = evidence.weight.square() / evidence.squares.clamp_min(1e-24)
    noise = math.pi / 2 * neighbours.double() / (neighbours - 1).clamp_min(1)  # of Gaussian scores, within 5 %
    floor = (noise / rounds.clamp_min(1e-12) + allowance**2).sqrt()
    return offset / torch.maximum(spread, floor)


def strengths(
    evidence: Evidence, rate: float = 0.01, allowance: float = 0.5, unlike: bool = False
) -> Float[Tensor, "n n"]:
    """The largest |D| of all signals divided by its threshold: above 1, k flags j. For the options, see `detect`."""
    counts, share = (evidence.weight > 0).sum(0).tolist(), rate / len(evidence.total)
    each = [[threshold(count, share, measured) for count in counts] for measured in (False, True)[: 1 + unlike]]
    thresholds = evidence.total.new_tensor(each)
    strength = deviations(evidence, allowance).abs() / thresholds[0]
    if unlike:
        offset, spread = _offsets(evidence)
        strength = torch.minimum(strength, offset.abs() / spread.clamp_min(1e-12) / thresholds[1])
    return strength.amax(0)


@lru_cache(maxsize=256)
def threshold(neighbours: int, rate: float, measured: bool = False) -> float:
    """The |D| that an honest one of so many neighbours exceeds with probability `rate`; infinite below three.

    Simulated with Gaussian means whose spread is that of the floor: exact where honest participants differ by the
    allowance, conservative where they differ less. With `measured`, for any spread, estimated from these neighbours.
    """
    if neighbours < LEAST:
        return math.inf
    generator = seeds.generator(0, "anomaly threshold", neighbours)
    sets = max(2**12, 2**18 // neighbours)
    means = torch.randn(1, neighbours, sets, generator=generator, dtype=torch.float64)
    known = torch.ones(neighbours, sets, dtype=torch.bool)
    offset = (means - _median(means, known)).abs()
    deviation = (offset / (1.4826 * _median(offset, known)).clamp_min(1e-12 if measured else 1)).flatten()
    return float(deviation.kthvalue(math.ceil(len(deviation) * (1 - rate))).values)


def _offsets(evidence: Evidence) -> tuple[Float[Tensor, "signals n n"], Float[Tensor, "signals 1 n"]]:
    """How far j's mean is from the median of k's neighbours (0 where k cannot tell), and their 1.4826 MAD."""
    known = evidence.weight > 0
    known = known & (known.sum(0) >= LEAST)
    mean = evidence.total / evidence.weight.clamp_min(1e-12)
    offset = torch.where(known, mean - _median(mean, known), 0.0)
    return offset, 1.4826 * _median(offset.abs(), known)


def _median(scores: Tensor, known: Tensor) -> Tensor:
    """The median of the known entries of each column; 0 if there is none."""
    count = known.sum(0)
    ordered = scores.masked_fill(~known, torch.inf).sort(1).values
    places = torch.stack([(count - 1).clamp_min(0) // 2, count // 2]).clamp_max(len(known) - 1)
    middle = ordered.gather(1, places.expand(len(scores), 2, -1)).mean(1, keepdim=True)
    return torch.where(count > 0, middle, 0.0)
