"""Networks without training: who talks to whom, and what the mixing matrix says by itself."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cascadice.runs.config import Config, schedule
from cascadice.runs.recipes import paper
from cascadice.topology import describe
from cascadice_experiments.figures.figure import Context, Mixing, Result


def dominant_network(quick: bool) -> list[Config]:
    """The network of the one-hop cascades."""
    return [paper("mlp", "mnist", "dominant", 16)]


def with_and_without_server(quick: bool) -> list[Config]:
    """A star, in which one participant talks to all, against a ring and an exponential graph."""
    return [replace(Config(), topology=name) for name in ("star", "ring", "exponential")]


def measure_servers(plan: Sequence[Config], context: Context) -> Result:
    """Count the links of the busiest participant, and measure how fast all agree (the spectral gap)."""
    matrices = {config.topology: schedule(config)(0).to_dense() for config in plan}
    rows = []
    for name, W in matrices.items():
        links, description = (W > 0).sum(1) - 1, describe(W)
        rows.append(
            {
                "network": name, "links": description.links, "busiest_links": int(links.max()),
                "median_links": int(links.median()), "spectral_gap": description.spectral_gap,
            }
        )  # fmt: skip
    findings = [
        f"{row['network']}: {row['busiest_links']} links at the busiest participant, {row['median_links']} at the "
        f"median, spectral gap {row['spectral_gap']:.3f}."
        for row in rows
    ]
    points = {name: [row[name] for row in rows] for name in rows[0]}
    return Result(points, rows, findings, {name: W.tolist() for name, W in matrices.items()})


def with_mixing(config: Config, mixing: Mixing | None) -> Config:
    """The run with the matrix from `--mixing`, if there is one, instead of its own."""
    if mixing is None:
        return config
    return replace(config, mixing=mixing.path, normalize=mixing.normalize, nodes=None)


def measure_network(plan: Sequence[Config], context: Context) -> Result:
    """Describe W: the weight of each link, and the total weight that others give each participant."""
    W = schedule(with_mixing(plan[0], context.mixing))(0).to_dense()
    with warnings.catch_warnings(record=True) as caught:  # a network that is not connected can be drawn too
        warnings.simplefilter("always")
        description = describe(W)
    rows = [
        {"participant": j, "out_weight": float(W[:, j].sum() - W[j, j]), "with_own": float(W[:, j].sum())}
        for j in range(len(W))
    ]
    order = sorted(rows, key=lambda row: -row["out_weight"])[:3]
    strongest = ", ".join(f"{row['participant']} ({row['out_weight']:.2f})" for row in order)
    k, j = W.nonzero().unbind(1)
    points = {"receiver": k.tolist(), "source": j.tolist(), "weight": W[k, j].tolist()}
    findings = [
        f"the others give most weight to participants {strongest}; spectral gap {description.spectral_gap:.3f}, "
        f"{'' if description.doubly_stochastic else 'not '}doubly stochastic.",
        *(str(warning.message) for warning in caught),
    ]
    return Result(points, rows, findings, {"W": W.tolist()})


def distances(W: Sequence[Sequence[float]], source: int) -> Mapping[int, int]:
    """How many hops each participant is from the source; those it never reaches are left out."""
    import networkx as nx

    graph: Any = nx.DiGraph([(j, k) for k, row in enumerate(W) for j, weight in enumerate(row) if weight > 0])
    return dict(nx.single_source_shortest_path_length(graph, source))
