"""Metrics is what a hand-written loop over modules and samples finds."""

import oracles
import pytest
import torch
from engine.cases import CLASSES, data, last, make, perceptron
from torch import nn

from cascadice.data import Samples, from_tensors
from cascadice.engine import evaluate
from cascadice.engine.networks import module_of
from cascadice.losses import mse


def by_hand(net, participants, samples):
    found = [
        oracles.evaluate(module_of(net, participants, k), net.learner.loss, samples.x, samples.y)
        for k in range(net.nodes)
    ]
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.parametrize("chunk", [4, 512])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_evaluation_is_a_loop_over_samples(name, strategy, chunk):
    net = make(name, strategy=strategy, mixing="alone", nodes=3)
    trained = last(net, 2).after
    found = evaluate(net, trained, chunk=chunk)
    loss, accuracy = by_hand(net, trained, net.data.test)
    torch.testing.assert_close(found.loss, loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.accuracy.double(), accuracy, rtol=0, atol=1e-6)
    assert len(set(found.loss.tolist())) == 3


def test_batch_statistics_and_dropout_are_in_evaluation_mode():
    net = make(perceptron(nn.BatchNorm1d(6), nn.Dropout(0.5)))
    trained = last(net).after
    loss, accuracy = by_hand(net, trained, net.data.test)
    found = evaluate(net, trained, chunk=2)
    torch.testing.assert_close(found.loss, loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.accuracy.double(), accuracy, rtol=0, atol=1e-6)


def test_other_samples_than_the_test_data():
    net = make()
    some = net.data.train.subset(torch.arange(7))
    loss, _ = by_hand(net, net.initial, some)
    torch.testing.assert_close(evaluate(net, net.initial, some).loss, loss, rtol=0, atol=1e-10)


def test_next_tokens_count_each_position():
    net = make("transformer")
    trained = last(net).after
    module = module_of(net, trained, 1)
    hits = (module(net.data.test.x).argmax(-1) == net.data.test.y).double().mean()
    assert float(evaluate(net, trained).accuracy[1]) == pytest.approx(float(hits), abs=1e-6)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_regression_has_no_accuracy(strategy):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 64, generator=draw), torch.randn(60, CLASSES, generator=draw)
    net = make(perceptron(), data=from_tensors(x, y, x[:9], y[:9]), loss=mse, strategy=strategy)
    found = evaluate(net, net.initial)
    assert found.accuracy.isnan().all()
    expected = (module_of(net, net.initial, 0)(x[:9].double()) - y[:9]).square().mean()
    assert float(found.loss[0]) == pytest.approx(float(expected.detach()), abs=1e-10)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="evaluation set must hold at least one sample; it is empty"):
        evaluate(make(), make().initial, Samples(torch.empty(0, 1, 8, 8), torch.empty(0).long()))


def test_evaluation_changes_nothing():
    net = make(perceptron(nn.BatchNorm1d(6)))
    before = {name: value.clone() for name, value in net.initial.buffers.items()}
    evaluate(net, net.initial)
    assert all(torch.equal(before[name], value) for name, value in net.initial.buffers.items())


def test_precision_of_the_data_does_not_matter():
    net = make(dtype="float32", data=data())
    assert evaluate(net, net.initial).loss.dtype == torch.float32
