"""First order, forwards and in reverse gossip: a sum over paths, a derivative, and second-order close to the truth."""

from dataclasses import replace

import pytest
import torch
from influence.cases import CLOSE, NODES, changing, directed, small, smooth, window
from oracles import by_paths, slope_in_scale
from torch import nn

from cascadice import learning_rates, losses, optimizers, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, Operator, simulate
from cascadice.influence import by_participant, evaluate_on, first_order, reverse_gossip, score_rounds, truth

TIGHT = {"rtol": 1e-10, "atol": 1e-15}
MIXINGS = {"changing": changing(), "directed": directed(4), "ring": topology.uniform(topology.graphs.ring(NODES))}


def swept(network, rounds, judged=None):
    """The total of every participant by one sweep backwards."""
    return by_participant(rounds[0], reverse_gossip(network, rounds, judged or evaluate_on(network)))


@pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS)
def test_first_order_is_the_sum_over_all_paths(mixing):
    network = small(mixing=mixing, q=[0.1, 0.2, 0.3, 0.4], lr=0.8)
    rounds = window(network, 3)
    expected = by_paths(network, rounds)
    torch.testing.assert_close(first_order(network, rounds, evaluate_on(network)).value, expected, **TIGHT)
    torch.testing.assert_close(swept(network, rounds), expected.sum((0, 2)), **TIGHT)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("rule", ["adam", "adamw"])
def test_several_steps_of_adam_are_followed_in_single_precision(rule, strategy):
    single, double = (
        small(optimizer=rule, lr=0.01, local_steps=2, strategy=strategy, dtype=dtype)
        for dtype in ("float32", "float64")
    )
    found, expected = (first_order(each, window(each, 2), evaluate_on(each)).value for each in (single, double))
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("rule", ["sgd", "momentum"])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
def test_halving_the_rate_quarters_the_error(rule, activation):
    trained = small(smooth(activation=activation), optimizer=rule, lr=0.1)
    start = list(simulate(trained, 3))[-1].after
    error, size = [], []
    for lr in (4e-3, 2e-3):
        network = replace(trained, lr=learning_rates.constant(lr))
        rounds = list(simulate(network, 7, start=3, participants=start))
        true, estimate = (way(network, rounds, evaluate_on(network)).value for way in (truth, first_order))
        error.append((true - estimate).abs().amax((1, 2)))
        size.append(true.abs().amax((1, 2)))
    ratio = error[0] / error[1]
    assert len(ratio) == 5
    assert ((ratio > 3.5) & (ratio < 4.5)).all(), ratio
    assert (error[1] < 0.2 * size[1]).all()


RULES = {
    "sgd": optimizers.sgd(),
    "momentum": optimizers.momentum(),
    "nesterov": optimizers.nesterov(),
    "adam": optimizers.adam(eps=1e-3),
    "adamw": optimizers.adamw(eps=1e-3),
    "clip": optimizers.clip(optimizers.sgd(), 0.2),
    "clipped momentum": optimizers.clip(optimizers.momentum(), 0.2),
    "weight decay": optimizers.momentum(weight_decay=0.1),
    "sgd, weight decay": optimizers.sgd(weight_decay=0.1),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_first_order_is_the_derivative_in_the_scale_of_the_update(rule):
    """Of parameters and state, for every optimizer; the first hop is differentiated where the update is done."""
    network = small(optimizer=rule, lr=0.05)
    rounds = window(network, 3)
    found = first_order(network, rounds, evaluate_on(network), [0, 2]).value[1:]
    expected = torch.stack([slope_in_scale(network, rounds, source) for source in (0, 2)], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-11)


NETWORKS = {name: {"optimizer": rule, "lr": 0.05} for name, rule in RULES.items()} | {
    "local steps": {"optimizer": "adam", "local_steps": 2, "lr": 0.05},
    "directed": {"mixing": directed(5), "optimizer": "momentum"},
    "sparse": {"mixing": topology.exponential(5), "optimizer": "momentum"},
    "corrupted": {"corruptions": [Corruption("permute-labels", (0, 2))]},
    "noise sender": {"behaviours": [Behaviour("noise-sender", (1,), strength=0.01)], "optimizer": "momentum"},
    "sign flipper": {"behaviours": [Behaviour("sign-flipper", (1,))], "optimizer": "momentum"},
    "free-rider": {"behaviours": [Behaviour("free-rider", (1,), range(3, 9))], "optimizer": "adam", "lr": 0.05},
    "absent": {"behaviours": [Behaviour("absent", (1,), range(3, 4))], "optimizer": "momentum"},
    "rates": {"lr": lambda t: torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64) / (1 + t)},
    "batch norm": {"model": smooth(nn.BatchNorm1d(4)), "optimizer": "momentum"},
}


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_backwards_is_forwards(options):
    network = small(**options)
    rounds = window(network, 3)
    found = first_order(network, rounds, evaluate_on(network))
    assert found.kind == "first order"
    assert found.total.abs().max() > 1e-6
    torch.testing.assert_close(swept(network, rounds), found.total, **TIGHT)


def test_backwards_is_forwards_with_sets_and_measures_of_ones_own():
    network = small()
    sets = [network.data.test.subset(torch.tensor([k, 6 - k])) for k in range(NODES)]
    rounds, judged = window(network, 3), evaluate_on(network, sets, losses.mse)
    torch.testing.assert_close(swept(network, rounds, judged), first_order(network, rounds, judged).total, **TIGHT)


def test_one_hop_and_no_further():
    network = small(optimizer="momentum")
    rounds = window(network, 1)
    found = first_order(network, rounds, evaluate_on(network))
    assert found.value.shape == (2, NODES, NODES)
    torch.testing.assert_close(swept(network, rounds), found.total, **TIGHT)


def test_backwards_is_forwards_without_self_loops():
    network = small(mixing=torch.eye(NODES, dtype=torch.float64).roll(1, 0), optimizer="momentum")
    rounds = window(network, 3)
    torch.testing.assert_close(
        swept(network, rounds), first_order(network, rounds, evaluate_on(network)).total, **TIGHT
    )


def test_a_linear_model_with_a_linear_measure_has_no_error():
    """A linear loss has a constant gradient: nothing is left beyond first order, at any rate."""

    def linear(outputs, targets):
        return -outputs.gather(-1, targets[:, None]).mean()

    network = small(nn.Linear(6, 3), loss=linear, lr=2.0)
    rounds = window(network, 3)
    true, estimate = (way(network, rounds, evaluate_on(network)).value for way in (truth, first_order))
    assert true.abs().max() > 0.1
    torch.testing.assert_close(estimate, true, rtol=1e-11, atol=1e-13)


def test_loop_and_vmap_agree(one_thread):
    loop, vmap = (everything(small(strategy=strategy, **LOCAL)) for strategy in ("loop", "vmap"))
    for one, other in zip(loop, vmap, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


LOCAL = {"optimizer": "adam", "lr": 0.05, "local_steps": 2}


def everything(network):
    rounds = window(network, 3)
    ways = [way(network, rounds, evaluate_on(network)).value for way in (truth, first_order)]
    return (*ways, swept(network, rounds))


def test_loop_and_vmap_agree_over_threads():
    for one, other in zip(
        *(everything(small(strategy=strategy, **LOCAL)) for strategy in ("loop", "vmap")), strict=True
    ):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize(("hops", "passes"), [(1, 5), (2, 5)])
def test_windows_that_overlap_share_their_gradients(hops, passes, monkeypatch):
    network = small(strategy="loop")
    rounds, judged, asked = list(simulate(network, 4)), evaluate_on(network), []
    apart = [first_order(network, rounds[t : t + hops], judged).value for t in range(5 - hops)]
    slow = Operator.gradients
    monkeypatch.setattr(Operator, "gradients", lambda *given: asked.append(1) or slow(*given))
    together = [one.cascades[0].value for one in score_rounds(network, rounds, judged, hops=hops)]
    assert all(map(torch.equal, together, apart))
    assert len(asked) == passes  # at the start, and after each of four rounds


def test_gradients_of_another_run_are_not_taken_for_these():
    network, other = small(), small(lr=0.1)
    judged, op = evaluate_on(network), Operator(network)
    for run in (network, other, network):
        rounds = list(simulate(run, 2))
        alone = first_order(network, rounds, judged).value
        assert torch.equal(first_order(network, rounds, judged, operator=op).value, alone)
