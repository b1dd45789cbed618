"""Train a network and compare estimates of influence with the truth on the way."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Metrics, Network, Round, evaluate, simulate
from cascadice.influence import Evaluation, evaluate_on, first_order, path_integrated, truth
from cascadice.influence.agreement import agreement
from cascadice.influence.cascade import Cascade
from cascadice.runs.config import build, length
from cascadice_experiments.alignment.settings import Setting, check, config_of
from cascadice_experiments.data_sets import first

Estimator = Callable[[Network, Sequence[Round], Evaluation], Cascade]
TRUTH, FIRST_ORDER = "truth", "first order"
ESTIMATORS: Mapping[str, Estimator] = {
    TRUTH: truth,
    FIRST_ORDER: first_order,
    "path-integrated, 1 point": partial(path_integrated, points=1),
    "path-integrated, 2 points": partial(path_integrated, points=2),
    "path-integrated, 3 points": partial(path_integrated, points=3),
}


def measure(setting: Setting, source: str, root: str | None) -> dict[str, Any]:
    """Train the setting's network on the data set `source` and compare all estimates with the truth.

    Returns:
        The setting, the number of points, the test accuracy, and `results`: an entry per number of hops.
    """
    start = time.perf_counter()
    config = config_of(setting, source, root)
    network = build(config)
    assert network.partition is not None
    rounds = length(config, network.partition)
    check(setting, rounds)
    points = follow(network, setting.hops, range(setting.every - 1, rounds, setting.every), [rounds - 1])
    return {
        **asdict(setting), "data": source, "batch_size": config.batch_size, "rounds": rounds,
        "points": len(points.node), "test_accuracy": float(points.metrics[rounds - 1].accuracy.mean()),
        "results": agreements(points.value), "seconds": time.perf_counter() - start,
    }  # fmt: skip


class Points(NamedTuple):
    """One point per scored update: its round, its participant, and `value[estimator][hops − 1, point]`.

    `metrics[t]` holds everyone's test loss and accuracy after round t.
    """

    round: Tensor
    node: Tensor
    value: Mapping[str, Tensor]
    metrics: Mapping[int, Metrics]


def follow(
    network: Network, hops: int, scored: Collection[int], stops: Collection[int],
    estimators: Mapping[str, Estimator] = ESTIMATORS, judged_on: int = 256, tested_on: int | None = None,
) -> Points:  # fmt: skip
    """Train a network, and measure the influence of everyone's update by each estimator.

    Args:
        network: What to train, up to the last of `stops`.
        hops: The greatest number of hops; smaller numbers are measured too.
        scored: Rounds at whose end influence is measured; the update was made `hops` rounds before that end.
        stops: Rounds after which loss and accuracy are measured.
        estimators: The truth and what to compare with it.
        judged_on: Influence is on the loss of this many test samples, the first ones.
        tested_on: Accuracy is on this many test samples, or on all.
    """
    evaluation = evaluate_on(network, first(network.data.test, judged_on))
    held_out = first(network.data.test, tested_on)
    scores: list[dict[str, Tensor]] = []
    made, metrics = [], {}
    # replayed rounds must match those that were trained; one hop needs no replay
    with exact() if hops > 1 else nullcontext():
        for window in _windows(simulate(network, max(stops) + 1), hops):
            if (t := window[-1].t) in scored:
                scores.append(influences(network, window, evaluation, estimators))
                made.append(window[0].t)
            if t in stops:
                metrics[t] = evaluate(network, window[-1].after, held_out)
    value = {name: torch.cat([score[name] for score in scores], dim=1) for name in estimators}
    nodes = torch.arange(network.nodes).repeat(len(made))
    return Points(torch.tensor(made).repeat_interleave(network.nodes), nodes, value, metrics)


def exact() -> Any:
    """A context without TF32, which torch allows in convolutions: it rounds away the small differences of influence."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def _windows(rounds: Iterator[Round], size: int) -> Iterator[list[Round]]:
    """Each run of `size` consecutive rounds."""
    window: deque[Round] = deque(maxlen=size)
    for round_ in rounds:
        window.append(round_)
        if len(window) == size:
            yield list(window)


def influences(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, estimators: Mapping[str, Estimator] = ESTIMATORS
) -> dict[str, Tensor]:
    """The influence of each update in the first round by each estimator, `[hops, sources]`: summed up to each hop."""
    with exact():
        cascades = {name: estimate(network, rounds, evaluation).value for name, estimate in estimators.items()}
    return {name: value.sum(2).cumsum(0)[1:] for name, value in cascades.items()}


def agreements(values: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """How each estimate agrees with the truth, an entry per number of hops."""
    estimates = {name: value for name, value in values.items() if name != TRUTH}
    return [
        {"hops": hops, **{name: agreement(true, value[hops - 1])._asdict() for name, value in estimates.items()}}
        for hops, true in enumerate(values[TRUTH], start=1)
    ]
