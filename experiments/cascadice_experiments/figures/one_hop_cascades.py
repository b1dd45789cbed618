"""The one-hop influence of one and the same batch, held by each participant in turn."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.engine import Network, Participants, Round, mix, simulate
from cascadice.influence import Evaluation, evaluate_on, first_order, truth
from cascadice.influence.agreement import agreement
from cascadice.influence.readings import one_hop
from cascadice.runs.config import Config
from cascadice.runs.recipes import paper
from cascadice_experiments.alignment.measure import exact
from cascadice_experiments.data_sets import first
from cascadice_experiments.figures.figure import Context, Part, Result, stack
from cascadice_experiments.figures.probes import Probe, probe_of, train


def of_mlp(quick: bool) -> list[Probe]:
    """MLP on MNIST and CIFAR-10; one participant dominates, two are subdominant."""
    return [probe_of(paper("mlp", data, "dominant", 16), quick) for data in ("mnist", "cifar10")]


def of_resnet(quick: bool) -> list[Probe]:
    """ResNet-18 on CIFAR-10 and CIFAR-100."""
    return [probe_of(paper("resnet18", data, "dominant", 16), quick) for data in ("cifar10", "cifar100")]


def measure_one_hop(plan: Sequence[Probe], context: Context) -> Result:
    """Measure the one-hop influence of identical batches by their holder; each run is a part of the measurement."""
    parts = [context.part(probe.name, partial(_measure, probe, context)) for probe in plan]
    rows = [part["row"] for part in parts]
    findings = [
        f"{row['panel']}: of two holders of the same batch, the one with the larger weight has more influence in "
        f"{row['in_order']:.0%} of pairs (correlation of influence with weight {row['pearson_out_weight']:.3f}); "
        f"the strongest is participant {row['strongest']}, {row['strongest_to_median']:.1f} times the median (test "
        f"accuracy {row['test_accuracy'][0]:.3f})."
        for row in rows
    ]
    return Result(stack([part["points"] for part in parts]), rows, findings, {"W": parts[0]["W"]})


def _measure(probe: Probe, context: Context) -> Part:
    network, t, people, accuracy = train(probe, context)
    evaluation = evaluate_on(network, first(network.data.test, probe.judged_on))
    W = network.mixing(t).to_dense()
    batches = [_batch(network, probe.config, number) for number in range(probe.batches)]
    with exact():
        influences = [_influences(network, t, people, evaluation, batch) for batch in batches]
    scores, truths = (torch.stack(column) for column in zip(*influences, strict=True))
    return {
        "points": _points(probe.name, scores, truths, W.sum(0)),
        "row": _row(probe.name, scores, truths, W.sum(0), accuracy),
        "W": W.tolist(),
    }


def _batch(network: Network, config: Config, number: int) -> Int[Tensor, " batch"]:
    """A batch of all training data."""
    generator = seeds.generator(config.seed, "identical batch", number)
    return torch.randperm(len(network.data.train), generator=generator)[: config.batch_size]


def _influences(
    network: Network, t: int, people: Participants, evaluation: Evaluation, batch: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """The influence of the batch at each participant, while the others draw their own: first order and truth.

    Local work is done twice, with everyone's own batch and with this one; each round takes its rows from the two.
    """
    usual = next(simulate(network, t + 1, start=t, participants=people))
    everywhere = replace(network, batches=lambda t: batch.expand(network.nodes, 1, -1))
    given = next(simulate(everywhere, t + 1, start=t, participants=people))
    estimate, true = [], []
    for j in range(network.nodes):
        round_ = _exchanged(usual, given, j)
        estimate.append(one_hop(first_order(network, [round_], evaluation, [j])))
        true.append(one_hop(truth(network, [round_], evaluation, [j])))
    return torch.cat(estimate), torch.cat(true)


def _exchanged(usual: Round, given: Round, j: int) -> Round:
    """The usual round, in which participant j draws the given round's batch."""

    def rows(one: Tensor, other: Tensor) -> Tensor:
        mixture = one.clone()
        mixture[j] = other[j]
        return mixture

    half = usual.half._replace(theta=rows(usual.half.theta, given.half.theta))
    draw = usual.draw._replace(batch=rows(usual.draw.batch, given.draw.batch))
    return usual._replace(draw=draw, half=half, after=mix(usual.W, half), loss=rows(usual.loss, given.loss))


def _points(
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


def _row(
    name: str, scores: Float[Tensor, "b n"], truths: Float[Tensor, "b n"], out_weight: Float[Tensor, " n"],
    accuracy: list[float],
) -> dict[str, Any]:  # fmt: skip
    """A batch may help or harm; its place decides how much, so absolute values are compared with weights."""
    # sums that should be equal differ in their last bits
    size, weight = scores.abs().mean(0), out_weight.double().round(decimals=9)
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

    Most participants have equal weights; rank correlations would count their order too, which is arbitrary.
    """
    weights, sizes = (values[:, None] - values for values in (weight, size))
    heavier = weights > 1e-9
    return float((sizes[heavier] > 0).double().mean())
