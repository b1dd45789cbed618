"""Topologies by name, for `network(mixing=…)`, the command line and recipes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import networkx as nx
from torch import Tensor

from cascadice.names import lookup
from cascadice.topology import graphs, schedules
from cascadice.topology.finite import base
from cascadice.topology.graphs import Graph, check_nodes
from cascadice.topology.matrices import matrix
from cascadice.topology.weights import dominant, from_graph, metropolis, uniform


@dataclass(frozen=True)
class Topology:
    """A named topology: `make(nodes, **options)` returns a graph, which still needs weights, a W, or a schedule."""

    description: str
    make: Callable[..., Graph | Tensor | schedules.Schedule]

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that `build` accepts for this topology."""
        return tuple(name for name in signature(self.make).parameters if name not in ("nodes", "seed"))


@dataclass(frozen=True)
class Weighting:
    """A named function from a graph to W."""

    description: str
    make: Callable[[Graph], Tensor]


def build(name: str, nodes: int, *, weights: str = "uniform", seed: int = 0, **options: Any) -> schedules.Schedule:
    """Make the schedule of a named topology.

    Args:
        name: One of TOPOLOGIES.
        nodes: How many participants.
        weights: One of WEIGHTS, for topologies that are graphs.
        seed: Seed of random topologies.
        **options: Keyword arguments of the topology, e.g. `degree`.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If a name or option is unknown, or does not suit the number of participants.

    Example:
        >>> schedule = build("small-world", 16, weights="metropolis", degree=6)
        >>> schedule(0).shape
        torch.Size([16, 16])
    """
    topology, weighting = lookup(TOPOLOGIES, name, "topology"), lookup(WEIGHTS, weights, "weights")
    check_nodes(nodes)
    if unknown := sorted(set(options) - set(topology.options)):
        accepted = ", ".join(topology.options) or "none"
        raise ValueError(f"topology {name!r} has no option {unknown[0]!r}. Accepted: {accepted}.")
    if "seed" in signature(topology.make).parameters:
        options["seed"] = seed
    made = topology.make(nodes, **options)
    if isinstance(made, nx.Graph):
        return schedules.constant(weighting.make(made))
    if weights != "uniform":
        raise ValueError(f"topology {name!r} has its own weights; leave out weights={weights!r}.")
    return schedules.constant(made) if isinstance(made, Tensor) else made


def resolve(mixing: Any, nodes: int | None = None, seed: int = 0) -> tuple[schedules.Schedule, int]:
    """Make a schedule from anything that `network(mixing=…)` accepts.

    Args:
        mixing: A topology's name, a networkx graph, a mixing matrix, or a schedule t -> W.
        nodes: The number of participants; needed for a name.
        seed: Seed of random topologies.

    Returns:
        The schedule, and its number of participants.

    Raises:
        ValueError: If W is not a mixing matrix, or the number of participants is missing or another.

    Example:
        >>> resolve([[0.5, 0.5], [0.5, 0.5]])[1]
        2
    """
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int)):
        raise TypeError(f"nodes must be a whole number; found {nodes!r}.")
    if isinstance(mixing, str):
        if nodes is None:
            raise ValueError(f"topology {mixing!r} needs a number of participants: give nodes=.")
        return build(mixing, nodes, seed=seed), nodes
    if isinstance(mixing, nx.Graph):
        weighted = nx.get_edge_attributes(mixing, "weight")
        mixing = from_graph(mixing) if weighted else uniform(mixing)
    if not callable(mixing):
        mixing = schedules.constant(matrix(mixing))
    schedule = mixing if isinstance(mixing, schedules.Cycle) else schedules.Checked(mixing)
    size = schedule(0).shape[0]
    if nodes not in (None, size):
        raise ValueError(
            f"the mixing matrix has {size} participants, nodes is {nodes}. Leave nodes out, or change one."
        )
    return schedule, size


def _pairwise_gossip(nodes: int, *, graph: str = "complete", seed: int = 0) -> schedules.Schedule:
    if graph == "complete":
        return schedules.pairwise_gossip(nodes, seed=seed)
    make = lookup(TOPOLOGIES, graph, "topology").make
    made = make(nodes, seed=seed) if "seed" in signature(make).parameters else make(nodes)
    if not isinstance(made, nx.Graph):
        raise ValueError(f"pairwise gossip needs a fixed graph; {graph!r} is not one. Use e.g. graph='ring'.")
    return schedules.pairwise_gossip(made, seed=seed)


WEIGHTS: Mapping[str, Weighting] = {
    "uniform": Weighting("equal weights for oneself and one's in-neighbours (row-stochastic)", uniform),
    "metropolis": Weighting("Metropolis–Hastings, undirected graphs only (doubly stochastic)", metropolis),
}

TOPOLOGIES: Mapping[str, Topology] = {
    "alone": Topology("no links: everyone trains alone", graphs.alone),
    "ring": Topology("exchange with the one before and the one after", graphs.ring),
    "exponential": Topology("k receives from k + 1, k + 2, k + 4, …", graphs.exponential),
    "one-peer-exponential": Topology(
        "k averages with k + 1, then k + 2, then k + 4, …: one peer per round", schedules.one_peer_exponential
    ),
    "base": Topology("base-(k+1): exact consensus in finitely many rounds of at most max_degree peers", base),
    "complete": Topology("everyone with everyone (uniform weights: FedAvg)", graphs.complete),
    "star": Topology("everyone with participant 0", graphs.star),
    "torus": Topology("a square grid with wrap-around borders, four neighbours each", graphs.torus),
    "random-regular": Topology("a connected random graph of equal degrees", graphs.random_regular),
    "erdos-renyi": Topology("a connected random graph, each pair linked with a probability", graphs.erdos_renyi),
    "small-world": Topology("a ring of near neighbours with random shortcuts", graphs.small_world),
    "dominant": Topology("one dominant participant, two subdominant ones, the rest ordinary", dominant),
    "pairwise-gossip": Topology("each round, one random pair averages", _pairwise_gossip),
    "epidemic": Topology("each round, a fresh random regular graph", schedules.epidemic),
    "matching": Topology("each round, everyone averages with one random partner", schedules.random_matching),
}
