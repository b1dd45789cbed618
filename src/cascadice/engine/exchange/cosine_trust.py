"""Trust by cosine: participants listen to those whose recent updates point the way their own do.

D_j (see `cosine_trust`) is what j did lately, and c is minus the cosine of D_k and D_j: no loss is evaluated and no
influence computed. With SGD, D_k is minus the summed gradients of k's own batches, so c resembles the influence of j's
recent updates on what k has recently trained on, without the sizes. One update is mostly noise; sums over rounds are
not. `cascadice.influence.trust` has rules that trust by influence itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice import seeds
from cascadice.data.batches import rounds_per_epoch
from cascadice.engine.exchange.geometry import inner_products, neighbours, norms
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Draw

DROP, READMIT = 0.6, 0.8  # share of the best neighbours' help: below the first k drops j, above the second it returns
NEAR_BEST = 2 / 3  # of the greatest help: neighbours that help as much count among the best
EVIDENCE = 20.0  # weight of evidence that is kept
OVERSIZED = 2.5  # times the usual size: larger updates are not let in
SETTLED = 0.25  # weight of evidence at which half of the bound for dropping applies


class Trust(NamedTuple):
    """What participants know of each other: `[k, j]` is what k knows of j.

    Attributes:
        recent: D_j, each participant's recent updates, summed with fading.
        total: Score c of j to k, summed over rounds by their weights.
        weight: The summed weights: how much k has learnt about j.
        trusted: Whether k listens to j where it can.
    """

    recent: Float[Tensor, "n d"]
    total: Float[Tensor, "n n"]
    weight: Float[Tensor, "n n"]
    trusted: Bool[Tensor, "n n"]

    @property
    def score(self) -> Float[Tensor, "n n"]:
        """`[k, j]`: mean score c of j to k; negative helped, 0 if k never heard j. Of `cosine_trust`, from −1 to 1."""
        return torch.where(self.weight > 0, self.total / self.weight, 0.0)


Learn = Callable[[Trust, Draw, Participants, Participants, Bool[Tensor, "n n"]], Trust]
"""(trust, draw, before, half, received) -> trust after the round; `received[k, j]`: whether k received j's update."""


class TrustRule:
    """A mixing rule that averages with those that are trusted. It remembers: use a new one for each run."""

    def __init__(self, network: Network, learn: Learn, degree: int | None = None, explore: bool = True) -> None:
        if degree is not None and degree < 1:
            raise ValueError(f"degree must be at least 1, or nobody is listened to; found {degree}.")
        self.learn, self.degree, self.explore = learn, degree, explore
        self.seed, self.size = network.seed, network.nodes // network.blocks
        self.trust = initial_trust(network.initial.theta)
        self.mixing: Float[Tensor, "n n"] | None = None  # of the last round

    @property
    def given(self) -> Float[Tensor, "n n"]:
        """`[j, k]`: mean score of j to k; negative helped, 0 if k never heard j. Of `cosine_trust`, from −1 to 1."""
        return self.trust.score.T

    def __call__(self, draw: Draw, before: Participants, half: Participants) -> Float[Tensor, "n n"]:
        """The mixing matrix of this round."""
        W = draw.W.to_dense()
        heard, update = neighbours(W), half.theta - before.theta
        received = heard | self._strangers(draw.t, len(W)) if self.explore else heard
        self.trust = self.learn(self.trust, draw, before, half, received)
        welcome = self.trust.trusted & ~oversized(update, heard)
        kept = most_helpful(welcome & heard, self.trust.score, self.degree)
        adopted = None
        if self.explore:  # for those left without neighbours
            strangers = welcome & ~heard & (self.trust.score < 0)
            adopted = most_helpful(strangers, self.trust.score, 1) & ~kept.any(1, keepdim=True)
        self.mixing = reweighted(W, kept, adopted)
        return self.mixing

    def _strangers(self, t: int, nodes: int) -> Bool[Tensor, "n n"]:
        """The one stranger whose update each participant receives in round t: at one distance for all, drawn anew."""
        strangers = torch.zeros(nodes, nodes, dtype=torch.bool)
        if self.size > 1:
            distance = int(torch.randint(1, self.size, (), generator=seeds.generator(self.seed, "stranger", t)))
            k = torch.arange(nodes)
            strangers[k, k // self.size * self.size + (k + distance) % self.size] = True
        return strangers


def cosine_trust(
    network: Network, *, fading: float | None = None, memory: float = EVIDENCE, degree: int | None = None,
    explore: bool = True,
) -> TrustRule:  # fmt: skip
    """A mixing rule by which participants drop neighbours whose recent updates point elsewhere than their own.

        D_j = Σ_s fading^s Δ_j^{t−s}        c[k, j] = −cos(D_k, D_j)

    k compares its neighbours by their mean c over the rounds. It drops neighbours that score less than 0.6 times as
    well as the best, and takes them back at 0.8 times. Their weight goes to the other neighbours and to k itself; k
    keeps receiving and scoring their updates. A round counts by the square of how much the trusted neighbours agree
    with k in it: nothing can be learnt while nobody agrees with anybody. Whatever the cosine says, an update more than
    2.5 times as large as k's own, and as the median one that k hears, is not let in. Cost: no pass over data; one
    product of [n, d] matrices, and one more [n, d] in memory.

    Args:
        network: The network to train.
        fading: How fast old updates fade in D, in [0, 1). By default over one epoch, and at least ten rounds.
        memory: Weight of evidence to keep; beyond it, old evidence is forgotten as fast as new arrives.
        degree: Greatest number of neighbours to listen to.
        explore: Whether each participant also receives one stranger's update a round, to learn what a good one looks
            like, and listens to the most helpful stranger if it would be left alone.

    Returns:
        A rule for `simulate(network, rounds, rule=...)`; its `given` is the mean score of every pair.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> rule = cosine_trust(network)
        >>> for round_ in cascadice.simulate(network, 100, rule=rule): ...
        >>> rule.given  # [j, k]: negative where j helped k
    """
    fading = epoch_fading(network) if fading is None else fading
    if not 0 <= fading < 1:
        raise ValueError(f"fading must be at least 0 and below 1; found {fading}.")
    if not memory > 0:
        raise ValueError(f"memory must be positive; found {memory}.")

    def learn_from(
        trust: Trust, draw: Draw, before: Participants, half: Participants, received: Bool[Tensor, "n n"]
    ) -> Trust:
        return learn(trust, half.theta - before.theta, received, fading, memory)

    return TrustRule(network, learn_from, degree, explore)


def epoch_fading(network: Network) -> float:
    """1 − 1 / rounds per epoch, so that chance differences between batches even out; at least 0.9 (ten rounds)."""
    if network.partition is None:
        return 0.9
    _, steps, size = network.batches(0).shape
    return max(0.9, 1 - 1 / rounds_per_epoch(network.partition, size, steps))


def initial_trust(theta: Float[Tensor, "n d"]) -> Trust:
    """Trust before the first round: nothing is known, everyone is trusted."""
    zeros = torch.zeros(len(theta), len(theta), dtype=torch.float64)
    return Trust(torch.zeros_like(theta), zeros, zeros, torch.ones_like(zeros, dtype=torch.bool))


def learn(
    trust: Trust, update: Float[Tensor, "n d"], received: Bool[Tensor, "n n"], fading: float, memory: float = EVIDENCE
) -> Trust:
    """Trust after one more round, in which k received j's update where `received[k, j]`."""
    recent = update.add(trust.recent, alpha=fading)
    lengths = norms(recent)
    cosine = (inner_products(recent, recent) / torch.outer(lengths, lengths)).cpu()
    influence = -cosine.nan_to_num(0.0, 0.0, 0.0)  # 0 for those who did nothing
    return weigh(trust._replace(recent=recent), influence, received, memory)


def weigh(
    trust: Trust, influence: Float[Tensor, "n n"], received: Bool[Tensor, "n n"], memory: float = EVIDENCE
) -> Trust:
    """Trust after a round in which j's update scored `influence[k, j]` with k, about 1 at most; negative helped."""
    influence = torch.where(received, influence, 0.0)
    trusted = trust.trusted & received
    mean = (influence * trusted).sum(1, keepdim=True) / trusted.sum(1, keepdim=True).clamp(min=1)
    first = ~(trust.weight > 0).any(1, keepdim=True)
    # how much those k trusts help it in this round, on average; in the first round, how much the best one does
    agreement = -torch.where(first, influence.amin(1, keepdim=True), mean).clamp(max=0)
    weight = agreement.square() * received
    total, weight = trust.total + weight * influence, trust.weight + weight
    remembered = memory / weight.clamp(min=memory)
    learnt = trust._replace(total=total * remembered, weight=weight * remembered)
    return learnt._replace(trusted=close_to_best(learnt))


def close_to_best(trust: Trust) -> Bool[Tensor, "n n"]:
    """The neighbours k trusts after this round: those whose help is close to the best neighbours'."""
    help_ = -trust.score
    among_best = (help_ > 0) & (help_ >= NEAR_BEST * help_.amax(1, keepdim=True))
    best = (help_ * among_best).sum(1, keepdim=True) / among_best.sum(1, keepdim=True).clamp(min=1)
    bound = torch.where(trust.trusted, DROP * trust.weight / (trust.weight + SETTLED), READMIT)
    return torch.where(trust.weight > 0, (help_ > 0) & (help_ >= bound * best), trust.trusted)


def oversized(update: Float[Tensor, "n d"], heard: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """`[k, j]`: whether j's update is much larger than k's own and than those k usually hears.

    Trust is slow to turn against one that helped for long; noise and scaled-up attacks show in the size at once.
    """
    sizes = norms(update).cpu()
    usual = torch.where(heard, sizes, torch.nan).nanmedian(1).values.nan_to_num(0.0)
    return sizes > OVERSIZED * torch.maximum(usual, sizes)[:, None]


def most_helpful(
    candidates: Bool[Tensor, "n n"], influence: Float[Tensor, "n n"], degree: int | None
) -> Bool[Tensor, "n n"]:
    """At most `degree` candidates of each row, those that helped most."""
    if degree is None or degree >= candidates.shape[1]:
        return candidates
    ranks = torch.where(candidates, influence, torch.inf).argsort(stable=True, dim=1).argsort(dim=1)
    return candidates & (ranks < degree)


def reweighted(
    W: Float[Tensor, "n n"], kept: Bool[Tensor, "n n"], adopted: Bool[Tensor, "n n"] | None = None
) -> Float[Tensor, "n n"]:
    """W without the neighbours that are not `kept`, rows normalised; an adopted stranger gets as much as k itself."""
    weights = W * kept + W.diag().diag()
    weights = weights + (~(weights > 0).any(1)).to(W).diag()  # whoever hears neither itself nor anybody kept
    if adopted is not None:
        weights = weights + weights.diag()[:, None] * adopted
    return weights / weights.sum(1, keepdim=True)
