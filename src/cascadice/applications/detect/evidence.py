"""Evidence about every neighbour, accumulated over rounds in a robust way. For each signal x:

    z[j, k] = (x[j, k] − median) / mean |x[·, k] − median|     in each round, among those k has heard
    M[j, k] = mean of z[j, k] over the rounds
    D[j, k] = (M[j, k] − median) / max(1.4826 MAD, √(π/2 · m/(m − 1) / N + allowance²))

In one round |z| is at most m, the number of neighbours, however large an update is. The noise of z averages out over N
rounds. Honest participants hold different data and so differ for good; `allowance` covers that. It is a number, or the
spread over all receivers (`lasting_spread`). With a number, column k depends on k's own data and on what k received,
and on nothing else.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice import seeds
from cascadice.applications.neighbours import LEAST

ALLOWANCE = 0.5  # the minimum of a measured allowance
HONEST = 2 / 3  # share of the links, those that differ least, that measure the spread; the others may be attackers

Allowance = float | Float[Tensor, " signals"]
"""How far apart honest neighbours may be in the long run: one number, or one for each signal."""


class Evidence(NamedTuple):
    """Sums over rounds of weights, squared weights and weighted z, `[j, k]`; and the latest scores."""

    weight: Float[Tensor, "n n"]
    squares: Float[Tensor, "n n"]
    total: Float[Tensor, "signals n n"]
    latest: Float[Tensor, "signals n n"]


def no_evidence(scores: Float[Tensor, "signals n n"]) -> Evidence:
    """Evidence before the first round.

    Args:
        scores: Scores of the shape that rounds will have.

    Returns:
        Evidence that weighs nothing.

    Example:
        >>> no_evidence(torch.zeros(2, 5, 5)).total.shape
        torch.Size([2, 5, 5])
    """
    zeros = torch.zeros_like(scores, dtype=torch.float64)
    return Evidence(zeros[0], zeros[0], zeros, zeros)


def accumulate(
    evidence: Evidence, scores: Float[Tensor, "signals n n"], heard: Bool[Tensor, "n n"], keep: float = 1.0
) -> Evidence:
    """Evidence after one more round.

    A neighbour not heard in this round keeps its latest scores, so that neighbours that take turns can be compared.
    Cost: a sort of each column.

    Args:
        evidence: What is known so far; `no_evidence(scores)` before the first round.
        scores: The score of every link by each signal, from `signal_scores`.
        heard: `[j, k]`: whether k heard j in this round.
        keep: How much of the old evidence to keep.

    Returns:
        The evidence with this round added.

    Example:
        >>> scores = torch.tensor([[[0.0], [1.0], [5.0]]]).expand(1, 3, 3)
        >>> accumulate(no_evidence(scores), scores, torch.eye(3) == 0).weight
        tensor([[0., 1., 1.],
                [1., 0., 1.],
                [1., 1., 0.]], dtype=torch.float64)
    """
    latest = torch.where(heard, scores.double(), evidence.latest)
    known = heard | (evidence.weight > 0)
    offset = torch.where(known, latest - _median(latest, known), 0.0)
    spread = offset.abs().sum(1, keepdim=True) / known.sum(0).clamp_min(1)
    z = torch.where(heard & (spread > 0), offset / spread, 0.0)
    weight, squares = keep * evidence.weight + heard, keep**2 * evidence.squares + heard
    return Evidence(weight, squares, keep * evidence.total + z, latest)


def deviations(evidence: Evidence, allowance: Allowance = ALLOWANCE) -> Float[Tensor, "signals n n"]:
    """How unusual each neighbour is, in robust standard deviations (D).

    Args:
        evidence: What `accumulate` returned after the last round.
        allowance: As in `detect`.

    Returns:
        D[j, k] by each signal; 0 where k heard nothing from j, or knows fewer than three neighbours.

    Example:
        >>> scores = torch.rand(1, 5, 5)
        >>> deviations(accumulate(no_evidence(scores), scores, torch.eye(5) == 0)).shape
        torch.Size([1, 5, 5])
    """
    offset, spread = _offsets(evidence)
    allowed = torch.as_tensor(allowance, dtype=offset.dtype, device=offset.device).reshape(-1, 1, 1)
    return offset / torch.maximum(spread, (_noise(evidence) + allowed.square()).sqrt())


def lasting_spread(evidence: Evidence) -> Float[Tensor, " signals"]:
    """The standard deviation of the lasting differences between honest neighbours, by each signal.

    The standard deviation of the Gaussian that has the same 2/3 quantile of |M − median|, over the links of all
    receivers, less the noise of N rounds. Attackers on up to a third of the links cannot raise it above that of the
    honest. Receivers must share how their neighbours differ.

    Args:
        evidence: What `accumulate` returned after the last round, with the links of all receivers.

    Returns:
        The standard deviation by each signal; 0 if nobody knows three neighbours.

    Example:
        >>> scores = torch.rand(1, 5, 5)
        >>> lasting_spread(accumulate(no_evidence(scores), scores, torch.eye(5) == 0)).shape
        torch.Size([1])
    """
    offset, _ = _offsets(evidence)
    counts = (evidence.weight > 0).sum(0)
    able = (evidence.weight > 0) & (counts >= LEAST)
    if not bool(able.any()):
        return offset.new_zeros(len(offset))
    unit = torch.tensor([_usual_offset(count) for count in counts.tolist()]).to(offset)
    spread = (offset.abs() / unit)[:, able].quantile(HONEST, dim=1)
    return (spread.square() - _noise(evidence)[able].median()).clamp_min(0).sqrt()


def _noise(evidence: Evidence) -> Float[Tensor, "n n"]:
    """The variance of M after N rounds if scores are Gaussian noise (within 5 %)."""
    neighbours = (evidence.weight > 0).sum(0)
    rounds = evidence.weight.square() / evidence.squares.clamp_min(1e-24)
    return math.pi / 2 * neighbours.double() / (neighbours - 1).clamp_min(1) / rounds.clamp_min(1e-12)


def strengths(
    evidence: Evidence, rate: float = 0.01, allowance: Allowance = ALLOWANCE, unlike: bool = False
) -> Float[Tensor, "n n"]:
    """The largest |D| of all signals divided by its threshold: above 1, k flags j.

    Args:
        evidence: What `accumulate` returned after the last round.
        rate: As in `detect`.
        allowance: As in `detect`.
        unlike: As in `detect`.

    Returns:
        `[j, k]`: how strong k's evidence against j is.

    Example:
        >>> scores = torch.rand(1, 5, 5)
        >>> strengths(accumulate(no_evidence(scores), scores, torch.eye(5) == 0)).shape
        torch.Size([5, 5])
    """
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
    """The |D| that one of so many honest neighbours exceeds with probability `rate`.

    Simulated with Gaussian means: exact if honest participants differ by the allowance, conservative if they differ
    less.

    Args:
        neighbours: How many neighbours the receiver knows.
        rate: The false-alarm rate.
        measured: Whether the spread is estimated from the same neighbours instead of given.

    Returns:
        The threshold; infinite for fewer than three neighbours.

    Example:
        >>> threshold(2, rate=0.01)
        inf
    """
    if neighbours < LEAST:
        return math.inf
    offset = _gaussian_offsets(neighbours)
    spread = 1.4826 * _median(offset, torch.ones_like(offset[0], dtype=torch.bool))
    deviation = (offset / spread.clamp_min(1e-12 if measured else 1)).flatten()
    return float(deviation.kthvalue(math.ceil(len(deviation) * (1 - rate))).values)


@lru_cache(maxsize=256)
def _usual_offset(neighbours: int) -> float:
    """The `HONEST` quantile of |x − median| for so many standard Gaussian numbers; 1 for fewer than three."""
    if neighbours < LEAST:
        return 1.0
    offset = _gaussian_offsets(neighbours).flatten()
    return float(offset.kthvalue(math.ceil(len(offset) * HONEST)).values)


def _gaussian_offsets(neighbours: int) -> Float[Tensor, "1 neighbours sets"]:
    """|x − median| in many sets of so many standard Gaussian numbers."""
    generator = seeds.generator(0, "anomaly threshold", neighbours)
    means = torch.randn(1, neighbours, max(2**12, 2**18 // neighbours), generator=generator, dtype=torch.float64)
    return (means - _median(means, torch.ones_like(means[0], dtype=torch.bool))).abs()


def _offsets(evidence: Evidence) -> tuple[Float[Tensor, "signals n n"], Float[Tensor, "signals 1 n"]]:
    """How far j's mean is from the median of k's neighbours (0 where k cannot judge), and their 1.4826 MAD."""
    known = evidence.weight > 0
    known = known & (known.sum(0) >= LEAST)
    mean = evidence.total / evidence.weight.clamp_min(1e-12)
    offset = torch.where(known, mean - _median(mean, known), 0.0)
    return offset, 1.4826 * _median(offset.abs(), known)


def _median(scores: Tensor, known: Tensor) -> Tensor:
    """The median of the known entries of each column; 0 if there is none."""
    count = known.sum(0)
    ordered = scores.masked_fill(~known, torch.inf).sort(1).values
    middles = torch.stack([(count - 1).clamp_min(0) // 2, count // 2]).clamp_max(len(known) - 1)
    middle = ordered.gather(1, middles.expand(len(scores), 2, -1)).mean(1, keepdim=True)
    return torch.where(count > 0, middle, 0.0)
