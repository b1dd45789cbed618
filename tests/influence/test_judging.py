"""What influence is measured on, and what is refused with a reason."""

import pytest
import torch
from engine.rows import gradients as slopes
from engine.rows import losses as values
from influence.cases import CLOSE, NODES, small, window
from oracles import losses

from cascadice.data import Samples
from cascadice.engine import module_of
from cascadice.influence import evaluate_on, first_order, measures, path_integrated, reverse_gossip, shares, truth
from cascadice.losses import cross_entropy, mse

CASCADES = pytest.mark.parametrize("way", [truth, first_order, path_integrated])


INSIDE = torch.arange(9) % 3 == 0
MEASURES = {
    "loss": None,
    "class": measures.on_class(1),
    "margin": measures.negative_margin,
    "gap": measures.gap(INSIDE),
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_values_and_slopes_are_those_of_ordinary_modules(measure, own, strategy):
    network = small(strategy=strategy)
    sets = [network.data.train.subset(torch.arange(k, k + 9)) for k in (range(NODES) if own else [0] * NODES)]
    judged, people = evaluate_on(network, sets if own else sets[0], measure), network.initial
    expected = losses(network, people, sets, measure)
    torch.testing.assert_close(values(network, judged, people.theta, {}, range(NODES)), expected, **CLOSE)
    found, slope = slopes(network, judged, people.theta[[2, 0]], {}, [2, 0])
    torch.testing.assert_close(found, expected[[2, 0]], **CLOSE)
    module, samples = module_of(network, people, 2), sets[2]
    (measure or cross_entropy)(module(samples.x), samples.y).backward()
    torch.testing.assert_close(slope[0], torch.cat([p.grad.flatten() for p in module.parameters()]), **CLOSE)


def test_measures_by_hand():
    outputs = torch.tensor([[2.0, 1.0, 0.5], [0.0, 3.0, 4.0], [1.0, 1.5, 1.0]])
    targets = torch.tensor([0, 1, 1])
    each = [cross_entropy(outputs[s : s + 1], targets[s : s + 1]) for s in range(3)]
    torch.testing.assert_close(measures.per_sample(cross_entropy)(outputs, targets), torch.stack(each))
    torch.testing.assert_close(measures.negative_margin(outputs, targets), torch.tensor((-1.0 + 1.0 - 0.5) / 3))
    torch.testing.assert_close(measures.on_class(1)(outputs, targets), (each[1] + each[2]) / 2)
    for group in ([1, 0, 1], [0, 1, 0]):
        expected = ((each[0] + each[2]) / 2 - each[1]).abs()
        torch.testing.assert_close(measures.gap(torch.tensor(group))(outputs, targets), expected)
    assert measures.on_class(1, mse)(outputs, targets) != measures.on_class(1)(outputs, targets)


def test_a_group_must_speak_of_every_sample():
    with pytest.raises(ValueError, match=r"one entry for each of 7 evaluation samples; found shape \[9\]"):
        evaluate_on(small(), measure=measures.gap(INSIDE))


def test_evaluation_data_must_be_what_the_model_takes():
    network = small()
    test = network.data.test
    other = Samples(torch.zeros(5, 7, dtype=test.x.dtype), test.y[:5])
    with pytest.raises(ValueError, match=r"must be what the model takes; it cannot take \[5, 7\] of torch.float64: "):
        evaluate_on(network, other)


def test_evaluation_data_must_not_be_empty():
    network = small()
    nothing = network.data.test.subset(torch.arange(0))
    with pytest.raises(ValueError, match="must hold at least one sample; it is empty"):
        evaluate_on(network, nothing)


def test_a_set_of_one_participant_must_not_be_empty():
    network = small()
    sets = [network.data.test.subset(torch.arange(k % 2)) for k in range(NODES)]
    with pytest.raises(ValueError, match="at least one sample; that of participant 0 is empty"):
        evaluate_on(network, sets)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_there_must_be_a_set_for_each_participant(count):
    network = small()
    with pytest.raises(ValueError, match=f"each of 4 participants; found {count}"):
        evaluate_on(network, [network.data.test] * count)


def test_a_measure_must_be_scalar():
    with pytest.raises(ValueError, match=r"must return a scalar; found shape \(7, 3\).*mean"):
        evaluate_on(small(), measure=lambda outputs, targets: outputs)


@CASCADES
@pytest.mark.parametrize("source", [-1, NODES])
def test_sources_must_be_participants(way, source):
    network = small()
    with pytest.raises(ValueError, match=f"sources must be from 0 to 3; found {source}"):
        way(network, window(network, 1), evaluate_on(network), [0, source])


ROUNDS = [truth, first_order, path_integrated, reverse_gossip, shares]


@pytest.mark.parametrize("way", ROUNDS)
def test_rounds_must_follow_one_another(way):
    network = small()
    rounds = window(network, 3)
    with pytest.raises(ValueError, match=r"rounds must be consecutive; round 2 is followed by 4\. Keep or record all"):
        way(network, [rounds[0], rounds[2]], evaluate_on(network))


@pytest.mark.parametrize("way", ROUNDS)
def test_there_must_be_a_round(way):
    network = small()
    with pytest.raises(ValueError, match="at least one round is needed"):
        way(network, [], evaluate_on(network))
