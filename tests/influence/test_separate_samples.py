"""Samples are scored where each adds its own term; where one depends on another, that is noticed and refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from influence.cases import CLASSES, CLOSE, FEATURES, small, smooth, window
from torch import nn
from torch.nn import functional as F

from cascadice import influence, losses
from cascadice.data import from_tensors
from cascadice.engine.fast import pull, tape
from cascadice.influence import checks

IGNORED = 1


def sorted_data(samples=48, tests=9):
    """Samples in the order of their classes: the first many are of one class."""
    draw = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (samples + tests,), generator=draw)
    y[:samples] = y[:samples].sort().values
    x = torch.randn(samples + tests, FEATURES, generator=draw, dtype=torch.float64) + y[:, None]
    return from_tensors(x[:samples], y[:samples], x[samples:], y[samples:], classes=CLASSES)


SEPARATE = {
    "class weights": lambda outputs, y: F.cross_entropy(outputs, y, torch.arange(1.0, CLASSES + 1).to(outputs)),
    "ignored targets": lambda outputs, y: F.cross_entropy(outputs, y, ignore_index=IGNORED),
    "a sum": lambda outputs, y: F.cross_entropy(outputs, y, reduction="sum") / 4,
    "a module": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64), ignore_index=2),
}


@pytest.mark.parametrize("by_layers", [True, False])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("loss", SEPARATE.values(), ids=SEPARATE)
def test_samples_sum_to_their_participant(loss, strategy, by_layers, monkeypatch):
    if not by_layers:
        monkeypatch.setattr(pull, "_directional", lambda strategy, layers: tape.generic_directional)
    network = small(loss=loss, data=sorted_data(), strategy=strategy, batch_size=6)
    rounds, evaluation = window(network, 2), influence.evaluate_on(network, measure=losses.cross_entropy)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    scores = influence.by_sample(network, rounds[0], adjoint)
    torch.testing.assert_close(scores.sum(1), influence.by_participant(rounds[0], adjoint), **CLOSE)
    assert scores.abs().max() > 1e-4


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("loss", SEPARATE.values(), ids=SEPARATE)
def test_the_truth_of_a_sample_has_one_term_fewer(loss, strategy):
    """Against a step made by hand, the gradient less what the sample adds to it."""
    network = small(loss=loss, data=sorted_data(), strategy=strategy, batch_size=6)
    (first,) = window(network, 1)
    source, lr = 1, first.draw.lr
    truth = influence.truth_of_samples(
        network, [first], influence.evaluate_on(network, measure=losses.cross_entropy), source
    )
    index = first.draw.batch[source, 0]
    x, y = network.data.train.x[index], network.data.train.y[index]
    module, test = smooth(), network.data.test
    for place in range(len(y)):
        theta = first.before.theta[source]
        kept = torch.ones(len(y), dtype=torch.float64)
        kept[place] = 0
        nn.utils.vector_to_parameters(theta, module.parameters())
        outputs = module.double()(x)
        (by_output,) = torch.autograd.grad(loss(outputs, y), outputs, retain_graph=True)
        pieces = torch.autograd.grad(outputs, list(module.parameters()), by_output * kept[:, None])
        removed = theta - lr * torch.cat([piece.flatten() for piece in pieces])
        ends = []
        for row in (first.half.theta[source], removed):
            nn.utils.vector_to_parameters(row, module.parameters())
            ends.append(losses.cross_entropy(module(test.x), test.y))
        expected = network.q[source] * (ends[0] - ends[1])
        torch.testing.assert_close(truth.value[0, place, source], expected.detach(), rtol=1e-8, atol=1e-12)


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        hidden = self.read(x)
        return self.write(torch.tanh(hidden - hidden.mean(0)))


class Functional(Centred):
    """Normalises by a function that no module shows."""

    def forward(self, x):
        return self.write(torch.tanh(F.batch_norm(self.read(x), None, None, training=True)))


class Mixing(Centred):
    """Lets each sample see its neighbour in the batch."""

    def forward(self, x):
        return self.write(torch.tanh(self.read(x)) + 0.1 * torch.tanh(self.read(x)).roll(1, 0))


class Opposite(Centred):
    """Lets each sample see the one half a batch away, whose place differs from its own in one bit."""

    def forward(self, x):
        return self.write(torch.tanh(self.read(x)) + 0.1 * torch.tanh(self.read(x)).roll(len(x) // 2, 0))


COUPLED = {"x - x.mean(0)": Centred, "F.batch_norm": Functional, "a roll": Mixing, "half a batch away": Opposite}


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("model", COUPLED.values(), ids=COUPLED)
def test_a_model_that_couples_samples_is_refused(model, strategy):
    network = small(model(), strategy=strategy)
    rounds, evaluation = window(network, 1), influence.evaluate_on(network)
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    assert influence.by_participant(rounds[0], adjoint).isfinite().all()
    for score in (
        lambda: influence.by_sample(network, rounds[0], adjoint),
        lambda: influence.truth_of_samples(network, rounds, evaluation, 0),
        lambda: influence.shares_of_samples(network, rounds, evaluation),
        lambda: list(influence.full_horizon(network, rounds, evaluation)),
    ):
        with pytest.raises(ValueError, match="depends on the other samples of its batch"):
            score()


COUPLING = {
    "pairs of outputs": lambda outputs, y: (outputs[:4] - outputs[4:]).square().mean(),
    "pairs next to one another": lambda outputs, y: (outputs[::2] - outputs[1::2]).square().mean(),
    "another's target": lambda outputs, y: F.cross_entropy(outputs, y.roll(2)),
    "a maximum": lambda outputs, y: F.cross_entropy(outputs, y, reduction="none").logsumexp(0),
}


@pytest.mark.parametrize("loss", COUPLING.values(), ids=COUPLING)
def test_a_loss_that_couples_samples_is_refused(loss):
    network = small(loss=loss, batch_size=8)
    rounds, evaluation = window(network, 1), influence.evaluate_on(network, measure=losses.cross_entropy)
    with pytest.raises(ValueError, match="a sample's term depends on the other samples"):
        influence.shares_of_samples(network, rounds, evaluation)


@given(st.integers(2, 70))
def test_each_sample_is_changed_while_any_other_is_not(batch):
    masks = torch.stack(list(checks._halves(batch, torch.device("cpu"))))
    apart = (masks[:, :, None] & ~masks[:, None, :]).any(0)
    assert torch.equal(apart, ~torch.eye(batch, dtype=torch.bool))
    assert len(masks) <= 2 * math.ceil(math.log2(batch))


def test_norms_within_a_sample_are_fine():
    network = small(smooth(nn.LayerNorm(4)))
    rounds = window(network, 1)
    adjoint = influence.reverse_gossip(network, rounds, influence.evaluate_on(network))
    scores = influence.by_sample(network, rounds[0], adjoint)
    torch.testing.assert_close(scores.sum(1), influence.by_participant(rounds[0], adjoint), **CLOSE)


def test_weights_on_samples_scale_their_terms():
    """∂/∂α_i of a step is minus the rate times what sample i adds to the gradient, for any α."""
    from cascadice.engine import Operator
    from cascadice.engine.networks import Weights
    from cascadice.engine.rounds import Adjoint

    network = small()
    (round_,) = window(network, 1)
    draw = torch.Generator().manual_seed(1)
    alpha = torch.rand(round_.draw.batch.shape, generator=draw, dtype=torch.float64)
    direction = torch.randn(alpha.shape, generator=draw, dtype=torch.float64)
    zero = Adjoint(torch.zeros_like(round_.before.theta), {})
    operator = Operator(network)
    half, tangent = operator.push_rows(
        round_.draw, round_.before, zero, None, Weights(samples=(alpha,)), Weights(samples=(direction,))
    )
    step = 1e-5
    ends = [
        operator.work(round_.draw, round_.before, None, Weights(samples=(alpha + sign * step * direction,)))[0].theta
        for sign in (1, -1)
    ]
    torch.testing.assert_close(tangent.theta, (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(
        half.theta, operator.work(round_.draw, round_.before, None, Weights(samples=(alpha,)))[0].theta
    )
