"""Who gossips with whom: graphs, their weights, mixing matrices `W[k, j]`, and schedules that change W over rounds."""

from cascadice.topology.description import Description, describe, describe_schedule, period
from cascadice.topology.failures import Presence, absences, link_loss, presence
from cascadice.topology.finite import base
from cascadice.topology.graphs import (
    alone,
    complete,
    erdos_renyi,
    exponential,
    random_regular,
    ring,
    small_world,
    star,
    torus,
)
from cascadice.topology.matrices import (
    SPARSE_FROM,
    Links,
    check,
    from_links,
    identity,
    links,
    matrix,
    read_csv,
    to_graph,
    write_csv,
)
from cascadice.topology.mixing import gossip, gossip_transposed
from cascadice.topology.registry import TOPOLOGIES, WEIGHTS, Topology, Weighting, build, resolve
from cascadice.topology.schedules import (
    Cycle,
    Schedule,
    average,
    constant,
    cyclic,
    epidemic,
    one_peer_exponential,
    pairwise_gossip,
    random_matching,
)
from cascadice.topology.weights import dominant, from_graph, metropolis, uniform

__all__ = [
    "SPARSE_FROM", "TOPOLOGIES", "WEIGHTS", "Cycle", "Description", "Links", "Presence", "Schedule", "Topology",
    "Weighting", "absences", "alone", "average", "base", "build", "check", "complete", "constant", "cyclic", "describe",
    "describe_schedule", "dominant", "epidemic", "erdos_renyi", "exponential", "from_graph", "from_links", "gossip",
    "gossip_transposed", "identity", "link_loss", "links", "matrix", "metropolis", "one_peer_exponential",
    "pairwise_gossip", "period", "presence", "random_matching", "random_regular", "read_csv", "resolve", "ring",
    "small_world", "star", "to_graph", "torus", "uniform", "write_csv",
]  # fmt: skip
