"""Choose collaborators: who helps whom in a run, and the mixing matrix that follows from it."""

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
from cascadice.runs.distributed.processes import ONE_PROCESS, World

LITTLE = 0.05  # share of the greatest weight of evidence below which k knows too little about j


class Observed(NamedTuple):
    """Trust between pairs that know enough of each other, the balance over links, and the mean W."""

    trust: Trust
    balance: Balance
    W: Float[Tensor, "n n"]


def observe(
    network: Network, rounds: Iterable[Round], evaluation: Evaluation, *, samples: int, every: int = 1,
    hears: Bool[Tensor, "n n"] | None = None, world: World = ONE_PROCESS, exchange: Exchange | None = None,
) -> Observed:  # fmt: skip
    """Learn what every participant could know about every other if all updates were sent to all.

    Args:
        rounds: Read once; there must be at least one.
        evaluation: Samples of each participant's own: `evaluate_on(network, own_data(network, size))`.
        samples: How many of these to use in a round; they take turns.
        every: Keep the balance after every N-th round.
        hears: `[k, j]`: whether j's updates are sent to k; to everybody by default.
        world: The processes that share the participants. They send one another scores of pairs, no models and no data.
            Cost: an update per edge and round, n² numbers at the end, and 2n per round.
        exchange: Their messages.

    Returns:
        Input for `suggest_mixing`, `advise` and `find_groups`.

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
    among_seen, fading = hears[seen][:, seen], _fading(network, world)

    def proximities() -> Iterator[Proximity]:
        nonlocal trust, count
        for round_ in rounds:
            received = receive(network, round_, in_turn(evaluation, round_.t, samples), exchange, hears)
            trust, count = cosine_trust.learn(trust, received.updates, among_seen, fading), count + 1
            total.add_(round_.W.to_dense().cpu())
            yield received.proximity

    balance = balance_over_time(proximities(), every)
    if not world.alone:
        trust = _trust_of_all(network, world, trust, seen)
        t, *sums = balance
        balance = Balance(t, *(_sums(world, values) for values in sums))
    enough = trust.weight >= LITTLE * trust.weight.max()
    return Observed(trust._replace(total=trust.total * enough, weight=trust.weight * enough), balance, total / count)


def _trust_of_all(network: Network, world: World, trust: Trust, seen: list[int]) -> Trust:
    """The trust of participants of all processes, from that of this one's in those they hear."""
    own, learnt = list(network.members), (trust.total, trust.weight, trust.trusted)
    rows = [seen.index(k) for k in own]
    values = torch.stack([placed(network, value[rows].double().cpu(), own, seen) for value in learnt])
    total, weight, trusted = _sums(world, values)
    return trust._replace(total=total, weight=weight, trusted=(trusted > 0) | (weight == 0))


def _fading(network: Network, world: World) -> float:
    """`cosine_trust.epoch_fading` for the whole network, of which this process may have a part."""
    if world.alone:
        return cosine_trust.epoch_fading(network)
    _, steps, size = network.batches(0).shape
    held = sum(len(part) // size for part in network.partition or ())
    whole, worked = world.total(held, steps * network.nodes)
    return max(0.9, 1 - 1 / max(1, -(-int(whole) // int(worked))))


def _sums(world: World, values: Tensor) -> Tensor:
    """Sum over processes. Each has its own entries and 0 elsewhere, so the sums are exact."""
    parts = world.tell(values.double().tolist())
    return torch.stack([torch.tensor(part, dtype=torch.float64) for part in parts]).sum(0)


def suggest_mixing(
    trust: Trust, W: Float[Tensor, "n n"], *, degree: int | None = None, new_links: bool = False
) -> Float[Tensor, "n n"]:
    """Drop the links to participants that are not trusted.

    A participant that would be left alone hears the most helpful one that it did not hear before, if any helps it.

    Args:
        trust: From `observe`.
        W: The mixing matrix to improve.
        degree: Greatest number of neighbours; with `new_links`, by default as many as any participant had before.
        new_links: Allow links to anyone who helps, neighbour or not, all with equal weights.

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
