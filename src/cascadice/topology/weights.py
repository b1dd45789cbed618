"""Weights for a graph's edges. Every participant keeps a share of its own parameters, so W always has self-loops."""

from typing import TypeAlias

import networkx as nx
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.topology.graphs import Graph, check_nodes
from cascadice.topology.matrices import from_links, matrix, sums

Ends: TypeAlias = Int[Tensor, " edges"]
Weights: TypeAlias = Float[Tensor, " edges"]


def uniform(graph: Graph) -> Float[Tensor, "n n"]:
    """Equal weights for oneself and one's in-neighbours: W[k, j] = 1 / (in-degree of k + 1). Row-stochastic.

    Args:
        graph: The graph; in a directed edge (u, v), u sends to v.

    Returns:
        W in float64.

    Example:
        >>> import networkx as nx
        >>> uniform(nx.path_graph(2))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    nodes, receivers, sources = edges(graph)
    share = 1 / (receivers.bincount(minlength=nodes).double() + 1)
    return with_diagonal(nodes, receivers, sources, share[receivers], share)


def metropolis(graph: Graph) -> Float[Tensor, "n n"]:
    """Metropolis–Hastings weights: W[k, j] = 1 / (1 + max(degree of k, degree of j)). Doubly stochastic.

    The diagonal takes the rest of each row. A directed graph must have every edge in both directions.

    Args:
        graph: The graph.

    Returns:
        W in float64.

    Raises:
        ValueError: If a directed edge has no reverse.

    Example:
        >>> metropolis(nx.star_graph(3))[0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    nodes, receivers, sources = symmetric_edges(graph)
    degree = receivers.bincount(minlength=nodes).double()
    weights = 1 / (1 + torch.maximum(degree[receivers], degree[sources]))
    return keeping_the_rest(nodes, receivers, sources, weights)


def from_graph(graph: Graph, *, normalize: bool = False) -> Float[Tensor, "n n"]:
    """The weights of the graph's edges, which must all have one: `W[v, u] = graph[u][v]["weight"]`.

    A participant without a self-loop gives itself the rest of its row.

    Args:
        graph: The graph; in a directed edge (u, v), u sends to v.
        normalize: Whether to divide each row by its sum.

    Returns:
        W in float64.

    Raises:
        ValueError: If an edge has no weight, or W is not a mixing matrix.

    Example:
        >>> from_graph(nx.DiGraph([(0, 1, {"weight": 0.4}), (1, 0, {"weight": 0.1})])).tolist()
        [[0.9, 0.1], [0.4, 0.6]]
    """
    nodes, receivers, sources = edges(graph)
    given = nx.get_edge_attributes(graph, "weight")
    if missing := set(graph.edges) - set(given):
        u, v = min(missing, key=str)
        raise ValueError(f"edge ({u}, {v}) has no 'weight'. Set it, or use topology.uniform(graph) or metropolis.")
    label = _labels(graph)
    pairs = zip(receivers.tolist(), sources.tolist(), strict=True)
    weights = torch.tensor([float(graph[label[j]][label[k]]["weight"]) for k, j in pairs], dtype=torch.float64)
    rest = (1 - sums(nodes, receivers, weights)).clamp(min=0)
    own = [float(graph[u][u]["weight"] if graph.has_edge(u, u) else rest[k]) for k, u in enumerate(label)]
    W = with_diagonal(nodes, receivers, sources, weights, torch.tensor(own, dtype=torch.float64))
    return matrix(W, normalize=normalize)


def dominant(nodes: int) -> Float[Tensor, "n n"]:
    """W with participant 0 dominant, ⌊7n/16⌋ and ⌊10n/16⌋ subdominant (7 and 10 of 16), the rest ordinary.

    Every participant gives itself 0.5 (the dominant one 0.7) and its predecessor on a ring 0.1. Ordinary participants
    give 0.24 to the dominant and 0.08 to each subdominant one; a subdominant one gives 0.3 to the dominant and 0.1 to
    the other; the dominant one gives each of them 0.1. Row-stochastic, strongly connected; at least 4 participants.

    Args:
        nodes: How many participants, at least 4.

    Returns:
        W in float64.

    Raises:
        ValueError: If there are fewer than 4 participants.

    Example:
        >>> dominant(4)[0].tolist()
        [0.7, 0.1, 0.1, 0.1]
    """
    if nodes < 4:
        raise ValueError(f"dominant needs at least 4 participants; found nodes={nodes}. Use topology 'star'.")
    leaders = sub, other = 7 * nodes // 16, 10 * nodes // 16
    entries = [(k, (k - 1) % nodes, 0.1) for k in range(nodes)]
    entries += [(k, 0, 0.24) for k in range(1, nodes) if k not in leaders]
    entries += [(k, leader, 0.08) for k in range(1, nodes) if k not in leaders for leader in leaders]
    entries += [(sub, 0, 0.3), (other, 0, 0.3), (sub, other, 0.1), (other, sub, 0.1), (0, sub, 0.1), (0, other, 0.1)]
    receivers, sources, weights = zip(*entries, strict=True)
    return keeping_the_rest(
        nodes, torch.tensor(receivers), torch.tensor(sources), torch.tensor(weights, dtype=torch.float64)
    )


def with_diagonal(nodes: int, receivers: Ends, sources: Ends, weights: Weights, own: Float[Tensor, " n"]) -> Tensor:
    """W from the weights between participants and the weight that each gives itself."""
    everyone = torch.arange(nodes)
    ends = torch.cat([receivers, everyone]), torch.cat([sources, everyone])
    return from_links(nodes, *ends, torch.cat([weights, own]))


def keeping_the_rest(nodes: int, receivers: Ends, sources: Ends, weights: Weights) -> Tensor:
    """W from the weights between participants; each gives itself the rest of its row."""
    return with_diagonal(nodes, receivers, sources, weights, 1 - sums(nodes, receivers, weights))


def edges(graph: Graph) -> tuple[int, Ends, Ends]:
    """(participants, receivers, sources) of the directed edges, self-loops left out.

    Participant k is node k, or the k-th node if labels are not 0 … n − 1.
    """
    if not isinstance(graph, nx.Graph) or graph.is_multigraph():
        raise TypeError(f"graph must be a networkx Graph or DiGraph; found {type(graph).__name__}. Convert it first.")
    index = {label: k for k, label in enumerate(_labels(graph))}
    pairs = torch.tensor([(index[u], index[v]) for u, v in graph.edges if u != v], dtype=torch.int64).reshape(-1, 2)
    if not graph.is_directed():
        pairs = torch.cat([pairs, pairs.flip(1)])
    return check_nodes(len(index)), pairs[:, 1], pairs[:, 0]


def symmetric_edges(graph: Graph) -> tuple[int, Ends, Ends]:
    """`edges`; raise ValueError if an edge has no reverse."""
    nodes, receivers, sources = edges(graph)
    one_way = ~torch.isin(receivers * nodes + sources, sources * nodes + receivers)
    if one_way.any():
        u, v = int(sources[one_way][0]), int(receivers[one_way][0])
        raise ValueError(
            f"every edge must have its reverse; {u} -> {v} has none. Use uniform weights, or graph.to_undirected()."
        )
    return nodes, receivers, sources


def _labels(graph: Graph) -> list[object]:
    labels = list(graph)
    return list(range(len(labels))) if set(labels) == set(range(len(labels))) else labels
