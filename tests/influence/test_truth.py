"""Ground truth is what training again without the update gives, entry by entry, whatever the network does."""

from dataclasses import replace

import pytest
import torch
from engine import cases as engine_cases
from influence.cases import CLOSE, NODES, directed, small, smooth, window
from oracles import losses, retrained
from torch import nn

from cascadice import optimizers, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, simulate
from cascadice.influence import cascade, evaluate_on, truth

HOPS = 3
NETWORKS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "nesterov": {"optimizer": "nesterov"},
    "adam": {"optimizer": "adam", "lr": 0.05},
    "adamw": {"optimizer": "adamw", "lr": 0.05},
    "clip": {"optimizer": optimizers.clip(optimizers.momentum(weight_decay=0.01), 0.3)},
    "local steps": {"optimizer": "momentum", "local_steps": 3},
    "labels permuted": {"corruptions": [Corruption("permute-labels", (0, 2))]},
    "features noised": {"corruptions": [Corruption("noise", (1,), range(3, 5), 2.0)]},
    "noise senders": {"behaviours": [Behaviour("noise-sender", (0, 2), strength=0.01)]},
    "sign flipper": {"optimizer": "momentum", "behaviours": [Behaviour("sign-flipper", (1,))]},
    "free-rider": {"optimizer": "momentum", "behaviours": [Behaviour("free-rider", (3,), range(3))]},
    "absent": {"optimizer": "adam", "lr": 0.05, "behaviours": [Behaviour("absent", (0,), range(3, 4))]},
    "absent source": {"behaviours": [Behaviour("absent", (1,), range(1, 3))]},
    "loop": {"strategy": "loop", "optimizer": "adam", "local_steps": 2, "lr": 0.05},
    "rates": {"lr": lambda t: torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64) / (1 + t)},
    "sparse": {"mixing": topology.exponential(NODES)},
}


def same(network, rounds, sources=range(NODES), **judged):
    found = truth(network, rounds, evaluate_on(network, judged.get("sets"), judged.get("measure")), sources)
    expected = torch.stack([retrained(network, rounds, source, **judged) for source in sources], dim=1)
    torch.testing.assert_close(found.value, expected, **CLOSE)
    return found


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_truth_is_training_again_without_the_update(options):
    network = small(**options)
    found = same(network, window(network, HOPS))
    assert found.value.abs().amax((1, 2)).min() > 1e-6
    assert found.kind == "truth"
    assert (found.t, found.sources) == (2, (0, 1, 2, 3))


def test_who_does_nothing_has_no_influence():
    network = small(behaviours=[Behaviour("free-rider", (3,))])
    assert not same(network, window(network, HOPS)).value[:, 3].any()


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_truth_of_other_models(name):
    network = engine_cases.make(name, lr=0.3, strategy="loop")
    same(network, window(network, 2), [0, 3])


def test_truth_of_dropout_replays_the_same_masks():
    network = small(smooth(nn.Dropout(0.5)), strategy="loop")
    rounds = window(network, HOPS)
    found = same(network, rounds)
    assert torch.equal(found.value, truth(network, rounds, evaluate_on(network)).value)


def test_truth_of_a_run_from_the_first_round():
    network = small(optimizer="momentum")
    same(network, list(simulate(network, 2)))


def test_truth_with_evaluation_data_of_ones_own():
    network = small()
    test = network.data.test
    sets = [test.subset(torch.tensor([k, k + 2, 6])) for k in range(NODES)]
    found = same(network, window(network, HOPS), sets=sets)
    shared = truth(network, window(network, HOPS), evaluate_on(network))
    assert not torch.allclose(found.value, shared.value)


def margin(outputs, targets):
    """How far the right class is ahead of the mean of all."""
    right = outputs.gather(-1, targets[:, None])[:, 0]
    return (right - outputs.mean(-1)).mean()


def test_truth_of_a_measure_that_is_not_the_training_loss():
    network = small()
    same(network, window(network, HOPS), measure=margin)


def test_some_sources_in_the_order_asked_and_in_any_number_at_once(monkeypatch):
    network = small(optimizer="momentum")
    rounds, judged = window(network, HOPS), evaluate_on(network)
    everyone = truth(network, rounds, judged).value
    some = truth(network, rounds, judged, [3, 1])
    assert some.sources == (3, 1)
    torch.testing.assert_close(some.value, everyone[:, [3, 1]], **CLOSE)
    monkeypatch.setattr(cascade, "MEMORY", 1)
    torch.testing.assert_close(truth(network, rounds, judged, [3, 1]).value, some.value, **CLOSE)


def test_total_is_the_sum_over_hops_and_receivers():
    found = same(network := small(), window(network, HOPS))
    expected = [sum(float(found.value[h, s, k]) for h in range(HOPS + 1) for k in range(NODES)) for s in range(NODES)]
    torch.testing.assert_close(found.total, torch.tensor(expected, dtype=torch.float64))


def test_a_state_that_outlives_a_change_of_parameters_is_not_forgotten():
    """Without self-loops a source hears only others: its parameters are as if nothing was, its momentum is not."""
    cycle = torch.eye(NODES, dtype=torch.float64).roll(1, 0)
    network = small(mixing=cycle, optimizer="momentum")
    same(network, window(network, HOPS))


@pytest.mark.xfail(strict=True, reason="without the update, running statistics are taken from the run with it")
def test_truth_of_batch_norm_is_training_again():
    network = small(smooth(nn.BatchNorm1d(4)))
    same(network, window(network, HOPS))


def test_negative_is_helpful():
    """In a network that learns, the sum of the influence of updates on oneself is negative."""
    network = small(mixing=directed(1), lr=0.5, q=[0.25] * 4)
    network = replace(network, data=replace(network.data, test=network.data.train))
    rounds = list(simulate(network, 1))
    assert losses(network, rounds[0].after).mean() < losses(network, rounds[0].before).mean()
    assert truth(network, rounds, evaluate_on(network)).value[0].sum() < 0
