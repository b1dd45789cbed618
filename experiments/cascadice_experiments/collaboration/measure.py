"""Train every rule on the same networks and compare their accuracies."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from cascadice.applications.choose.groups import find_groups
from cascadice.data import DataSet
from cascadice.data.batches import rounds_per_epoch
from cascadice.engine import Network, Participants, blocks, by_network, evaluate, fleet, simulate
from cascadice.engine.exchange.cosine_trust import TrustRule, cosine_trust
from cascadice.engine.exchange.geometry import neighbours
from cascadice.influence.trust import proximal_trust
from cascadice_experiments.collaboration.rules import rules_of, side_by_side, with_mimicry, with_noise
from cascadice_experiments.collaboration.settings import GROUPS, MIMIC, Setting, make_network, strangers
from cascadice_experiments.study import clock

SMALLEST_GAP = 0.01  # between uniform mixing and the oracle; a share of a smaller gap is noise


def measure(
    setting: Setting, dataset: DataSet, numbers: Sequence[int], hidden: Sequence[int] | None = None, every: int = 0
) -> dict[str, Any]:
    """Train every rule on the networks with these seeds, side by side.

    `numbers` are their seeds, `hidden` the widths of the MLP's hidden layers, if not the model's own, and `every` the
    rounds between the sweeps of whole-run trust; 0 leaves it out.

    Returns the setting, accuracies by rule and seed, which links the trust rules kept, and how well the groups they
    find agree with the planted ones.
    """
    start = time.perf_counter()
    networks = [make_network(setting, dataset, seed, hidden) for seed in numbers]
    offsets = range(0, len(numbers) * setting.nodes, setting.nodes)
    bad = [by + k for by, seed in zip(offsets, numbers, strict=True) for k in strangers(setting, seed)]
    rules = rules_of(setting, fleet(networks), bad, every)
    size = len(numbers) * setting.nodes
    everything = fleet(networks * len(rules))
    rule = side_by_side(list(rules.values()), size)
    if setting.attack == "noise":
        rule = with_noise(rule, [i * size + k for i in range(len(rules)) for k in bad], numbers[0])
    if setting.attack == MIMIC:
        rule = with_mimicry(rule, [i * size + k for i in range(len(rules)) for k in bad])
    assert networks[0].partition is not None
    rounds = round(setting.epochs * rounds_per_epoch(networks[0].partition, setting.batch_size))
    for round_ in simulate(everything, rounds, rule=rule):
        last = round_.after
    odd = torch.zeros(size, dtype=torch.bool).index_fill_(0, torch.tensor(bad, dtype=torch.int64), True)
    accuracy = _accuracies(setting, everything, last, odd.repeat(len(rules)), len(rules) * len(numbers))
    aware = {name: one for name, one in rules.items() if isinstance(one, TrustRule)}
    return {
        **asdict(setting), "data": dataset.name, "parameters": networks[0].learner.size, "rounds": rounds,
        "seeds": list(numbers), "accuracy": dict(zip(rules, accuracy.view(len(rules), -1).tolist(), strict=True)),
        "links": {name: _links(one, round_.W[:size, :size], odd, setting) for name, one in aware.items()},
        "rand_index": _rand_indices(aware, odd, len(numbers)) if setting.attack == GROUPS else {},
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _accuracies(setting: Setting, network: Network, last: Participants, odd: Tensor, count: int) -> Tensor:
    """Each network's mean accuracy: of honest participants; with two groups, of everyone on its own labels."""
    accuracy = evaluate(network, last).accuracy.double().cpu()
    if setting.attack != GROUPS:
        honest = (~odd).double()
        return by_network(accuracy * honest, count).sum(1) / by_network(honest, count).sum(1)
    test = network.data.test
    mirrored = evaluate(network, last, replace(test, y=len(network.data.classes) - 1 - test.y)).accuracy
    return by_network(torch.where(odd, mirrored.double().cpu(), accuracy), count).mean(1)


def _links(rule: TrustRule, W: Tensor, odd: Tensor, setting: Setting) -> dict[str, float]:
    """The share of wrong links kept in the end and of right ones dropped, among the receivers that count."""
    heard, trusted = neighbours(W), rule.trust.trusted
    wrong = odd[:, None] != odd[None] if setting.attack == GROUPS else odd[None].expand_as(heard)
    counted = heard if setting.attack == GROUPS else heard & ~odd[:, None]
    parts = {"wrong kept": (counted & wrong, trusted), "right dropped": (counted & ~wrong, ~trusted)}
    return {name: float((among & which).sum() / among.sum().clamp(min=1)) for name, (among, which) in parts.items()}


def _rand_indices(aware: Mapping[str, TrustRule], odd: Tensor, count: int) -> dict[str, list[float]]:
    """Adjusted Rand index of the groups that each network's influence shows against the planted ones."""
    planted = by_network(odd.long(), count)
    return {
        name: [
            float(adjusted_rand_score(truth, find_groups(given)))
            for given, truth in zip(blocks(rule.given, count), planted, strict=True)
        ]
        for name, rule in aware.items()
    }


def costs(setting: Setting, dataset: DataSet, rounds: int = 30) -> dict[str, float]:
    """The extra time of each trust rule, as a fraction of a training round."""
    seconds = {}
    for name, make in (("", lambda network: None), ("cosine trust", cosine_trust), ("proximal trust", proximal_trust)):
        network = make_network(setting, dataset, 0)
        for round_ in simulate(network, rounds, rule=make(network), window=0):
            if round_.t == rounds // 3:
                began = clock(network.device)
        seconds[name] = clock(network.device) - began
    return {name: value / seconds[""] - 1 for name, value in seconds.items() if name}


def summary(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per rule: mean and spread over seeds, and which share of the gap from uniform to the oracle it closed."""
    accuracy = {name: torch.tensor(values, dtype=torch.float64) for name, values in result["accuracy"].items()}
    low, high = accuracy["uniform"].mean(), accuracy["oracle"].mean()
    return [
        {
            "rule": name,
            "accuracy": float(values.mean()),
            "spread": float(values.std()) if len(values) > 1 else 0.0,
            "closed": float((values.mean() - low) / (high - low)) if float(high - low) >= SMALLEST_GAP else None,
        }
        for name, values in accuracy.items()
    ]
