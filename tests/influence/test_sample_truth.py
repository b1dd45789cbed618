"""The truth of a sample is training again without its term in the batch mean; to first order, that is its score."""

from dataclasses import replace

import pytest
import torch
from engine import cases as engine_cases
from influence.cases import CLOSE, NODES, small, smooth, window
from oracles import batch_of, losses
from torch import nn

from cascadice import learning_rates, optimizers, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, mix, module_of, simulate
from cascadice.influence import by_sample, cascade, evaluate_on, reverse_gossip, truth, truth_of_samples

HOPS, SOURCE = 3, 1


def half_without(network, first, source, place):
    """The participants after a first step in which the source's own, by plain autograd, lacks one term."""
    x, y = batch_of(network, first, source)
    module = module_of(network, first.before, source).train()
    outputs = module(x)
    terms = [network.learner.loss(outputs[s : s + 1], y[s : s + 1]) for s in range(len(y)) if s != place]
    pieces = torch.autograd.grad(sum(terms) / len(y), list(module.parameters()))
    slope, theta = torch.cat([piece.flatten() for piece in pieces]), first.before.theta[source]
    own = {name: value[source] for name, value in first.before.state.items()}
    delta, state = network.learner.optimizer.update(slope, own, theta, rate(first, source))
    taken, factor = (part[source] for part in first.draw.conduct) if first.draw.conduct else (1.0, 1.0)
    half = first.half._replace(
        theta=first.half.theta.clone(), state={n: v.clone() for n, v in first.half.state.items()}
    )
    half.theta[source] = theta + taken * factor * delta
    for name, value in state.items():
        half.state[name][source] = own[name] + taken * (value - own[name])
    return half


def rate(first, source):
    lr = first.draw.lr
    return lr[source] if isinstance(lr, torch.Tensor) else torch.tensor(lr, dtype=torch.float64)


def retrained_without(network, rounds, source, place):
    """[hop, receiver]: the same run again from that first step on."""
    first = rounds[0]
    half = half_without(network, first, source, place)
    found = [losses(network, first.half) - losses(network, half)]
    again = simulate(network, rounds[-1].t + 1, start=first.t + 1, participants=mix(first.W, half))
    found.append(losses(network, first.after) - losses(network, mix(first.W, half)))
    for done, other in zip(rounds[1:], again, strict=True):
        found.append(losses(network, done.after) - losses(network, other.after))
    return network.q * torch.stack(found)


def same(network, rounds, source=SOURCE, samples=(0, 3)):
    found = truth_of_samples(network, rounds, evaluate_on(network), source, samples)
    expected = torch.stack([retrained_without(network, rounds, source, place) for place in samples], dim=1)
    torch.testing.assert_close(found.value, expected, **CLOSE)
    return found


NETWORKS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adamw": {"optimizer": "adamw", "lr": 0.05},
    "clip": {"optimizer": optimizers.clip(optimizers.momentum(weight_decay=0.01), 0.3)},
    "loop": {"strategy": "loop", "optimizer": "nesterov"},
    "rates": {"lr": lambda t: torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64) / (1 + t)},
    "sparse": {"mixing": topology.exponential(NODES)},
    "sign flipper": {"optimizer": "momentum", "behaviours": [Behaviour("sign-flipper", (SOURCE,), strength=2.0)]},
    "others corrupted": {"corruptions": [Corruption("permute-labels", (0, 2))]},
}


@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_truth_of_a_sample_is_training_again_without_its_term(options):
    network = small(**options)
    found = same(network, window(network, HOPS))
    assert found.value.abs().amax((1, 2)).min() > 1e-7
    assert (found.kind, found.t, found.sources, found.samples) == ("truth", 2, (SOURCE, SOURCE), (0, 3))


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_truth_of_samples_of_other_models(name):
    network = engine_cases.make(name, lr=0.3)
    same(network, window(network, 2), samples=(0, 2))


@pytest.mark.parametrize("kind", ["free-rider", "noise-sender"])
def test_samples_that_were_not_used_have_no_influence(kind):
    network = small(behaviours=[Behaviour(kind, (SOURCE,))])
    found = truth_of_samples(network, window(network, HOPS), evaluate_on(network), SOURCE)
    assert found.value.abs().max() < 1e-15


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_the_only_sample_of_a_batch_is_the_whole_update(strategy):
    network = small(batch_size=1, strategy=strategy)
    rounds = window(network, HOPS)
    found = truth_of_samples(network, rounds, evaluate_on(network), SOURCE)
    torch.testing.assert_close(found.value, truth(network, rounds, evaluate_on(network), [SOURCE]).value, **CLOSE)


def test_dropout_keeps_its_masks():
    """In a batch of one: without its sample a step is none, whatever the masks; in later rounds they are the same."""
    network = small(smooth(nn.Dropout(0.5)), strategy="loop", batch_size=1)
    rounds = window(network, HOPS)
    found = truth_of_samples(network, rounds, evaluate_on(network), SOURCE)
    torch.testing.assert_close(found.value, truth(network, rounds, evaluate_on(network), [SOURCE]).value, **CLOSE)


def test_dropout_of_the_others_is_as_it_was():
    """To first order in the rate the parts add up to the whole, which masks drawn anew would not."""
    network = small(smooth(nn.Dropout(0.5)), strategy="loop", lr=1e-5)
    rounds = window(network, HOPS)
    parts = truth_of_samples(network, rounds, evaluate_on(network), SOURCE).value.sum(1)
    torch.testing.assert_close(
        parts, truth(network, rounds, evaluate_on(network), [SOURCE]).value[:, 0], rtol=1e-3, atol=1e-12
    )


@pytest.mark.parametrize("rule", ["sgd", "momentum"])
def test_halving_the_rate_quarters_the_error_of_scores(rule):
    trained = small(optimizer=rule, lr=0.1)
    start, errors, size = list(simulate(trained, 3))[-1].after, [], 0.0
    for lr in (4e-3, 2e-3):
        network = replace(trained, lr=learning_rates.constant(lr))
        rounds, judged = list(simulate(network, 6, start=3, participants=start)), evaluate_on(network)
        true = truth_of_samples(network, rounds, judged, SOURCE).total
        errors.append(true - by_sample(network, rounds[0], reverse_gossip(network, rounds, judged))[SOURCE])
        size = true.abs().max()
    ratio = errors[0].abs() / errors[1].abs()
    assert len(ratio) == 4
    assert ((ratio > 3.5) & (ratio < 4.5)).all(), ratio
    assert errors[1].abs().max() < 0.2 * size


def test_all_samples_or_some_in_any_number_at_once(monkeypatch):
    network = small(optimizer="momentum")
    rounds, judged = window(network, HOPS), evaluate_on(network)
    all_of_them = truth_of_samples(network, rounds, judged, SOURCE)
    assert all_of_them.samples == (0, 1, 2, 3)
    monkeypatch.setattr(cascade, "MEMORY", 1)
    some = truth_of_samples(network, rounds, judged, SOURCE, [3, 1])
    torch.testing.assert_close(some.value, all_of_them.value[:, [3, 1]], **CLOSE)


def test_only_the_light_cone_is_touched():
    network = small(mixing=torch.eye(NODES, dtype=torch.float64).roll(1, 0))
    value = truth_of_samples(network, window(network, 2), evaluate_on(network), 0).value
    for hop in range(3):
        assert (value[hop].abs().amin(0) > 0).tolist() == [k == hop for k in range(NODES)]


def test_batch_norm_is_refused_with_the_reason():
    network = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match=r"'2' is a BatchNorm: .* depend on the whole batch.* use GroupNorm"):
        truth_of_samples(network, window(network, 1), evaluate_on(network), 0)


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "momentum"}, {"batch_size": [4, 2, 4, 4], "local_steps": [1, 2, 3, 1]}],
    ids=["sgd", "momentum", "uneven"],
)
def test_of_several_local_steps_one_lacks_the_term(options):
    """Against steps made one by one with plain autograd, where the term is left out of the sample's own step alone."""
    network = small(**({"local_steps": 2} | options))
    (first,) = window(network, 1)
    found = truth_of_samples(network, [first], evaluate_on(network), SOURCE)
    drawn = first.draw.batch[SOURCE]
    assert found.samples == tuple((drawn.flatten() >= 0).nonzero().flatten().tolist())
    optimizer = network.learner.optimizer
    for row, place in enumerate(found.samples):
        theta, state = first.before.theta[SOURCE], {n: v[SOURCE] for n, v in first.before.state.items()}
        for step, index in enumerate(drawn[drawn[:, 0] >= 0]):
            index, lacking = index[index >= 0], place - step * drawn.shape[1]
            module = module_of(network, first.before._replace(theta=theta.expand_as(first.before.theta)), SOURCE)
            x, y = network.data.train.x[index], network.data.train.y[index]
            terms = [network.learner.loss(module(x[[i]]), y[[i]]) for i in range(len(y)) if i != lacking]
            pieces = torch.autograd.grad(sum(terms) / len(y), list(module.parameters()))
            slope = torch.cat([piece.flatten() for piece in pieces])
            delta, state = optimizer.update(slope, state, theta, rate(first, SOURCE))
            theta = theta + delta
        half = first.half._replace(theta=first.half.theta.clone())
        half.theta[SOURCE] = theta
        expected = network.q * (losses(network, first.half) - losses(network, half))
        torch.testing.assert_close(found.value[0, row], expected, **CLOSE)
        assert expected[SOURCE].abs() > 1e-7


@pytest.mark.parametrize("place", [-1, 4])
def test_samples_must_be_in_the_batch(place):
    network = small()
    with pytest.raises(ValueError, match=f"positions in a batch of 4, from 0 to 3; found {place}"):
        truth_of_samples(network, window(network, 1), evaluate_on(network), 0, [0, place])
