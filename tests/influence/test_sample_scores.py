"""Single samples: the parts of an update, without a gradient of a sample ever being formed."""

import pytest
import torch
from engine import cases as engine_cases
from influence.cases import CLOSE, NODES, small, smooth, window
from oracles import batch_of, loss_of
from torch import nn
from torch.func import grad

from cascadice import losses, optimizers
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, load
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, reverse_gossip, truth


def scored(network, hops=2):
    rounds = window(network, hops)
    worth = reverse_gossip(network, rounds, evaluate_on(network))
    return rounds[0], worth, by_sample(network, rounds[0], worth)


def materialised(network, first, worth):
    """A_jᵀ (−η/B ∇ℓ_i), gradient by gradient."""
    found = torch.zeros(first.draw.batch.shape[0], first.draw.batch.shape[2], dtype=torch.float64)
    for j in range(network.nodes):
        x, y = batch_of(network, first, j)
        for i in range(len(y)):
            slope = grad(lambda theta, at=slice(i, i + 1), x=x, y=y: loss_of(network, x[at], y[at], theta))
            found[j, i] = -first.draw.lr / len(y) * worth.theta[j] @ slope(first.before.theta[j])
    return found


def others(name):
    return engine_cases.make(name, lr=0.3, strategy="vmap" if name == "transformer" else "loop")


NETWORKS = {
    "mlp": small,
    "squared error": lambda: small(loss=losses.mse),
    "transformer": lambda: others("transformer"),
    "cnn": lambda: others("cnn"),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_score_is_what_the_samples_own_gradient_is_worth(make, one_thread):
    network = make()
    first, worth, found = scored(network)
    torch.testing.assert_close(found, materialised(network, first, worth), **CLOSE)
    torch.testing.assert_close(found.sum(1), by_participant(first, worth), **CLOSE)
    assert found.std(1).min() > 1e-7


def test_scores_of_corrupted_data_add_up():
    network = small(corruptions=[Corruption("flip-labels", (0, 1)), Corruption("noise", (2,), strength=2.0)])
    first, worth, found = scored(network)
    torch.testing.assert_close(found.sum(1), by_participant(first, worth), **CLOSE)


RULES = {
    "sgd": optimizers.sgd(weight_decay=0.1),
    "momentum": optimizers.momentum(weight_decay=0.1),
    "nesterov": optimizers.nesterov(),
    "adam": optimizers.adam(eps=1e-3),
    "clip": optimizers.clip(optimizers.sgd(), 0.2),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_score_is_the_derivative_in_the_weight_of_the_sample(rule):
    """With any optimizer: what A_j makes of a step in which the sample counts a little more, parameters and state."""
    network = small(optimizer=rule, lr=0.05)
    first, worth, found = scored(network)
    for j, i in ((0, 1), (3, 2)):
        x, y = batch_of(network, first, j)
        own = {name: value[j] for name, value in first.before.state.items()}
        slopes = [
            grad(lambda theta, at=slice(s, s + 1), x=x, y=y: loss_of(network, x[at], y[at], theta))
            for s in range(len(y))
        ]
        each = torch.stack([slope(first.before.theta[j]) for slope in slopes])

        def judged(extra, each=each, own=own, j=j, i=i):
            lr = torch.tensor(first.draw.lr, dtype=torch.float64)
            delta, state = rule.update(each.mean(0) + extra * each[i] / len(each), own, first.before.theta[j], lr)
            return worth.theta[j] @ delta + sum((worth.state[name][j] * state[name]).sum() for name in state)

        step = 1e-5
        torch.testing.assert_close(found[j, i], (judged(step) - judged(-step)) / (2 * step), rtol=1e-6, atol=1e-11)


BENT = {"free-rider": Behaviour("free-rider", (1,)), "sign flipper": Behaviour("sign-flipper", (1,), strength=2.0)}


@pytest.mark.parametrize("behaviour", BENT.values(), ids=BENT)
def test_samples_of_the_dishonest_count_as_they_were_used(behaviour):
    first, worth, found = scored(small(behaviours=[behaviour]))
    torch.testing.assert_close(found.sum(1), by_participant(first, worth), **CLOSE)


def test_batch_norm_has_no_scores_of_samples_but_of_participants():
    network = small(smooth(nn.BatchNorm1d(4)))
    rounds = window(network, 2)
    worth = reverse_gossip(network, rounds, evaluate_on(network))
    with pytest.raises(ValueError, match=r"'2' is a BatchNorm: .* depend on the whole batch.* use GroupNorm"):
        by_sample(network, rounds[0], worth)
    assert by_participant(rounds[0], worth).isfinite().all()
    for way in (truth, first_order):
        assert way(network, rounds, evaluate_on(network)).value[0].abs().sum(1).min() > 0


def test_in_several_local_steps_a_score_is_the_derivative_in_the_weight_of_the_sample():
    network = small(local_steps=3)
    first, worth, found = scored(network)
    assert found.shape == (NODES, 3 * 4)
    inputs = load(network, first.draw)

    def after(weights, j):
        theta = first.before.theta[j]
        for i in range(3):
            slope = grad(
                lambda theta, i=i: torch.stack(
                    [
                        weights[i, s] * loss_of(network, inputs.x[j, i, s : s + 1], inputs.y[j, i, s : s + 1], theta)
                        for s in range(4)
                    ]
                ).mean()
            )
            theta = theta - first.draw.lr * slope(theta)
        return worth.theta[j] @ theta

    for j in range(NODES):
        expected = grad(after)(torch.ones(3, 4, dtype=torch.float64), j)
        torch.testing.assert_close(found[j], expected.flatten(), **CLOSE)


def test_there_is_a_score_for_each_sample_of_each_batch():
    assert scored(small(batch_size=5))[2].shape == (NODES, 5)
