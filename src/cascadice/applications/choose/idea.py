"""With whom to collaborate: what a run shows about who helps whom, and the mixing matrix that follows from it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.applications.choose.balance import Balance, balance_over_time
from cascadice.applications.neighbours import receive
from cascadice.engine import Evaluation, Network, Round
from cascadice.engine.exchange import cosine_trust
from cascadice.engine.exchange.cosine_trust import Trust, most_helpful
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.operator import Exchange
from cascadice.influence.proximity import Proximity, in_turn, placed
from cascadice.runs.processes import ONE_PROCESS, World

LITTLE = 0.05  # of the greatest weight of evidence: below it, k knows too little of j


class Observed(NamedTuple):
    """What the rounds of a run show: trust between well-known pairs, the balance over the links, and the mean W."""

    trust: Trust
    balance: Balance
    W: Float[Tensor, "n n"]


def observe(
    network: Network, rounds: Iterable[Round], evaluation: Evaluation, *, samples: int, every: int = 1,
    hears: Bool[Tensor, "n n"] | None = None, world: World = ONE_PROCESS, exchange: Exchange | None = None,
) -> Observed:  # fmt: skip
    """What every participant could have learnt about every other, had all updates been sent to all.

    Args:
        rounds: Read once; there must be at least one.
        evaluation: Samples of each participant's own: `evaluate_on(network, own_data(network, size))`.
        samples: How many of these to use in a round; they take turns.
        every: Keep the balance after every so many rounds.
        hears: `[k, j]`: whether j's updates are sent to k; to everybody unless given.
        world: The processes that have the participants, if several: they tell one another scores of pairs, no models
            and no data. Cost: an update an edge and round, n² numbers in the end, and 2n for each round.
        exchange: Their messages.

    Returns:
        What the rounds show, for `suggest_mixing`, `advise` and `find_groups`.

    Example:
        >>> own = evaluate_on(network, own_data(network, 128))
        >>> seen = observe(network, cascadice.simulate(network, 50), own, samples=64)
        >>> suggest_mixing(seen.trust, seen.W)
    """
    nodes, own = network.whole, list(network.members or range(network.nodes))
    hears = ~torch.eye(nodes, dtype=torch.bool) if hears is None else hears
    seen = sorted({*own, *hears[own].any(0).nonzero()[:, 0].tolist()})
    count, total = 0, torch.zeros(nodes, nodes, dtype=torch.float64)
    trust = cosine_trust.initial_trust(network.initial.theta.new_zeros(len(seen), network.learner.size))
    received, fading = hears[seen][:, seen], _fading(network, world)

    def proximities() -> Iterator[Proximity]:
        nonlocal trust, count
        for round_ in rounds:
            came = receive(network, round_, in_turn(evaluation, round_.t, samples), exchange, hears)
            trust, count = cosine_trust.learn(trust, came.updates, received, fading), count + 1
            total.add_(round_.W.to_dense().cpu())
            yield came.proximity

    balance = balance_over_time(proximities(), every)
    if not world.alone:
        trust, balance = _told(network, world, trust, seen), balance.map(lambda values: _sums(world, values))
    return Observed(well_known(trust), balance, total / count)


def _told(network: Network, world: World, trust: Trust, seen: list[int]) -> Trust:
    """What the participants of all processes have learnt, from what those of this one learnt about those they hear."""
    own, learnt = list(network.members), (trust.total, trust.weight, trust.trusted)
    places = [seen.index(k) for k in own]
    values = torch.stack([placed(network, value[places].double().cpu(), own, seen) for value in learnt])
    total, weight, trusted = _sums(world, values)
    return trust._replace(total=total, weight=weight, trusted=(trusted > 0) | (weight == 0))


def _fading(network: Network, world: World) -> float:
    """As `cosine_trust.epoch_fading` of the whole network."""
    if world.alone:
        return cosine_trust.epoch_fading(network)
    _, steps, size = network.batches(0).shape
    held = sum(len(part) // size for part in network.partition or ())
    whole, worked = world.total(held, steps * network.nodes)
    return max(0.9, 1 - 1 / max(1, -(-int(whole) // int(worked))))


def _sums(world: World, values: Tensor) -> Tensor:
    """The sums over processes, of which each has its own entries; nothing is added to another number than 0."""
    told = world.tell(values.double().tolist())
    return torch.stack([torch.tensor(one, dtype=torch.float64) for one in told]).sum(0)


def well_known(trust: Trust) -> Trust:
    """Without what k has learnt about those of whom it knows too little."""
    enough = trust.weight >= LITTLE * trust.weight.max()
    return trust._replace(total=trust.total * enough, weight=trust.weight * enough)


def suggest_mixing(
    trust: Trust, W: Float[Tensor, "n n"], *, degree: int | None = None, new_links: bool = False
) -> Float[Tensor, "n n"]:
    """A mixing matrix without the links to those who are not trusted.

    Whoever would be left alone listens to the most helpful participant it did not hear, if any helps it.

    Args:
        trust: What `observe` found.
        W: The mixing matrix to improve.
        degree: Greatest number of neighbours. With `new_links`, as many as the busiest had before unless given.
        new_links: Whether participants may hear anyone who helps, neighbour or not, all with equal weights.

    Returns:
        The mixing matrix for the next run: its rows sum to 1.

    Example:
        >>> seen = observe(network, rounds, own, samples=64)
        >>> W = suggest_mixing(seen.trust, seen.W, degree=4)
    """
    heard, helps = neighbours(W), trust.trusted & (trust.score < 0)
    helps = helps & ~torch.eye(len(W), dtype=torch.bool)
    if not new_links:
        kept = most_helpful(helps & heard, trust.score, degree)
        strangers = most_helpful(helps & ~heard, trust.score, 1) & ~kept.any(1, keepdim=True)
        return cosine_trust.reweighted(W, kept, strangers)
    most = degree or max(1, int(heard.sum(1).max()))
    chosen = most_helpful(helps, trust.score, most).to(W) + torch.eye(len(W)).to(W)
    return chosen / chosen.sum(1, keepdim=True)
