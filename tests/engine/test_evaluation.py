"""Metrics is what a hand-written loop over modules and samples finds."""

from dataclasses import replace

import oracles
import pytest
import torch
import torch.nn.functional as F
from engine.cases import CLASSES, data, last, make, perceptron
from torch import nn

from cascadice.data import Samples, from_tensors
from cascadice.engine import Operator, evaluate, metrics
from cascadice.engine.evaluation import evaluate_on
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


UNEVEN = torch.arange(1.0, CLASSES + 1, dtype=torch.float64)
NO_PLAIN_MEANS = {
    "a sum": lambda outputs, y: F.cross_entropy(outputs, y, reduction="sum"),
    "class weights": lambda outputs, y: F.cross_entropy(outputs, y, UNEVEN),
    "an ignored class": lambda outputs, y: F.cross_entropy(outputs, y, ignore_index=1),
    "a maximum": lambda outputs, y: F.cross_entropy(outputs, y, reduction="none").max(),
}


def by_class(samples=23):
    """Test samples in the order of their classes, so that chunks differ."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(samples, 1, 8, 8, generator=draw), torch.randint(CLASSES, (samples,), generator=draw)
    return Samples(x, y.sort().values)


@pytest.mark.parametrize("most", [2**25, 1])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("loss", NO_PLAIN_MEANS.values(), ids=NO_PLAIN_MEANS)
def test_any_loss_is_that_of_all_samples_at_once(loss, strategy, most, monkeypatch):
    monkeypatch.setattr(metrics, "MOST_OUTPUTS", most)
    net, samples = make(loss=loss, strategy=strategy, init="own"), by_class()
    found = evaluate(net, net.initial, samples, chunk=4)
    outputs = [module_of(net, net.initial, k)(samples.x.double()).detach() for k in range(net.nodes)]
    expected = torch.stack([loss(own, samples.y) for own in outputs])
    torch.testing.assert_close(found.loss, expected, rtol=1e-12, atol=0)
    hits = torch.stack([(own.argmax(-1) == samples.y).double().mean() for own in outputs])
    torch.testing.assert_close(found.accuracy.double(), hits, rtol=0, atol=1e-6)
    judged = Operator(net).losses(evaluate_on(net, samples), net.initial, range(net.nodes))
    torch.testing.assert_close(found.loss, judged, rtol=1e-12, atol=0)


def test_squared_errors_count_ignored_targets_as_they_do_in_one_pass():
    net, samples = make(loss=mse), by_class()
    ignoring = replace(samples, y=torch.where(samples.y == 0, -100, samples.y))
    found, whole = (evaluate(net, net.initial, ignoring, chunk=chunk) for chunk in (4, 512))
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-6)


def test_outputs_without_a_row_for_each_sample_are_computed_in_one_pass():
    class Transposed(nn.Linear):
        def forward(self, x):
            return super().forward(x).T

    def loss(outputs, y):
        return (outputs.T - y).square().sum()

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=draw).double(), torch.randn(60, 2, generator=draw).double()
    net = make(Transposed(3, 2), data=from_tensors(x, y, x[:11], y[:11]), loss=loss)
    expected = loss(module_of(net, net.initial, 0)(x[:11]), y[:11]).detach()
    torch.testing.assert_close(evaluate(net, net.initial, chunk=4).loss, expected.expand(4), rtol=1e-12, atol=0)


def test_without_any_target_the_loss_is_not_a_number():
    net = make()
    nothing = replace(by_class(), y=torch.full((23,), -100))
    assert evaluate(net, net.initial, nothing, chunk=4).loss.isnan().all()
