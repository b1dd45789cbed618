"""What a network of 100 to a million participants would send, and how long a round would take.

Bytes are exact: messages of `engine.exchange.messages`, one participant a process, float32. Seconds are

    rounds of messages × (latency + degree × (message + bytes × (byte + 8 / bandwidth)))

with what a message and a byte cost on this machine (`benchmarks/scale_links.py`) and links as assumed in LINKS. Nothing
is taken to overlap. Local computation is left out: it does not depend on the number of participants. Bandwidth is
checked by `benchmarks/scale_rates.py`, the rest by `benchmarks/scale_simulation.py`, with 10,000 participants.
"""

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from cascadice.engine.exchange import frames

NODES = (10**2, 10**3, 10**4, 10**5, 10**6)
MODELS = {"0.1M": 100_000, "10M": 10_000_000, "124M": 124_000_000}  # parameters
LINKS = {"10 Mbit/s": 10e6, "100 Mbit/s": 100e6, "1 Gbit/s": 1e9}  # bits a second, each way at once
LATENCY = 0.05  # seconds
DEGREE = 8  # of a random regular graph
AGREED = 0.01  # of the first disagreement is left
REACHED = 0.99  # of the participants


class Cost(NamedTuple):
    """Seconds that an exchange takes on the loopback interface, for each neighbour."""

    message: float = 1.0e-3
    byte: float = 7.1e-9


class Graph(NamedTuple):
    """A graph for n participants.

    Attributes:
        degree: Whom everybody hears, and is heard by.
        factor: What is left of the disagreement after a round, in the long run.
        hops: Rounds until an update has reached 99 % of the participants.
    """

    degree: int
    factor: float
    hops: int


def exponential(nodes: int) -> Graph:
    """Everybody hears k + 1, k + 2, k + 4 …; the factor is that of Ying et al. 2021, for even n."""
    degree = (nodes - 1).bit_length()
    return Graph(degree, 1 - 2 / (degree + 1), binary_hops(nodes))


def binary_hops(nodes: int) -> int:
    """The hops to 99 % of the distances below n: as many as a distance has binary ones, at most."""
    ones = torch.zeros(nodes, dtype=torch.int64)
    for bit in range((nodes - 1).bit_length()):
        ones += torch.arange(nodes) >> bit & 1
    within = ones.bincount().cumsum(0)
    return int((within >= REACHED * nodes).nonzero()[0])


def regular(nodes: int, degree: int = DEGREE) -> Graph:
    """A random regular graph with uniform weights: λ₂ ≈ (2√(δ−1) + 1) / (δ+1) (Friedman 2008), and tree-like balls."""
    factor = (2 * math.sqrt(degree - 1) + 1) / (degree + 1)
    hops = next(hop for hop in range(1, nodes) if within(nodes, hop, degree) >= REACHED)
    return Graph(degree, factor, hops)


def within(nodes: int, hops: int, degree: int = DEGREE) -> float:
    """The part of the participants within some hops in a random regular graph: a tree that meets itself by chance."""
    return 1 - math.exp(-(1 + degree * ((degree - 1) ** hops - 1) / (degree - 2)) / nodes)


GRAPHS = {"exponential": exponential, "random": regular}


def message(parameters: int) -> int:
    """The bytes of one participant's message."""
    return frames.size(1, parameters, torch.float32)


def rounds_to_agree(factor: float) -> int:
    """Rounds of gossip until 1 % of the disagreement is left."""
    return math.ceil(math.log(AGREED) / math.log(factor))


def seconds(degree: int, parameters: int, bandwidth: float, cost: Cost, messages: int = 1) -> float:
    """The time of so many messages along every edge, one after the other."""
    size = message(parameters)
    return messages * (LATENCY + degree * (cost.message + size * (cost.byte + 8 / bandwidth)))


def per_edge() -> list[list[str]]:
    """Messages, and bytes for each model, along every edge of W."""
    modes = {
        "a round of training": 1,
        "the same, with updates beside models (proximal influence)": 2,
        "λ, a hop of reverse gossip": 1,
        "whole-run influence, a round, from a recording": 1,
        "whole-run influence, a round, replayed in memory": 2,
        "whole-run influence, a round, replayed from √T checkpoints": 3,
    }
    sizes = [message(parameters) for parameters in MODELS.values()]
    return [
        ["along an edge", "messages", *MODELS],
        *([mode, str(count), *(f"{count * size:,}" for size in sizes)] for mode, count in modes.items()),
    ]


def networks() -> list[list[str]]:
    """Edges, mixing, reach and all traffic of a round, for every graph and number of participants."""
    rows = [["participants", "graph", "degree", "edges", "rounds to 1 %", "hops to 99 %", *MODELS]]
    for nodes in NODES:
        for name, graph in ((name, make(nodes)) for name, make in GRAPHS.items()):
            edges = nodes * graph.degree
            facts = [graph.degree, f"{edges:,}", rounds_to_agree(graph.factor), graph.hops]
            rows.append([f"{nodes:,}", name, *map(str, facts), *(amount(edges * message(d)) for d in MODELS.values())])
    return rows


def times(cost: Cost) -> list[list[str]]:
    """Seconds that a round of training spends on messages; only the degree depends on the number of participants."""
    rows = [["degree", "parameters", "each way", *LINKS]]
    for degree in sorted({DEGREE, *(exponential(nodes).degree for nodes in NODES)}):
        for name, d in MODELS.items():
            spent = (duration(seconds(degree, d, bandwidth, cost)) for bandwidth in LINKS.values())
            rows.append([str(degree), name, amount(degree * message(d)), *spent])
    return rows


def influence(cost: Cost, link: str = "100 Mbit/s") -> list[list[str]]:
    """Reverse gossip from one round until its updates have reached 99 %: what a participant sends, and its time."""
    rows = [
        [
            "participants",
            "graph",
            "hops",
            *(f"{name}, sent" for name in MODELS),
            *(f"{name}, {link}" for name in MODELS),
        ]
    ]
    for nodes in NODES:
        for name, graph in ((name, make(nodes)) for name, make in GRAPHS.items()):
            sent = (amount(graph.hops * graph.degree * message(d)) for d in MODELS.values())
            spent = (duration(seconds(graph.degree, d, LINKS[link], cost, graph.hops)) for d in MODELS.values())
            rows.append([f"{nodes:,}", name, str(graph.hops), *sent, *spent])
    return rows


def amount(size: float) -> str:
    """Bytes, in words."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def duration(value: float) -> str:
    """Seconds, in words."""
    return f"{value:.2g} s" if value < 100 else f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def show(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n")
    head, *body = rows
    for row in (head, ["---"] * len(head), *body):
        print("|", " | ".join(row), "|")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "seconds a message and seconds a byte, as benchmarks/scale_links.py prints them"
    parser.add_argument("--cost", nargs=2, type=float, default=tuple(Cost()), metavar=("MESSAGE", "BYTE"), help=text)
    cost = Cost(*parser.parse_args().cost)
    show("Bytes along an edge", per_edge())
    show("The whole network, a round of training", networks())
    show("A round of training: bytes and time of a participant's messages", times(cost))
    show(
        "Influence of one round on 99 % of the participants, by reverse gossip: a participant's messages",
        influence(cost),
    )


if __name__ == "__main__":
    main()
