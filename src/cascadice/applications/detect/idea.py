"""Who is unlike the others? Every participant gathers evidence about its in-neighbours, round after round.

What j sends k influences it by a product, ⟨∇L_k, Δ_j⟩ = ‖∇L_k‖ · ‖Δ_j‖ · cos. One factor can hide what another shows
(noise makes updates large and their direction random, which leaves the product where it was), so all three are read.
They see little of what is at right angles to ∇L_k, which shows in the distance of Δ_j from what the others sent. With x
any of these four:

    z[j, k] = (x[j, k] − median) / mean |x[·, k] − median|     in each round, among those that k has heard
    M[j, k] = mean of z[j, k] over the rounds
    D[j, k] = (M[j, k] − median) / max(1.4826 MAD, √(π/2 · m/(m − 1) / N + allowance²))

In a round nobody counts for more than m, the number of neighbours, however large its update. The noise of z averages
out over N rounds; what remains between honest participants, whose data differ, is covered by the `allowance`.
Column k is made of k's own data and of what k received, nothing else.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence.evaluation import Evaluation, values
from cascadice.influence.proximity import in_turn, products, proximity

SIGNS = ("influence", "direction", "size", "distance")
RIVALS = ("cosine to own update", "loss of received model")
LEAST = 3  # neighbours: of two that differ, nobody knows which is the odd one

Scores = Callable[[Network, Round, Evaluation], Tensor]
"""(network, round, evaluation) -> [signs, source, receiver]; what is written where nothing was heard is not read."""


def signs(network: Network, done: Round, evaluation: Evaluation) -> Float[Tensor, "4 n n"]:
    """Influence of every link (up to its receiver's own factor), its direction, size, and distance from the others.

    The distance is Krum's score (Blanchard et al. 2017): the summed squared distances of j's update to the nearest of
    those that k has, its own included, but for two and one suspect. Cost: `proximity`, and another product of [n, d].
    """
    return _signs(network, done, evaluation, products(done.update, done.update))


def rivals(network: Network, done: Round, evaluation: Evaluation) -> Float[Tensor, "2 n n"]:
    """What people would use instead and is no sign, as `RIVALS` names it. Cost: a forward pass a link, and a product.

    The norm of the update and Krum's distance, which people use too, are signs.
    """
    return _rivals(network, done, evaluation, products(done.update, done.update))


def signs_and_rivals(network: Network, done: Round, evaluation: Evaluation) -> Float[Tensor, "6 n n"]:
    """Both, of one product of the updates."""
    alike = products(done.update, done.update)
    return torch.cat([_signs(network, done, evaluation, alike), _rivals(network, done, evaluation, alike)])


def _signs(network: Network, done: Round, evaluation: Evaluation, alike: Tensor) -> Tensor:
    direction = proximity(network, done, evaluation).cosine
    squares = alike.diag()
    size = squares.sqrt()[:, None].expand_as(alike)
    apart = (squares[:, None] + squares - 2 * alike).clamp_min(0)
    return torch.stack([size * direction, direction, size, _krum(apart, links(done.W))])


def _rivals(network: Network, done: Round, evaluation: Evaluation, alike: Tensor) -> Tensor:
    lengths = torch.outer(alike.diag().sqrt(), alike.diag().sqrt())
    cosine = torch.where(lengths > 0, alike / lengths, 0.0)
    return torch.stack([cosine, _received_loss(network, done, evaluation, links(done.W)).to(cosine)])


def _received_loss(network: Network, done: Round, evaluation: Evaluation, heard: Tensor) -> Tensor:
    """`[j, k]`: the loss on k's data of the model that j sent."""
    found = done.half.theta.new_zeros(network.nodes, network.nodes)
    for pairs in torch.split(heard.nonzero(), network.nodes):
        source, receiver = pairs.to(found.device).unbind(1)
        buffers = {name: buffer[source] for name, buffer in done.half.buffers.items()}
        loss = values(network, evaluation, done.half.theta[source], buffers, pairs[:, 1].tolist())
        found[source, receiver] = loss.to(found)
    return found


def _krum(apart: Tensor, heard: Tensor) -> Tensor:
    """`[j, k]`: summed squared distance of j's update to its nearest ones among those at k."""
    own = heard | torch.eye(len(heard), dtype=torch.bool)
    most = int(own.sum(0).max())
    present, who = (column.T.to(apart.device) for column in own.long().topk(most, dim=0))
    among = apart[who[:, :, None], who[:, None, :]].masked_fill(present[:, None, :] == 0, torch.inf)
    nearest = among.sort(2).values[:, :, 1:]  # the first is oneself
    kept = torch.arange(most - 1, device=apart.device) < (present.sum(1) - 3).clamp_min(1)[:, None]
    total = torch.where(kept[:, None, :], nearest, 0.0).sum(2)
    return torch.zeros_like(apart).index_put((who, torch.arange(len(who), device=who.device)[:, None]), total)


def links(W: Float[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """`[j, k]`: whether k hears j; what one hears from oneself does not count. On CPU, as W is drawn."""
    heard = W.to_dense().T.cpu() > 0
    return heard & ~torch.eye(len(heard), dtype=torch.bool)


class Evidence(NamedTuple):
    """What was gathered: sums over rounds of `weight` and its square, and of weighted z; and what was heard last."""

    weight: Float[Tensor, "n n"]
    squares: Float[Tensor, "n n"]
    total: Float[Tensor, "signs n n"]
    latest: Float[Tensor, "signs n n"]


def nothing(like: Float[Tensor, "signs n n"]) -> Evidence:
    """Evidence before the first round."""
    none = torch.zeros_like(like, dtype=torch.float64)
    return Evidence(none[0], none[0], none, none)


def gathered(
    evidence: Evidence, scores: Float[Tensor, "signs n n"], heard: Bool[Tensor, "n n"], keep: float = 1.0
) -> Evidence:
    """The evidence with one more round; `keep` is how much of the old one counts (1: nothing is forgotten).

    Whoever was not heard in this round stands with what was last heard of it, so that neighbours who take turns can be
    compared too. Cost: a sort of each column.
    """
    latest = torch.where(heard, scores.double(), evidence.latest)
    known = heard | (evidence.weight > 0)
    offset = torch.where(known, latest - _median(latest, known), 0.0)
    spread = offset.abs().sum(1, keepdim=True) / known.sum(0).clamp_min(1)
    z = torch.where(heard & (spread > 0), offset / spread, 0.0)
    weight, squares = keep * evidence.weight + heard, keep**2 * evidence.squares + heard
    return Evidence(weight, squares, keep * evidence.total + z, latest)


def deviations(evidence: Evidence, allowance: float = 0.5) -> Float[Tensor, "signs n n"]:
    """D of the module's equations: how far from k's other neighbours j is, in robust standard deviations.

    0 where k heard nothing from j, or knows fewer than three neighbours.
    """
    offset, spread = _offsets(evidence)
    neighbours = (evidence.weight > 0).sum(0)
    rounds = evidence.weight.square() / evidence.squares.clamp_min(1e-24)
    noise = math.pi / 2 * neighbours.double() / (neighbours - 1).clamp_min(1)  # of Gaussian scores, within 5 %
    floor = (noise / rounds.clamp_min(1e-12) + allowance**2).sqrt()
    return offset / torch.maximum(spread, floor)


def _offsets(evidence: Evidence) -> tuple[Float[Tensor, "signs n n"], Float[Tensor, "signs 1 n"]]:
    """How far j's mean is from the median of k's neighbours (0 where k cannot tell), and their 1.4826 MAD."""
    known = evidence.weight > 0
    known = known & (known.sum(0) >= LEAST)
    mean = evidence.total / evidence.weight.clamp_min(1e-12)
    offset = torch.where(known, mean - _median(mean, known), 0.0)
    return offset, 1.4826 * _median(offset.abs(), known)


def _median(values: Tensor, known: Tensor) -> Tensor:
    """Of the known entries of each column, the mean of the middle two where they are even; 0 of none."""
    count = known.sum(0)
    ordered = values.masked_fill(~known, torch.inf).sort(1).values
    places = torch.stack([(count - 1).clamp_min(0) // 2, count // 2]).clamp_max(len(known) - 1)
    middle = ordered.gather(1, places.expand(len(values), 2, -1)).mean(1, keepdim=True)
    return torch.where(count > 0, middle, 0.0)


def strengths(
    evidence: Evidence, rate: float = 0.01, allowance: float = 0.5, unlike: bool = False
) -> Float[Tensor, "n n"]:
    """The largest |D| of the signs over its threshold: above 1, k flags j. See `detect`."""
    neighbours, share = (evidence.weight > 0).sum(0), rate / len(evidence.total)
    found = deviations(evidence, allowance).abs() / _thresholds(neighbours, share)
    if unlike:
        offset, spread = _offsets(evidence)
        by_theirs = offset.abs() / spread.clamp_min(1e-12) / _thresholds(neighbours, share, measured=True)
        found = torch.minimum(found, by_theirs)
    return found.amax(0)


@lru_cache(maxsize=256)
def threshold(neighbours: int, rate: float, measured: bool = False) -> float:
    """The |D| that an honest one of so many alike neighbours exceeds with probability `rate`; infinite below three.

    Found by simulation of Gaussian means whose spread is that of the floor, so it is right where honest participants
    differ by the allowance, and on the safe side where they differ less. If `measured`, of any spread: it is known
    from these few neighbours alone.
    """
    if neighbours < LEAST:
        return math.inf
    draw = seeds.generator(0, "anomaly threshold", neighbours)
    sets = max(2**12, 2**18 // neighbours)
    means = torch.randn(1, neighbours, sets, generator=draw, dtype=torch.float64)
    known = torch.ones(neighbours, sets, dtype=torch.bool)
    offset = (means - _median(means, known)).abs()
    found = (offset / (1.4826 * _median(offset, known)).clamp_min(1e-12 if measured else 1)).flatten()
    return float(found.kthvalue(math.ceil(len(found) * (1 - rate))).values)


class Verdict(NamedTuple):
    """After round t: `[j, k]` is what k thinks of j. `since` is the round from which on j has been flagged, −1 if not.

    `strength` is the largest |deviation| over its threshold: above 1, k flags j.
    """

    t: int
    deviation: Float[Tensor, "signs n n"]
    strength: Float[Tensor, "n n"]
    since: Int[Tensor, "n n"]
    known: Bool[Tensor, "n n"]

    @property
    def flagged(self) -> Bool[Tensor, "n n"]:
        """Whom k flags."""
        return self.strength > 1


def detect(
    network: Network,
    rounds: Iterable[Round],
    evaluation: Evaluation,
    *,
    rate: float = 0.01,
    allowance: float = 0.5,
    memory: float = math.inf,
    samples: int | None = None,
    unlike: bool = False,
    scores: Scores = signs,
) -> Iterator[Verdict]:
    """What every participant thinks of those it hears, after each round; live while training, or from a recording.

    `rate` is the probability that a receiver flags a given honest neighbour, in the round that is looked at, shared
    out evenly over the signs. It holds where the lasting differences between honest neighbours have a standard
    deviation of at most `allowance`, in units of their mean difference within a round. Where data are `unlike`, it is
    kept whatever that deviation: a neighbour must also be far out by that of the others, of which k knows few, so that
    fewer attackers are flagged. Evidence is forgotten over about `memory` rounds: 1 looks at each round by itself.
    `evaluation` is to be of everybody's own data, `evaluate_on(network, own_data(network, size))`; `samples` of these at a time
    are taken in turn.
    """
    check(rate, allowance, memory)
    evidence: Evidence | None = None
    since: Tensor | None = None
    for done in rounds:
        found = scores(network, done, evaluation if samples is None else in_turn(evaluation, done.t, samples))
        evidence = nothing(found) if evidence is None else evidence
        evidence = gathered(evidence, found, links(done.W).to(found.device), 1 - 1 / memory)
        deviation, known = deviations(evidence, allowance), evidence.weight > 0
        strength = strengths(evidence, rate, allowance, unlike)
        before = torch.full_like(known, -1, dtype=torch.int64) if since is None else since
        since = torch.where(strength > 1, torch.where(before < 0, done.t, before), -1)
        yield Verdict(done.t, deviation, strength, since, known)


def check(rate: float, allowance: float = 0.5, memory: float = math.inf) -> None:
    """What can be asked of a detector."""
    if not 1e-4 <= rate <= 0.5:
        raise ValueError(f"rate must be a probability from 0.0001 to 0.5; found {rate}.")
    if not 0 <= allowance < math.inf:
        raise ValueError(f"allowance must be at least 0 and finite; found {allowance}.")
    if not memory >= 1:
        raise ValueError(f"memory must be at least one round; found {memory}.")


def _thresholds(neighbours: Tensor, rate: float, measured: bool = False) -> Tensor:
    """Of each receiver, by how many neighbours it has."""
    found = torch.empty_like(neighbours, dtype=torch.float64)
    for count in set(neighbours.tolist()):
        found[neighbours == count] = threshold(count, rate, measured)
    return found


def votes(verdict: Verdict) -> Float[Tensor, " n"]:
    """The share of j's receivers that flag j; NaN if nobody who could tell hears it.

    This is more than any one participant knows: receivers must tell one another. An honest participant is flagged by
    half of them or more with probability at most twice the rate, whatever they have in common (Markov's inequality).
    """
    able = verdict.known & (verdict.known.sum(0) >= LEAST)
    return (verdict.flagged & able).sum(1) / able.sum(1).double()
