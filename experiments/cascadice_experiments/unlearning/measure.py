"""Train a fleet, forget each case by each level, and measure what is left of the data."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cascadice.applications.forget.idea import Corrected, forget, repair
from cascadice.applications.forget.removals import Removal, forgotten_samples
from cascadice.applications.forget.traces import membership_auc, sample_losses
from cascadice.data import DataSet, load
from cascadice.engine import Network, Participants, Round, by_network, evaluate, fleet, simulate
from cascadice_experiments.data_sets import first
from cascadice_experiments.study import clock
from cascadice_experiments.unlearning.baselines import baselines
from cascadice_experiments.unlearning.settings import LEVELS, REPAIRED, TRAINED, Case, Setting, cases, make_network

OFF = ("eval_loss", "membership")  # also reported as differences from the replayed models of the same seed
MEASURED = (
    "distance", "seconds", "times_replay", "eval_loss", "test_accuracy", "forgotten_loss", "membership",
    *(f"{key}_off" for key in OFF),
)  # fmt: skip


def measure(setting: Setting, kind: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """Train a fleet and forget each case by each level: yields the points of one case, a point per level and seed.

    With `kind`, only what is forgotten over all rounds, of this kind.
    """
    data = _load_once(setting.data, setting.data_root, setting.device)
    networks = [make_network(setting, data, setting.first_seed + seed) for seed in range(setting.seeds)]
    together = fleet(networks)
    rounds = list(simulate(together, setting.rounds))
    _warm_up(together, rounds)
    for case in cases(networks, rounds, setting):
        if kind is not None and (case.kind, case.span) != (kind, "long"):
            continue
        yield [{**asdict(setting), **point} for point in _points(together, case, setting)]


@cache
def _load_once(name: str, root: str | None, device: str) -> DataSet:
    """On a fast device, reading the data for each setting would take longer than training."""
    return load(name, root).to(device)


def _warm_up(network: Network, rounds: Sequence[Round]) -> None:
    """Call everything once, so that loading and compiling is not counted in a level's time."""
    for level, points in LEVELS.values():
        forget(network, rounds[-2:], Removal((0,)), level, points)
        forget(network, rounds[-2:], Removal(samples=(int(rounds[-1].draw.batch[0, 0, 0]),)), level, points)


def _points(network: Network, case: Case, setting: Setting) -> Iterator[dict[str, Any]]:
    people, seconds = _forget_by_each_level(network, case, setting)
    draws = [round_.draw for round_ in case.rounds]
    each = [replace(case.removal, nodes=(node,)) for node in case.removal.nodes]
    members = [forgotten_samples(removal, draws, network.nodes) for removal in each]
    traces = {name: _traces(network, one, members, setting.seeds) for name, one in people.items()}
    for name in people:
        target = "replay, repaired" if name.endswith(", repaired") else "replay"
        left = _distance_left(people[name], people[target], people[TRAINED], people["replay"], setting.seeds)
        for seed in range(setting.seeds):
            yield {
                "kind": case.kind, "span": case.span, "level": name, "seed": setting.first_seed + seed,
                "distance": left[seed], "seconds": seconds.get(name, float("nan")),
                "times_replay": seconds.get(name, float("nan")) / seconds["replay"],
                **traces[name][seed],
                **{f"{key}_off": traces[name][seed][key] - traces[target][seed][key] for key in OFF},
            }  # fmt: skip


def _forget_by_each_level(
    network: Network, case: Case, setting: Setting
) -> tuple[dict[str, Participants], dict[str, float]]:
    """The models by each level, as trained and repaired, and the seconds that each level took."""
    people: dict[str, Participants] = {TRAINED: case.rounds[-1].after}
    seconds: dict[str, float] = {}
    corrected: dict[str, Corrected] = {}
    for name, (level, points) in LEVELS.items():
        began = _now(network)
        corrected[name] = forget(network, case.rounds, case.removal, level, points)
        seconds[name] = _now(network) - began
        people[name] = corrected[name].participants
    as_trained = corrected["replay"]._replace(participants=people[TRAINED])
    for name, start in {TRAINED: as_trained, **{name: corrected[name] for name in REPAIRED}}.items():
        people[f"{name}, repaired"] = repair(network, start, case.removal, setting.repairs).participants
    if (case.kind, case.span) == ("participant", "long"):
        people |= baselines(network, case, setting)
    return people, seconds


def _now(network: Network) -> float:
    """Seconds; on a CPU those of this process, which other processes do not stretch."""
    return clock(network.device) if network.device.type == "cuda" else time.process_time()


def _distance_left(
    people: Participants, target: Participants, trained: Participants, replayed: Participants, count: int
) -> list[float]:
    """|θ − target| / |trained − replayed| in each network."""

    def norms(one: Participants, other: Participants) -> Tensor:
        return by_network((one.theta - other.theta).double().square().sum(1), count).sum(1).sqrt()

    left: list[float] = (norms(people, target) / norms(trained, replayed)).tolist()
    return left


def _traces(network: Network, people: Participants, members: Sequence[Tensor], count: int) -> list[dict[str, float]]:
    """Test loss and accuracy, loss of the forgotten data, and membership AUC: the mean over each network's models."""
    fresh = first(network.data.test, 1000)
    test_loss = by_network(sample_losses(network, people, fresh), count)
    member_loss = by_network(sample_losses(network, people, network.data.train.subset(torch.cat(list(members)))), count)
    accuracy = by_network(evaluate(network, people, fresh).accuracy, count)
    own = torch.split(member_loss, [len(part) for part in members], dim=2)
    return [
        {
            "eval_loss": float(test_loss[i].mean()), "test_accuracy": float(accuracy[i].mean()),
            "forgotten_loss": float(own[i][i].mean()),
            "membership": float(membership_auc(own[i][i], test_loss[i]).mean()),
        }
        for i in range(count)
    ]  # fmt: skip


def summary(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds of everything measured, for each setting, case and level."""
    keys = ("data", "activation", "lr", "rounds", "kind", "span", "level")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for point in points:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    rows = []
    for values, group in groups.items():
        means = {key: mean(group, key) for key in MEASURED}
        means |= {f"{key}_deviation": deviation(group, key) for key in MEASURED}
        finite = {key: value for key, value in means.items() if isfinite(value)}
        rows.append({**dict(zip(keys, values, strict=True)), "seeds": len(group), **finite})
    return rows


def mean(points: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of one measurement."""
    return float(np.mean([point[key] for point in points]))


def deviation(points: Sequence[Mapping[str, Any]], key: str) -> float:
    """The standard deviation of one measurement; 0 of a single point."""
    return float(np.std([point[key] for point in points], ddof=1)) if len(points) > 1 else 0.0
