"""The cascade of one participant's updates, hop by hop."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import simulate
from cascadice.influence import evaluate_on, first_order
from cascadice.influence.agreement import agreement
from cascadice.influence.readings import accumulate
from cascadice.runs.config import Config
from cascadice.runs.recipes import paper
from cascadice_experiments.alignment.measure import exact
from cascadice_experiments.data_sets import first
from cascadice_experiments.figures.figure import Context, Part, Result
from cascadice_experiments.figures.probes import Probe, probe_of, train

FURTHEST = 5  # hops


def of_ripples(quick: bool) -> list[Probe]:
    """ResNet-18 on a torus of 4 × 4, where most participants are several hops away."""
    return [probe_of(paper("resnet18", "cifar10", "torus", 16), quick)]


def network_of_ripples(quick: bool) -> list[Config]:
    """The network of the ripples, without a run."""
    return [probe.config for probe in of_ripples(quick)]


def measure_ripples(plan: Sequence[Probe], context: Context) -> Result:
    """Measure the mean cascade of one participant's updates over five hops, and the weights that carried it."""
    (probe,) = plan
    measured = context.part(probe.name, partial(_measure, probe, context))
    rows = measured["rows"]
    findings = [
        f"an update of participant {probe.source} changes the loss of {rows[1]['reached']} participants by "
        f"{rows[1]['influence']:+.2e} in all at one hop, of {rows[-1]['reached']} by {rows[-1]['influence']:+.2e} at "
        f"{FURTHEST}: at most {rows[1]['largest']:.2e} and {rows[-1]['largest']:.2e} for one of them (test accuracy "
        f"{measured['accuracy'][0]:.3f}).",
        "receiver by receiver, its absolute value follows the product of weights along the path: correlation "
        f"{min(row['pearson_weights'] for row in rows[1:]):.3f} to "
        f"{max(row['pearson_weights'] for row in rows[1:]):.3f} over hops 1 to {FURTHEST}.",
    ]
    return Result(measured["points"], rows, findings, {"W": measured["W"], "source": probe.source})


def _measure(probe: Probe, context: Context) -> Part:
    network, t, people, accuracy = train(probe, context)
    evaluation = evaluate_on(network, first(network.data.test, probe.judged_on))
    with exact():
        rounds = list(simulate(network, t + FURTHEST + probe.batches - 1, start=t, participants=people))
        windows = [rounds[start : start + FURTHEST] for start in range(probe.batches)]
        cascades = (first_order(network, window, evaluation, [probe.source]) for window in windows)
        value = accumulate(cascades).value[:, 0] / probe.batches
    W = network.mixing(t).to_dense()
    carried = path_weights(W, probe.source)
    hops, nodes = value.shape
    points = {
        "hop": [h for h in range(hops) for _ in range(nodes)], "node": list(range(nodes)) * hops,
        "first order": value.flatten().tolist(), "weight": carried.flatten().tolist(),
    }  # fmt: skip
    rows = [_hop_row(h, value[h], carried[h]) | {"test_accuracy": accuracy} for h in range(hops)]
    return {"points": points, "rows": rows, "W": W.tolist(), "accuracy": accuracy}


def path_weights(W: Float[Tensor, "n n"], source: int) -> Float[Tensor, "hops n"]:
    """`[h, k]`: Σ over paths of the product of weights from the source to k in h hops, (Wʰ)[k, source]."""
    here = torch.eye(len(W), dtype=W.dtype)[source]
    weights = [here]
    for _ in range(FURTHEST):
        here = W @ here
        weights.append(here)
    return torch.stack(weights)


def _hop_row(hop: int, value: Float[Tensor, " n"], carried: Float[Tensor, " n"]) -> dict[str, Any]:
    reached = carried > 0
    pearson = agreement(carried.double(), value.abs()).pearson if int(reached.sum()) >= 2 else None
    return {
        "hop": hop, "reached": int(reached.sum()), "influence": float(value.sum()),
        "largest": float(value.abs().max()), "weights": float(carried.sum()), "largest_weight": float(carried.max()),
        "pearson_weights": pearson,
    }  # fmt: skip
