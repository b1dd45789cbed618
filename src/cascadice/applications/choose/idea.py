"""Influence-aware gossip: everybody listens to those whose updates help on its own data.

for done in cd.simulate(network, rounds, rule=collaborators.influence_aware(network)): ...
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice import seeds
from cascadice.data.batches import rounds_per_epoch
from cascadice.engine.exchange import robust
from cascadice.engine.exchange.robust import others
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Draw, MixingRule
from cascadice.influence.proximity import norms, products
from cascadice.names import lookup

DROP, READMIT = 0.6, 0.8  # of what the best do: below the one a neighbour is dropped, above the other it may return
NEAR = 2 / 3  # of the greatest help: those who help so much or more are the best
MEMORY = 20.0  # evidence that is kept
LARGEST = 2.5  # times the usual size: an update that is larger is not let in
ENOUGH = 0.25  # evidence, at which half of the bound for dropping holds


class Evidence(NamedTuple):
    """What everybody knows of others: `[k, j]` is what k knows of j.

    `recent[j]` is Σ_s fading^s Δ_j^{t−s}; `weight` is how much has been learnt, `sum` that of influence so weighed, and
    `trusted` whether k listens to j if it can.
    """

    recent: Float[Tensor, "n d"]
    sum: Float[Tensor, "n n"]
    weight: Float[Tensor, "n n"]
    trusted: Bool[Tensor, "n n"]

    @property
    def influence(self) -> Float[Tensor, "n n"]:
        """`[k, j]`: the influence of j's updates on k, without their size, from −1 (helped) to 1; 0 if never heard."""
        return torch.where(self.weight > 0, self.sum / self.weight, 0.0)


class InfluenceAware:
    """A rule that remembers; see `influence_aware`. One for each run."""

    def __init__(
        self, network: Network, fading: float, memory: float, degree: int | None, explore: bool, networks: int
    ) -> None:
        self.fading, self.memory, self.degree, self.explore = fading, memory, degree, explore
        self.seed, self.size = network.seed, network.nodes // networks
        self.evidence = nothing(network.initial.theta)

    @property
    def given(self) -> Float[Tensor, "n n"]:
        """`[j, k]`: the accumulated influence of j on k, from −1 to 1; negative helped, 0 if k never heard j."""
        return self.evidence.influence.T

    def __call__(self, drawn: Draw, before: Participants, half: Participants) -> Float[Tensor, "n n"]:
        W = drawn.W.to_dense()
        heard = others(W)
        known = heard | self._strangers(drawn.t, len(W)) if self.explore else heard
        update = half.theta - before.theta
        self.evidence = learnt(self.evidence, update, known, self.fading, self.memory)
        welcome = self.evidence.trusted & ~oversized(update, heard)
        kept = best(welcome & heard, self.evidence.influence, self.degree)
        return reweighed(W, kept, self._adopted(welcome & ~heard, kept) if self.explore else None)

    def _strangers(self, t: int, nodes: int) -> Bool[Tensor, "n n"]:
        """Whom everybody hears besides its neighbours in round t, only to learn: all at one distance, drawn anew."""
        found = torch.zeros(nodes, nodes, dtype=torch.bool)
        if self.size > 1:
            by = int(torch.randint(1, self.size, (), generator=seeds.generator(self.seed, "stranger", t)))
            k = torch.arange(nodes)
            found[k, k // self.size * self.size + (k + by) % self.size] = True
        return found

    def _adopted(self, strangers: Bool[Tensor, "n n"], kept: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
        """Whoever would be left alone listens to the stranger that helped most."""
        helpers = strangers & (self.evidence.influence < 0)
        return best(helpers, self.evidence.influence, 1) & ~kept.any(1, keepdim=True)


def influence_aware(
    network: Network,
    *,
    fading: float | None = None,
    memory: float = MEMORY,
    degree: int | None = None,
    explore: bool = True,
    networks: int = 1,
) -> InfluenceAware:
    """Mixing weights from accumulated proximal influence, judged by every receiver on its own data.

        D_j = Σ_s fading^s Δ_j^{t−s}        c[k, j] = −cos(D_k, D_j)

    With SGD, D_k is minus the sum of the gradients of k's own batches, so that c is the first-order influence of what j
    has done lately on the loss of what k has trained on lately (Definition 4, summed over all pairs of rounds), without
    the sizes. One update is mostly noise; sums over rounds are not. k compares the accumulated c of its neighbours with
    that of the best among them: who helps less than 0.6 times as much is dropped, who once was and helps 0.8 times as
    much is back. The weights of the dropped go to the others and to itself; they are judged on. A round counts by the
    square of how much those who are trusted help in it (when nobody agrees with anybody nothing can be learnt), up to
    `memory` in all; then the old is forgotten as fast as new comes in. Unless `fading` is given, updates fade over a
    pass of one's data. An update far larger than others is not let in, whoever sent it.

    With `explore`, everybody also receives the updates of one stranger a round, to learn what good ones do, and whoever
    would be left alone listens to the best. `degree` is the greatest number of neighbours. Cost: no pass over data; one
    product of [n, d] matrices, and one more [n, d] of memory. `networks` is the number in a fleet.
    """
    fading = over_a_pass(network) if fading is None else fading
    if not 0 <= fading < 1:
        raise ValueError(f"fading must be at least 0 and below 1; found {fading}.")
    if not memory > 0:
        raise ValueError(f"memory must be positive; found {memory}.")
    if degree is not None and degree < 1:
        raise ValueError(f"degree must be at least 1, or nobody is listened to; found {degree}.")
    if networks < 1 or network.nodes % networks:
        raise ValueError(f"networks must divide the {network.nodes} participants; found {networks}.")
    return InfluenceAware(network, fading, memory, degree, explore, networks)


def over_a_pass(network: Network) -> float:
    """1 − 1 / the rounds of an epoch: then what batches happen to hold evens out; ten rounds at least."""
    if network.partition is None:
        return 0.9
    _, steps, size = network.batches(0).shape
    return max(0.9, 1 - 1 / rounds_per_epoch(network.partition, size, steps))


def nothing(like: Float[Tensor, "n d"]) -> Evidence:
    """Before the first round everybody is trusted."""
    none = torch.zeros(len(like), len(like), dtype=torch.float64)
    return Evidence(torch.zeros_like(like), none, none, torch.ones_like(none, dtype=torch.bool))


def learnt(
    so_far: Evidence, update: Float[Tensor, "n d"], known: Bool[Tensor, "n n"], fading: float, memory: float = MEMORY
) -> Evidence:
    """The evidence after one more round, in which k received the update of j where `known[k, j]`."""
    recent = update.add(so_far.recent, alpha=fading)
    now = torch.where(known, _influence(recent), 0.0)
    weight = _signal(now, so_far, known).square() * known
    total, weight = so_far.sum + weight * now, so_far.weight + weight
    forgotten = memory / weight.clamp(min=memory)
    found = Evidence(recent, total * forgotten, weight * forgotten, so_far.trusted)
    return found._replace(trusted=trusted(found))


def _influence(recent: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """c[k, j]; 0 of those who did nothing."""
    lengths = norms(recent)
    cosine = products(recent, recent) / torch.outer(lengths, lengths)
    return -cosine.nan_to_num(0.0, 0.0, 0.0).cpu()


def _signal(now: Float[Tensor, "n n"], so_far: Evidence, known: Bool[Tensor, "n n"]) -> Float[Tensor, "n 1"]:
    """How much those whom k trusts help it in this round, on average; in the first round, how much the best does."""
    trusted = so_far.trusted & known
    mean = (now * trusted).sum(1, keepdim=True) / trusted.sum(1, keepdim=True).clamp(min=1)
    first = ~(so_far.weight > 0).any(1, keepdim=True)
    return -torch.where(first, now.amin(1, keepdim=True), mean).clamp(max=0)


def oversized(update: Float[Tensor, "n d"], heard: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """`[k, j]`: whether j's update is so much larger than k's own and those it mostly hears that k waits and sees.

    Evidence is slow to turn against one that helped for long; noise, or an update turned round and blown up, is large.
    """
    sizes = norms(update).cpu()
    usual = torch.where(heard, sizes, torch.nan).nanmedian(1).values.nan_to_num(0.0)
    return sizes > LARGEST * torch.maximum(usual, sizes)[:, None]


def trusted(evidence: Evidence) -> Bool[Tensor, "n n"]:
    """Whom k trusts now, seen whom it trusted before: who helps as much as the best, nearly."""
    help = -evidence.influence
    among = (help > 0) & (help >= NEAR * help.amax(1, keepdim=True))
    best = (help * among).sum(1, keepdim=True) / among.sum(1, keepdim=True).clamp(min=1)
    least = torch.where(evidence.trusted, DROP * evidence.weight / (evidence.weight + ENOUGH), READMIT)
    return torch.where(evidence.weight > 0, (help > 0) & (help >= least * best), evidence.trusted)


def best(among: Bool[Tensor, "n n"], influence: Float[Tensor, "n n"], degree: int | None) -> Bool[Tensor, "n n"]:
    """At most `degree` of those in every row, the ones that helped most."""
    if degree is None or degree >= among.shape[1]:
        return among
    ranks = torch.where(among, influence, torch.inf).argsort(stable=True, dim=1).argsort(dim=1)
    return among & (ranks < degree)


def reweighed(
    W: Float[Tensor, "n n"], kept: Bool[Tensor, "n n"], adopted: Bool[Tensor, "n n"] | None = None
) -> Float[Tensor, "n n"]:
    """W with the weights of neighbours that are not `kept` shared out in proportion; the adopted get k's own weight."""
    own = W.diag()
    chosen = W * kept + own.diag()
    chosen = chosen + (~(chosen > 0).any(1)).to(W).diag()  # who hears neither itself nor anybody kept
    if adopted is not None:
        chosen = chosen + chosen.diag()[:, None] * adopted
    return chosen / chosen.sum(1, keepdim=True)


def suggested(
    evidence: Evidence, W: Float[Tensor, "n n"], *, degree: int | None = None, new_links: bool = False
) -> Float[Tensor, "n n"]:
    """A W by what is known: without those who are not trusted, and nobody left alone whom anybody helps.

    With `new_links` everybody hears whoever helps it most, known as a neighbour or not, as many as `degree` says (as
    many as it heard before), all by equal weights.
    """
    heard, helps = others(W), evidence.trusted & (evidence.influence < 0)
    helps = helps & ~torch.eye(len(W), dtype=torch.bool)
    if not new_links:
        kept = best(helps & heard, evidence.influence, degree)
        strangers = best(helps & ~heard, evidence.influence, 1) & ~kept.any(1, keepdim=True)
        return reweighed(W, kept, strangers)
    most = degree or max(1, int(heard.sum(1).max()))
    chosen = best(helps, evidence.influence, most).to(W) + torch.eye(len(W)).to(W)
    return chosen / chosen.sum(1, keepdim=True)


class Kind(NamedTuple):
    """How to make a rule for a network, whether its result is an average, whether it remembers, and what it does."""

    make: Callable[[Network], MixingRule]
    averages: bool
    remembers: bool
    description: str


RULES: Mapping[str, Kind] = {
    "influence": Kind(influence_aware, True, True, "listen to those whose updates help on one's own data"),
    "clipping": Kind(
        lambda network: robust.clipping(), True, False, "self-centred clipping of models that are far off"
    ),
    "krum": Kind(lambda network: robust.krum(), True, False, "take over the model nearest to most of those received"),
    "trimmed-mean": Kind(
        lambda network: robust.trimmed_mean(), False, False, "in every coordinate, without the least and the greatest"
    ),
}


def build(name: str, network: Network) -> MixingRule:
    """The named rule for a run of this network."""
    return lookup(RULES, name, "rule").make(network)
