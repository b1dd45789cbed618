"""How influence spreads over a network: of one and the same batch at each participant, and hop by hop."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.engine import Network, Participants, Round, evaluate, simulate
from cascadice.engine.rounds import mix
from cascadice.influence import Evaluation, accumulate, agreement, evaluate_on, first_order, one_hop, truth
from cascadice.runs.config import Config, build, length, schedule
from cascadice.runs.recipes import paper
from cascadice.topology import describe
from cascadice_experiments.alignment import exact
from cascadice_experiments.figures.alignments import NAMES, NARROW
from cascadice_experiments.figures.results import Means, Mixing, Part, Result, joined

MODELS = {**NAMES, "resnet18": "ResNet-18", "mnist": "MNIST"}
FURTHEST = 5  # hops


@dataclass(frozen=True)
class Probe:
    """A run, after which so many batches are followed: each at every participant in turn, or the source's next ones."""

    name: str
    config: Config
    batches: int
    judged_on: int
    source: int = 0
    tested_on: int | None = None


def _probe(config: Config, quick: bool) -> Probe:
    """Quick: narrow models; ResNet-18, an eighth as wide, for eight rounds with batches of 32."""
    name, large = f"{MODELS[config.model]}, {MODELS[config.data]}", config.model == "resnet18"
    if quick and large:
        narrow = replace(config, model_options=("width=8",), batch_size=32, epochs=None, rounds=8)
        return Probe(f"{name}, width 8", narrow, 1, 16, tested_on=256)
    if quick:
        return Probe(name, replace(config, model_options=(NARROW[config.model],)), 4, 128, tested_on=1024)
    return Probe(name, config, 4, 128) if large else Probe(name, config, 16, 256)


def of_mlp(quick: bool) -> list[Probe]:
    """MLP on MNIST and CIFAR-10, one dominant participant and two subdominant ones."""
    return [_probe(paper("mlp", data, "dominant", 16), quick) for data in ("mnist", "cifar10")]


def of_resnet(quick: bool) -> list[Probe]:
    """ResNet-18 on CIFAR-10 and CIFAR-100."""
    return [_probe(paper("resnet18", data, "dominant", 16), quick) for data in ("cifar10", "cifar100")]


def of_ripples(quick: bool) -> list[Probe]:
    """ResNet-18 on a torus of 4 × 4, where most are several hops away."""
    return [_probe(paper("resnet18", "cifar10", "torus", 16), quick)]


def networks(quick: bool) -> list[Config]:
    """The network of the one-hop cascades; no run."""
    return [paper("mlp", "mnist", "dominant", 16)]


def network_of_ripples(quick: bool) -> list[Config]:
    """That of the cascade over several hops; no run."""
    return [probe.config for probe in of_ripples(quick)]


def with_and_without_server(quick: bool) -> list[Config]:
    """One that all talk to, against neighbours only; no runs."""
    return [replace(Config(), topology=name) for name in ("star", "ring", "exponential")]


def measure_servers(plan: Sequence[Config], means: Means) -> Result:
    """How many talk to the busiest, and how fast all agree."""
    matrices = {config.topology: schedule(config)(0).to_dense() for config in plan}
    rows = []
    for name, W in matrices.items():
        links, found = (W > 0).sum(1) - 1, describe(W)
        rows.append(
            {
                "network": name, "links": found.links, "busiest_links": int(links.max()),
                "median_links": int(links.median()), "spectral_gap": found.spectral_gap,
            }
        )  # fmt: skip
    findings = [
        f"{row['network']}: {row['busiest_links']} links at the busiest participant, {row['median_links']} at the "
        f"median, spectral gap {row['spectral_gap']:.3f}."
        for row in rows
    ]
    points = {name: [row[name] for row in rows] for name in rows[0]}
    return Result(points, rows, findings, {name: W.tolist() for name, W in matrices.items()})


def mixed(config: Config, mixing: Mixing | None) -> Config:
    """The run with the matrix that was given in place of its own."""
    if mixing is None:
        return config
    return replace(config, mixing=mixing.path, normalize=mixing.normalize, nodes=None)


def measure_network(plan: Sequence[Config], means: Means) -> Result:
    """What W says by itself: weights of the links, and what everybody is given by the others."""
    W = schedule(mixed(plan[0], means.mixing))(0).to_dense()
    with warnings.catch_warnings(record=True) as caught:  # a network that is not connected is still a network
        warnings.simplefilter("always")
        found = describe(W)
    rows = [
        {"participant": j, "out_weight": float(W[:, j].sum() - W[j, j]), "with_own": float(W[:, j].sum())}
        for j in range(len(W))
    ]
    order = sorted(rows, key=lambda row: -row["out_weight"])[:3]
    strongest = ", ".join(f"{row['participant']} ({row['out_weight']:.2f})" for row in order)
    k, j = W.nonzero().unbind(1)
    points = {"receiver": k.tolist(), "source": j.tolist(), "weight": W[k, j].tolist()}
    findings = [
        f"the others give most to participants {strongest}; spectral gap {found.spectral_gap:.3f}, "
        f"{'' if found.doubly_stochastic else 'not '}doubly stochastic.",
        *(str(warning.message) for warning in caught),
    ]
    return Result(points, rows, findings, {"W": W.tolist()})


def trained(probe: Probe, means: Means) -> tuple[Network, int, Participants, list[float]]:
    """The network, the next round, the participants before it, and their accuracy: mean, least and greatest."""
    # the batches of so large a model fill a device by themselves
    alone = probe.config.model == "resnet18"
    strategy = "auto" if means.device == "cpu" else "loop" if alone else "vmap"
    config = mixed(probe.config, means.mixing)
    network = build(replace(config, device=means.device, data_root=means.data_root, strategy=strategy))
    assert network.partition is not None
    rounds, last = length(config, network.partition), network.initial
    for done in simulate(network, rounds, window=1):
        last = done.after
    test = network.data.test
    held_out = test if probe.tested_on is None else test.subset(torch.arange(min(probe.tested_on, len(test))))
    accuracy = evaluate(network, last, held_out).accuracy
    return network, rounds, last, [float(accuracy.mean()), float(accuracy.min()), float(accuracy.max())]


def measure_one_hop(plan: Sequence[Probe], means: Means) -> Result:
    """The one-hop influence of identical batches, by where they are placed; a part of the result is a run."""
    parts = [means.part(probe.name, partial(_placed, probe, means)) for probe in plan]
    rows = [part["row"] for part in parts]
    findings = [
        f"{row['panel']}: of two holders of the same batch, the one with the larger weight has more influence in "
        f"{row['in_order']:.0%} of pairs (correlation of influence with weight {row['pearson_out_weight']:.3f}); "
        f"the strongest is participant {row['strongest']}, {row['strongest_to_median']:.1f} times the median (test "
        f"accuracy {row['test_accuracy'][0]:.3f})."
        for row in rows
    ]
    return Result(joined([part["points"] for part in parts]), rows, findings, {"W": parts[0]["W"]})


def _placed(probe: Probe, means: Means) -> Part:
    network, t, people, accuracy = trained(probe, means)
    yardstick = evaluate_on(network, network.data.test.subset(torch.arange(probe.judged_on)))
    W = network.mixing(t).to_dense()
    out_weight = W.sum(0)
    batches = [_batch(network, probe.config, number) for number in range(probe.batches)]
    with exact():
        found = [_influences(network, t, people, yardstick, batch) for batch in batches]
    scores, truths = (torch.stack(column) for column in zip(*found, strict=True))
    return {
        "points": _by_batch(probe.name, scores, truths, out_weight),
        "row": _placed_row(probe.name, scores, truths, out_weight, accuracy),
        "W": W.tolist(),
    }


def _batch(network: Network, config: Config, number: int) -> Int[Tensor, " batch"]:
    """One of the training data at large."""
    draw = seeds.generator(config.seed, "identical batch", number)
    return torch.randperm(len(network.data.train), generator=draw)[: config.batch_size]


def _influences(
    network: Network, t: int, people: Participants, yardstick: Evaluation, batch: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Of the batch at each participant, while all others draw their own: first order and truth, over one hop.

    Local work is done twice: with everybody's own batch, and with this one; the rounds are made of rows of the two.
    """
    usual = next(simulate(network, t + 1, start=t, participants=people))
    everywhere = replace(network, batches=lambda t: batch.expand(network.nodes, 1, -1))
    given = next(simulate(everywhere, t + 1, start=t, participants=people))
    estimate, true = [], []
    for j in range(network.nodes):
        done = _exchanged(usual, given, j)
        estimate.append(one_hop(first_order(network, [done], yardstick, [j])))
        true.append(one_hop(truth(network, [done], yardstick, [j])))
    return torch.cat(estimate), torch.cat(true)


def _exchanged(usual: Round, given: Round, j: int) -> Round:
    """The usual round, but for participant j, which drew the given one's batch."""

    def rows(one: Tensor, other: Tensor) -> Tensor:
        mixture = one.clone()
        mixture[j] = other[j]
        return mixture

    half = usual.half._replace(theta=rows(usual.half.theta, given.half.theta))
    drawn = usual.draw._replace(batch=rows(usual.draw.batch, given.draw.batch))
    return usual._replace(draw=drawn, half=half, after=mix(usual.W, half), loss=rows(usual.loss, given.loss))


def _by_batch(
    name: str, scores: Float[Tensor, "b n"], truths: Float[Tensor, "b n"], out_weight: Float[Tensor, " n"]
) -> dict[str, list[Any]]:
    batches, nodes = scores.shape
    return {
        "panel": [name] * scores.numel(),
        "batch": [b for b in range(batches) for _ in range(nodes)],
        "node": list(range(nodes)) * batches,
        "out_weight": out_weight.tolist() * batches,
        "first order": scores.flatten().tolist(),
        "truth": truths.flatten().tolist(),
    }


def _placed_row(
    name: str, scores: Float[Tensor, "b n"], truths: Float[Tensor, "b n"], out_weight: Float[Tensor, " n"],
    accuracy: list[float],
) -> dict[str, Any]:  # fmt: skip
    """A batch may help or harm; what depends on its place is how much, so sizes are compared with weights."""
    size, weight = scores.abs().mean(0), out_weight.double().round(decimals=9)  # equal sums differ in their last bits
    each = [agreement(weight, row.abs()).spearman for row in scores]
    strongest = int(size.argmax())
    return {
        "panel": name, "batches": len(scores), "in_order": in_order(weight, size),
        "rank_correlation": [agreement(weight, size).spearman, min(each), max(each)],
        "pearson_out_weight": agreement(weight, size).pearson,
        "pearson_truth": agreement(truths.flatten(), scores.flatten()).pearson,
        "strongest": strongest, "strongest_to_median": float(size[strongest] / size.quantile(0.5)),
        "test_accuracy": accuracy,
    }  # fmt: skip


def in_order(weight: Float[Tensor, " n"], size: Float[Tensor, " n"]) -> float:
    """Of all pairs with different weights, the share in which the heavier has the greater size.

    Most participants have the same weight; correlations of ranks count their order too, which nothing decides.
    """
    weights, sizes = (values[:, None] - values for values in (weight, size))
    heavier = weights > 1e-9
    return float((sizes[heavier] > 0).double().mean())


def measure_ripples(plan: Sequence[Probe], means: Means) -> Result:
    """The cascade of one participant's updates over five hops, on average, beside the weights that carried them."""
    (probe,) = plan
    found = means.part(probe.name, partial(_rippled, probe, means))
    rows = found["rows"]
    findings = [
        f"an update of participant {probe.source} changes the loss of {rows[1]['reached']} participants by "
        f"{rows[1]['influence']:+.2e} in all at one hop, of {rows[-1]['reached']} by {rows[-1]['influence']:+.2e} at "
        f"{FURTHEST}: at most {rows[1]['largest']:.2e} and {rows[-1]['largest']:.2e} for one of them (test accuracy "
        f"{found['accuracy'][0]:.3f}).",
        "receiver by receiver, its size follows the product of weights on the way: correlation "
        f"{min(row['pearson_weights'] for row in rows[1:]):.3f} to "
        f"{max(row['pearson_weights'] for row in rows[1:]):.3f} over hops 1 to {FURTHEST}.",
    ]
    return Result(found["points"], rows, findings, {"W": found["W"], "source": probe.source})


def _rippled(probe: Probe, means: Means) -> Part:
    network, t, people, accuracy = trained(probe, means)
    yardstick = evaluate_on(network, network.data.test.subset(torch.arange(probe.judged_on)))
    with exact():
        rounds = list(simulate(network, t + FURTHEST + probe.batches - 1, start=t, participants=people))
        windows = [rounds[start : start + FURTHEST] for start in range(probe.batches)]
        cascades = (first_order(network, window, yardstick, [probe.source]) for window in windows)
        value = accumulate(cascades).value[:, 0] / probe.batches
    W = network.mixing(t).to_dense()
    carried = weights_on_the_way(W, probe.source)
    hops, nodes = value.shape
    points = {
        "hop": [h for h in range(hops) for _ in range(nodes)], "node": list(range(nodes)) * hops,
        "first order": value.flatten().tolist(), "weight": carried.flatten().tolist(),
    }  # fmt: skip
    rows = [_hop_row(h, value[h], carried[h]) | {"test_accuracy": accuracy} for h in range(hops)]
    return {"points": points, "rows": rows, "W": W.tolist(), "accuracy": accuracy}


def weights_on_the_way(W: Float[Tensor, "n n"], source: int) -> Float[Tensor, "hops n"]:
    """`[h, k]`: Σ over paths of the product of weights from the source to k in h hops, (Wʰ)[k, source]."""
    here = torch.eye(len(W), dtype=W.dtype)[source]
    found = [here]
    for _ in range(FURTHEST):
        here = W @ here
        found.append(here)
    return torch.stack(found)


def _hop_row(hop: int, value: Float[Tensor, " n"], carried: Float[Tensor, " n"]) -> dict[str, Any]:
    reached = carried > 0
    pearson = agreement(carried.double(), value.abs()).pearson if int(reached.sum()) >= 2 else None
    return {
        "hop": hop, "reached": int(reached.sum()), "influence": float(value.sum()),
        "largest": float(value.abs().max()), "weights": float(carried.sum()), "largest_weight": float(carried.max()),
        "pearson_weights": pearson,
    }  # fmt: skip


def distances(W: Sequence[Sequence[float]], source: int) -> Mapping[int, int]:
    """How many hops everybody is from the source; whom it never reaches is left out."""
    import networkx as nx

    graph: Any = nx.DiGraph([(j, k) for k, row in enumerate(W) for j, weight in enumerate(row) if weight > 0])
    return dict(nx.single_source_shortest_path_length(graph, source))
