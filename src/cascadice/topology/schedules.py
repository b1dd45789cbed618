"""Schedules: pure functions from the round number to W.

Random schedules draw the W of round t from (seed, t) alone, so round 700 does not need rounds 0 to 699.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.topology.graphs import Graph, check_degree, check_nodes
from cascadice.topology.matrices import check, from_links, identity, links, matrix
from cascadice.topology.weights import keeping_the_rest, symmetric_edges, uniform, with_diagonal

Schedule: TypeAlias = Callable[[int], Tensor]  # t -> W


@dataclass(frozen=True, eq=False)
class Cycle:
    """A schedule that repeats these matrices; it always returns the same tensor objects."""

    matrices: tuple[Tensor, ...]

    def __call__(self, t: int) -> Tensor:
        return self.matrices[t % len(self.matrices)]


class Checked:
    """Checks each new W of a user's schedule, which must have the size of the first.

    The schedule may reuse one buffer, so values are compared, not identities; for an unchanged W, the same tensor is
    returned.
    """

    def __init__(self, schedule: Callable[[int], Any]) -> None:
        self.schedule, self.nodes = schedule, 0
        self.seen: list[Tensor] = []
        self.W = torch.empty(0)

    def __call__(self, t: int) -> Tensor:
        given = self.schedule(t)
        parts = _contents(given)
        if not parts or len(parts) != len(self.seen) or not all(map(torch.equal, parts, self.seen)):
            try:
                self.W = matrix(given)
            except (ValueError, TypeError) as error:
                raise type(error)(f"in round {t}, {error}") from None
            self.seen, self.nodes = [part.clone() for part in parts], self.nodes or self.W.shape[0]
            if self.W.shape[0] != self.nodes:
                raise ValueError(f"W must keep its {self.nodes} participants; in round {t} it has {self.W.shape[0]}.")
        return self.W


def _contents(W: Any) -> list[Tensor]:
    """The contents of a matrix as dense tensors, to compare them; none if they cannot be read."""
    if isinstance(W, np.ndarray):
        return [torch.from_numpy(W)]
    if not isinstance(W, Tensor) or W.layout not in (torch.strided, torch.sparse_csr):
        return []
    return [W] if W.layout == torch.strided else [W.crow_indices(), W.col_indices(), W.values()]


def constant(W: Tensor) -> Cycle:
    """The same W in every round.

    Args:
        W: The mixing matrix.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If W is not a mixing matrix.

    Example:
        >>> constant(identity(3))(7).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return cyclic([W])


def cyclic(matrices: Sequence[Tensor]) -> Cycle:
    """These matrices in turn, over and over.

    Args:
        matrices: Mixing matrices of one size.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If there are none, one is not a mixing matrix, or sizes differ.

    Example:
        >>> schedule = cyclic([identity(2), torch.full((2, 2), 0.5)])
        >>> schedule(3)[0].tolist()
        [0.5, 0.5]
    """
    if not matrices:
        raise ValueError("a cycle needs at least one W; found none.")
    for W in matrices:
        check(W)
    if len(sizes := {W.shape[0] for W in matrices}) > 1:
        raise ValueError(f"every W of a cycle must have the same number of participants; found {sorted(sizes)}.")
    return Cycle(tuple(W.clone() for W in matrices))  # the caller may reuse its buffers


def one_peer_exponential(nodes: int) -> Cycle:
    """In round t, k averages with k + 2^(t mod ⌈log2 n⌉) (mod n).

    The product of log2 n rounds is exact consensus if n is a power of 2 (Ying et al. 2021).

    Args:
        nodes: How many participants.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> one_peer_exponential(4)(1)[0].tolist()  # averages with participant 2
        [0.5, 0.0, 0.5, 0.0]
    """
    everyone = torch.arange(check_nodes(nodes))
    half = torch.full((nodes,), 0.5, dtype=torch.float64)
    hops = [2**m for m in range((nodes - 1).bit_length())]
    rounds = [with_diagonal(nodes, everyone, (everyone + hop) % nodes, half, half) for hop in hops]
    return cyclic(rounds or [identity(nodes)])


def pairwise_gossip(graph: Graph | int, *, seed: int = 0) -> Schedule:
    """In each round, one random pair of neighbours averages (Boyd et al. 2006).

    Args:
        graph: The graph, or a number of participants of whom any two may meet.
        seed: Seed of the draws.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If a directed edge has no reverse.

    Example:
        >>> int((pairwise_gossip(6)(0).diag() == 0.5).sum())  # a pair
        2
    """
    if isinstance(graph, int):
        return partial(_any_pair, check_nodes(graph), seed)
    nodes, receivers, sources = symmetric_edges(graph)
    once = receivers < sources
    return partial(_one_pair, nodes, receivers[once], sources[once], seed)


def epidemic(nodes: int, *, degree: int | None = None, seed: int = 0) -> Schedule:
    """In each round, uniform weights on a fresh random regular graph (De Vos et al. 2023).

    Args:
        nodes: How many participants.
        degree: Neighbours of each participant; defaults to 4, or to all others if there are fewer.
        seed: Seed of the draws.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If there is no such graph.

    Example:
        >>> int((epidemic(8, degree=2)(0)[0] > 0).sum())  # two neighbours and itself
        3
    """
    return partial(_fresh_regular, nodes, check_degree(nodes, degree), seed)


def random_matching(nodes: int, *, seed: int = 0) -> Schedule:
    """In each round, everyone averages with one random partner; if n is odd, one sits out.

    Args:
        nodes: How many participants.
        seed: Seed of the draws.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> int((random_matching(6)(0).diag() == 0.5).sum())  # everyone
        6
    """
    return partial(_matching, check_nodes(nodes), seed)


def average(schedule: Schedule, rounds: int) -> Float[Tensor, "n n"]:
    """The mean W of the first `rounds` rounds; its links are those used in any of them.

    Args:
        schedule: The schedule.
        rounds: How many rounds, at least 1.

    Returns:
        W in float64.

    Raises:
        ValueError: If there are no rounds.

    Example:
        >>> average(one_peer_exponential(4), rounds=2)[0].tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; found {rounds}.")
    used = [links(schedule(t)) for t in range(rounds)]
    receivers, sources, weights = (torch.cat(columns) for columns in zip(*used, strict=True))
    return from_links(schedule(0).shape[0], receivers, sources, weights / rounds)


def _averaging(nodes: int, one: Int[Tensor, " pairs"], other: Int[Tensor, " pairs"]) -> Tensor:
    """W of a round in which these pairs average and the others keep their parameters."""
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
    return uniform(nx.random_regular_graph(degree, nodes, seed=seeds.derive(seed, "topology", "epidemic", t)))


def _matching(nodes: int, seed: int, t: int) -> Tensor:
    order = torch.randperm(nodes, generator=seeds.generator(seed, "topology", "matching", t))
    return _averaging(nodes, order[: nodes // 2], order[nodes // 2 : nodes // 2 * 2])
