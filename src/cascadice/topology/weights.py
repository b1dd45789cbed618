"""From a graph to W. Everybody keeps something of itself, so W has self-loops whether or not the graph does."""

from typing import NamedTuple

import networkx as nx
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.topology.graphs import Graph, check_nodes
from cascadice.topology.matrices import from_links, matrix


class Arrows(NamedTuple):
    """Who sends to whom over a graph of so many participants; an undirected edge is two arrows."""

    nodes: int
    receivers: Int[Tensor, " arrows"]
    sources: Int[Tensor, " arrows"]


def uniform(graph: Graph) -> Float[Tensor, "n n"]:
    """Equal weights over in-neighbours and oneself: W[k, j] = 1 / (in-degree of k + 1). Row-stochastic."""
    nodes, receivers, sources = arrows(graph)
    share = 1 / (receivers.bincount(minlength=nodes).double() + 1)
    return with_diagonal(nodes, receivers, sources, share[receivers], share)


def metropolis(graph: Graph) -> Float[Tensor, "n n"]:
    """Metropolis–Hastings weights: W[k, j] = 1 / (1 + max(degree of k, degree of j)). Doubly stochastic.

    Every link must run both ways; the diagonal takes what is left.
    """
    nodes, receivers, sources = symmetric_arrows(graph)
    degree = receivers.bincount(minlength=nodes).double()
    weights = 1 / (1 + torch.maximum(degree[receivers], degree[sources]))
    return keeping_the_rest(nodes, receivers, sources, weights)


def from_graph(graph: Graph, *, normalize: bool = False) -> Float[Tensor, "n n"]:
    """The weights written on the edges: `W[v, u] = graph[u][v]["weight"]`.

    A participant without a self-loop keeps what it does not give to others; `normalize` divides each row by its sum.
    """
    nodes, receivers, sources = arrows(graph)
    given = nx.get_edge_attributes(graph, "weight")
    if missing := set(graph.edges) - set(given):
        u, v = min(missing, key=str)
        raise ValueError(f"edge ({u}, {v}) has no 'weight'. Set it, or use topology.uniform(graph) or metropolis.")
    label = _labels(graph)
    off = [
        float(graph[label[j]][label[k]]["weight"]) for k, j in zip(receivers.tolist(), sources.tolist(), strict=True)
    ]
    weights = torch.tensor(off, dtype=torch.float64)
    rest = (1 - weights.new_zeros(nodes).index_add(0, receivers, weights)).clamp(min=0)
    own = [float(graph[u][u]["weight"] if graph.has_edge(u, u) else rest[k]) for k, u in enumerate(label)]
    W = with_diagonal(nodes, receivers, sources, weights, torch.tensor(own, dtype=torch.float64))
    return matrix(W, normalize=normalize)


def with_diagonal(
    nodes: int,
    receivers: Int[Tensor, " arrows"],
    sources: Int[Tensor, " arrows"],
    weights: Float[Tensor, " arrows"],
    diagonal: Float[Tensor, " n"],
) -> Float[Tensor, "n n"]:
    """W from the links between participants and the weight that each gives to itself."""
    everyone = torch.arange(nodes)
    return from_links(
        nodes, torch.cat([receivers, everyone]), torch.cat([sources, everyone]), torch.cat([weights, diagonal])
    )


def keeping_the_rest(
    nodes: int, receivers: Int[Tensor, " arrows"], sources: Int[Tensor, " arrows"], weights: Float[Tensor, " arrows"]
) -> Float[Tensor, "n n"]:
    """W in which everybody keeps what it does not give to others."""
    rest = 1 - weights.new_zeros(nodes).index_add(0, receivers, weights)
    return with_diagonal(nodes, receivers, sources, weights, rest)


def arrows(graph: Graph) -> Arrows:
    """Who sends to whom, without self-loops. Participant k is node k, or the k-th node if labels are not 0 … n − 1."""
    if not isinstance(graph, nx.Graph) or graph.is_multigraph():
        raise TypeError(f"a networkx Graph or DiGraph is needed; found {type(graph).__name__}. Convert it first.")
    index = {label: k for k, label in enumerate(_labels(graph))}
    pairs = torch.tensor([(index[u], index[v]) for u, v in graph.edges if u != v], dtype=torch.int64).reshape(-1, 2)
    if not graph.is_directed():
        pairs = torch.cat([pairs, pairs.flip(1)])
    return Arrows(check_nodes(len(index)), receivers=pairs[:, 1], sources=pairs[:, 0])


def symmetric_arrows(graph: Graph) -> Arrows:
    """`arrows`, or a ValueError that names a link without its reverse."""
    found = arrows(graph)
    one_way = _one_way(found)
    if one_way.any():
        u, v = int(found.sources[one_way][0]), int(found.receivers[one_way][0])
        raise ValueError(
            f"every link must run both ways here; {u} -> {v} has no reverse. "
            "Use uniform weights, or graph.to_undirected()."
        )
    return found


def _one_way(found: Arrows) -> Bool[Tensor, " arrows"]:
    there = found.receivers * found.nodes + found.sources
    back = found.sources * found.nodes + found.receivers
    return ~torch.isin(there, back)


def _labels(graph: Graph) -> list[object]:
    labels = list(graph)
    return list(range(len(labels))) if set(labels) == set(range(len(labels))) else labels
