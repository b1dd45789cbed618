"""Which W at which round: a schedule is a pure function of the round number.

Random schedules draw round t from (seed, t) alone, so round 700 needs no rounds 0 to 699.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.topology.graphs import Graph, check_degree, check_nodes, check_probability, draw_regular
from cascadice.topology.matrices import Links, check, from_links, identity, links, row_sums
from cascadice.topology.weights import keeping_the_rest, symmetric_arrows, uniform, with_diagonal

Schedule: TypeAlias = Callable[[int], Tensor]
Presence: TypeAlias = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class Cycle:
    """A schedule that repeats these matrices; it returns the same tensor objects each time round."""

    matrices: tuple[Tensor, ...]

    def __call__(self, t: int) -> Tensor:
        return self.matrices[t % len(self.matrices)]


def constant(W: Tensor) -> Cycle:
    """The same W every round."""
    return cyclic([W])


def cyclic(matrices: Sequence[Tensor]) -> Cycle:
    """These W in turn, over and over."""
    if not matrices:
        raise ValueError("a cycle needs at least one W; found none.")
    for W in matrices:
        check(W)
    if len(sizes := {W.shape[0] for W in matrices}) > 1:
        raise ValueError(f"every W of a cycle must have the same number of participants; found {sorted(sizes)}.")
    return Cycle(tuple(matrices))


def one_peer_exponential(nodes: int) -> Cycle:
    """At round t, k averages with k + 2^(t mod ⌈log2 n⌉): exact consensus every log2 n rounds if n is a power of 2."""
    everyone = torch.arange(check_nodes(nodes))
    half = torch.full((nodes,), 0.5, dtype=torch.float64)
    hops = [2**m for m in range((nodes - 1).bit_length())]
    return cyclic(
        [with_diagonal(nodes, everyone, (everyone + hop) % nodes, half, half) for hop in hops] or [identity(nodes)]
    )


def pairwise_gossip(graph: Graph | int, *, seed: int = 0) -> Schedule:
    """Each round, the two ends of one random link average (Boyd et al. 2006); a number n means all pairs of n."""
    if isinstance(graph, int):
        return partial(_any_pair, check_nodes(graph), seed)
    nodes, receivers, sources = symmetric_arrows(graph)
    once = receivers < sources
    return partial(_one_pair, nodes, receivers[once], sources[once], seed)


def epidemic(nodes: int, *, degree: int | None = None, seed: int = 0) -> Schedule:
    """Each round, uniform weights over a fresh random regular graph of this degree (4, or all if fewer)."""
    return partial(_fresh_regular, nodes, check_degree(nodes, degree), seed)


def random_matching(nodes: int, *, seed: int = 0) -> Schedule:
    """Each round, everybody averages with one random partner; if n is odd, one sits out."""
    return partial(_matching, check_nodes(nodes), seed)


def link_loss(schedule: Schedule, probability: float, *, seed: int = 0) -> Schedule:
    """Each link between two participants fails with `probability` each round; rows renormalise over what arrived."""
    return partial(_lossy, schedule, check_probability(probability), seed)


def presence(schedule: Schedule, present: Presence) -> Schedule:
    """Only those with `present(t)[k]` exchange at round t, and renormalise; the absent keep what they have."""
    return partial(_among_present, schedule, present)


def absences(spells: Iterable[tuple[Iterable[int], range]], nodes: int) -> Presence:
    """Who is present when these participants are away for these ranges of rounds, e.g. [([3, 5], range(10, 20))]."""
    given = [(tuple(away), rounds) for away, rounds in spells]
    for node in (node for away, _ in given for node in away):
        if not 0 <= node < nodes:
            raise ValueError(f"absent participants must be from 0 to {nodes - 1}; found {node}.")
    return partial(_present, tuple(given), nodes)


def average(schedule: Schedule, rounds: int) -> Float[Tensor, "n n"]:
    """The mean W of the first so many rounds; its links are all those used in any of them."""
    if rounds < 1:
        raise ValueError(f"at least one round is needed; found rounds={rounds}.")
    found = [links(schedule(t)) for t in range(rounds)]
    receivers, sources, weights = (torch.cat(columns) for columns in zip(*found, strict=True))
    return from_links(schedule(0).shape[0], receivers, sources, weights / rounds)


def _averaging(nodes: int, one: Int[Tensor, " pairs"], other: Int[Tensor, " pairs"]) -> Tensor:
    """W of a round in which these pairs average and all others keep what they have."""
    half = torch.full((2 * len(one),), 0.5, dtype=torch.float64)
    return keeping_the_rest(nodes, torch.cat([one, other]), torch.cat([other, one]), half)


def _any_pair(nodes: int, seed: int, t: int) -> Tensor:
    if nodes == 1:
        return identity(1)
    generator = seeds.generator(seed, "topology", "pair", t)
    one = torch.randint(nodes, (1,), generator=generator)
    other = (one + torch.randint(1, nodes, (1,), generator=generator)) % nodes
    return _averaging(nodes, one, other)


def _one_pair(nodes: int, ones: Int[Tensor, " pairs"], others: Int[Tensor, " pairs"], seed: int, t: int) -> Tensor:
    if len(ones) == 0:
        return identity(nodes)
    i = torch.randint(len(ones), (1,), generator=seeds.generator(seed, "topology", "pair", t))
    return _averaging(nodes, ones[i], others[i])


def _fresh_regular(nodes: int, degree: int, seed: int, t: int) -> Tensor:
    return uniform(draw_regular(nodes, degree, seed=seeds.derive(seed, "topology", "epidemic", t)))


def _matching(nodes: int, seed: int, t: int) -> Tensor:
    order = torch.randperm(nodes, generator=seeds.generator(seed, "topology", "matching", t))
    return _averaging(nodes, order[: nodes // 2], order[nodes // 2 : nodes // 2 * 2])


def _lossy(schedule: Schedule, probability: float, seed: int, t: int) -> Tensor:
    W = schedule(t)
    entries = links(W)
    generator = seeds.generator(seed, "topology", "loss", t)
    draws = torch.rand(len(entries.weights), generator=generator, dtype=torch.float32)
    return _keeping(W, entries, (draws >= probability) | (entries.receivers == entries.sources))


def _among_present(schedule: Schedule, present: Presence, t: int) -> Tensor:
    W, here = schedule(t), present(t)
    if here.dtype != torch.bool or here.shape != (W.shape[0],):
        raise ValueError(
            f"present(t) must be {W.shape[0]} booleans, one per participant; "
            f"found {here.dtype} of shape {tuple(here.shape)} at round {t}."
        )
    entries = links(W)
    return _keeping(W, entries, here[entries.receivers] & here[entries.sources])


def _present(spells: tuple[tuple[tuple[int, ...], range], ...], nodes: int, t: int) -> Bool[Tensor, " n"]:
    here = torch.ones(nodes, dtype=torch.bool)
    for away, rounds in spells:
        if t in rounds:
            here[list(away)] = False
    return here


def _keeping(W: Tensor, entries: Links, kept: Bool[Tensor, " links"]) -> Tensor:
    """W with only these links, rows renormalised; who has none left keeps what it has."""
    if kept.all():
        return W
    nodes, left = W.shape[0], Links(*(column[kept] for column in entries))
    sums = row_sums(nodes, left)
    silent = (sums == 0).double()
    return with_diagonal(nodes, left.receivers, left.sources, left.weights / sums[left.receivers], silent)
