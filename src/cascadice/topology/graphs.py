"""Named graphs on the participants 0 … n − 1. In an edge (u, v), u sends to v; undirected edges go both ways."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import networkx as nx

from cascadice import seeds

if TYPE_CHECKING:
    Graph: TypeAlias = nx.Graph[Any]
    DiGraph: TypeAlias = nx.DiGraph[Any]
else:  # networkx's classes are generic in its type stubs only
    Graph, DiGraph = nx.Graph, nx.DiGraph

CONNECTED_ATTEMPTS = 100


def alone(nodes: int) -> Graph:
    """No edges: everyone trains alone.

    Args:
        nodes: How many participants.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> alone(4).number_of_edges()
        0
    """
    graph: Graph = nx.empty_graph(check_nodes(nodes))
    return graph


def ring(nodes: int) -> Graph:
    """Each participant exchanges with the one before and the one after it.

    Args:
        nodes: How many participants.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> sorted(ring(4).edges)
        [(0, 1), (0, 3), (1, 2), (2, 3)]
    """
    graph: Graph = nx.cycle_graph(check_nodes(nodes))
    return graph


def complete(nodes: int) -> Graph:
    """Everyone exchanges with everyone; with uniform weights, this is FedAvg.

    Args:
        nodes: How many participants.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> complete(4).number_of_edges()
        6
    """
    graph: Graph = nx.complete_graph(check_nodes(nodes))
    return graph


def star(nodes: int) -> Graph:
    """Everyone exchanges with participant 0.

    Args:
        nodes: How many participants.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> sorted(star(4).edges)
        [(0, 1), (0, 2), (0, 3)]
    """
    graph: Graph = nx.star_graph(check_nodes(nodes) - 1)
    return graph


def exponential(nodes: int) -> DiGraph:
    """Participant k receives from k + 2^m (mod n) for every 2^m < n (Ying et al. 2021).

    Args:
        nodes: How many participants.

    Returns:
        The directed graph; an edge (u, v) means that u sends to v.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> sorted(exponential(8).predecessors(0))
        [1, 2, 4]
    """
    graph: DiGraph = nx.empty_graph(check_nodes(nodes), create_using=nx.DiGraph)
    hops = [2**m for m in range((nodes - 1).bit_length())]
    graph.add_edges_from(((k + hop) % nodes, k) for k in range(nodes) for hop in hops)
    return graph


def torus(nodes: int) -> Graph:
    """A grid with wrap-around borders, as square as possible.

    Args:
        nodes: How many participants.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If the number is a prime above 3.

    Example:
        >>> sorted(torus(9).neighbors(0))
        [1, 2, 3, 6]
    """
    check_nodes(nodes)
    rows = max(side for side in range(1, math.isqrt(nodes) + 1) if nodes % side == 0)
    if rows == 1 and nodes > 3:
        raise ValueError(
            f"torus needs a number of participants that divides into rows and columns; {nodes} is prime. "
            f"Use {nodes - 1} or {nodes + 1}, or topology 'ring'."
        )
    columns = nodes // rows
    graph: Graph = nx.empty_graph(nodes)
    for k in range(nodes):
        row, column = divmod(k, columns)
        graph.add_edge(k, row * columns + (column + 1) % columns)
        graph.add_edge(k, (row + 1) % rows * columns + column)
    return graph


def random_regular(nodes: int, *, degree: int | None = None, seed: int = 0) -> Graph:
    """A connected random graph in which everyone has `degree` neighbours.

    Args:
        nodes: How many participants.
        degree: Neighbours of each participant; defaults to 4, or to all others if there are fewer.
        seed: Seed of the random choice.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there is no such graph, or none of 100 draws is connected.

    Example:
        >>> {degree for _, degree in random_regular(10, degree=3).degree}
        {3}
    """
    degree = check_degree(nodes, degree)
    return _connected(partial(nx.random_regular_graph, degree, nodes), seed, f"random-regular with degree {degree}")


def erdos_renyi(nodes: int, *, probability: float | None = None, seed: int = 0) -> Graph:
    """A connected random graph in which each pair is linked with a probability (Erdős & Rényi 1959).

    Args:
        nodes: How many participants.
        probability: The probability of each link; defaults to 2 ln n / n.
        seed: Seed of the random choice.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If the probability is not in [0, 1], or none of 100 draws is connected.

    Example:
        >>> nx.is_connected(erdos_renyi(16))
        True
    """
    check_nodes(nodes)
    p = check_probability(min(1.0, 2 * math.log(nodes) / nodes) if probability is None else probability)
    return _connected(partial(nx.fast_gnp_random_graph, nodes, p), seed, f"erdos-renyi with p = {p:.4g}")


def small_world(nodes: int, *, degree: int | None = None, probability: float = 0.1, seed: int = 0) -> Graph:
    """A ring of nearest neighbours, each edge rewired with a probability, connected (Watts & Strogatz 1998).

    Args:
        nodes: How many participants.
        degree: Nearest neighbours on the ring; defaults to 4, or to all others if there are fewer.
        probability: The probability of rewiring an edge.
        seed: Seed of the random choice.

    Returns:
        The graph on participants 0 … n − 1.

    Raises:
        ValueError: If there is no such graph, or none of 100 draws is connected.

    Example:
        >>> small_world(16).number_of_edges()
        32
    """
    check_probability(probability)
    degree = min(4, check_nodes(nodes) - 1) if degree is None else degree
    if not 0 <= degree < nodes:
        raise ValueError(f"degree must be from 0 to {nodes - 1} for {nodes} participants; found {degree}.")
    # networkx rounds odd degrees down; rounding up keeps a complete graph of 2 or 4 participants connected
    nearest = degree + degree % 2
    if nearest >= nodes:
        return complete(nodes)
    draw = partial(nx.watts_strogatz_graph, nodes, nearest, probability)
    return _connected(draw, seed, f"small-world with degree {degree}")


def check_nodes(nodes: int) -> int:
    """Return `nodes`; raise ValueError if it is less than 1."""
    if nodes < 1:
        raise ValueError(f"a network needs at least 1 participant; found nodes={nodes}.")
    return nodes


def check_degree(nodes: int, degree: int | None) -> int:
    """The degree of a regular graph, by default at most 4; raise ValueError if no such graph exists."""
    check_nodes(nodes)
    if degree is None:
        return min(4, nodes - 1)
    if not 0 <= degree < nodes or nodes * degree % 2:
        raise ValueError(
            f"a regular graph needs 0 <= degree < nodes and nodes * degree even; found nodes={nodes}, degree={degree}. "
            f"Use an even degree below {nodes}."
        )
    return degree


def check_probability(probability: float) -> float:
    """Return `probability`; raise ValueError if it is not in [0, 1]."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be from 0 to 1; found {probability}.")
    return probability


def _connected(draw_graph: Callable[..., Graph], seed: int, what: str) -> Graph:
    """The first connected graph of a hundred draws: an isolated participant would silently distort an experiment."""
    for attempt in range(CONNECTED_ATTEMPTS):
        graph = draw_graph(seed=seeds.derive(seed, "topology", "graph", attempt))
        if nx.is_connected(graph):
            return graph
    raise ValueError(f"{what}: none of {CONNECTED_ATTEMPTS} draws was connected. Raise the degree or the probability.")
