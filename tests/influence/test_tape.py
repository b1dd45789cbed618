"""Scores from what the layers noted: equal to those that know nothing of layers, and refused where they are not."""

from dataclasses import replace

import pytest
import torch
from engine import cases as engine_cases
from engine.rows import known_layers
from influence.cases import CLOSE, FEATURES, NODES, small, smooth, window
from torch import nn
from torch.nn import functional as F

from cascadice import optimizers
from cascadice.engine import Behaviour, Operator, draw, load, simulate
from cascadice.engine.fast.eager import eager_step
from cascadice.engine.fast.tape import eager_directional, generic_directional, pure_directional
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, full_horizon, reverse_gossip


class Doubled(nn.Module):
    """Calls one layer twice, and has a norm."""

    def __init__(self):
        super().__init__()
        self.read, self.again = nn.Linear(FEATURES, 4), nn.Linear(4, 4)
        self.norm, self.write = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.write(self.norm(torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.read(x))))))))


class Borrowing(nn.Module):
    """Uses the parameters of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(FEATURES, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.write(torch.tanh(F.linear(torch.tanh(self.read(x)) @ self.read.weight, self.read.weight)))


class Loose(nn.Module):
    """Has a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.read, self.scale = nn.Linear(FEATURES, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.scale * torch.tanh(self.read(x))


def in_place():
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.ELU(inplace=True), nn.Linear(4, 3))


def along(network, hvp=True):
    """Layer by layer, by hand and by torch.func, and without knowing layers: scores and Hessian products."""
    drawn = draw(network, 0)
    layers = known_layers(network, drawn)
    inputs = load(network, drawn, [0])
    theta = network.initial.theta[0]
    direction = torch.linspace(-1, 1, len(theta), dtype=theta.dtype).cos()
    arguments = (theta, {}, inputs.x[0, 0], inputs.y[0, 0], (), direction, True, hvp)
    with torch.no_grad():
        return (
            eager_directional(layers, layers.learner.twin(), *arguments),
            pure_directional(layers, layers.learner, *arguments),
            generic_directional(network.learner, *arguments),
        )


MODELS = {
    "mlp": lambda: small(smooth()),
    "a layer twice": lambda: small(Doubled()),
    "cnn": lambda: engine_cases.make("cnn"),
    "resnet18": lambda: engine_cases.make("resnet18"),
    "transformer": lambda: engine_cases.make("transformer"),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_by_layers_equals_without_layers(make):
    eager, pure, generic = along(make())
    for (found, bent), way in ((eager, "eager"), (pure, "pure")):
        torch.testing.assert_close(found, generic[0], rtol=1e-9, atol=1e-12, msg=lambda m, way=way: f"{way}: {m}")
        torch.testing.assert_close(bent, generic[1], rtol=1e-8, atol=1e-10, msg=lambda m, way=way: f"{way}: {m}")
    assert generic[1].abs().max() > 1e-6


UNKNOWN = {"parameters used elsewhere": Borrowing, "a parameter outside layers": Loose, "in place": in_place}


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_where_layers_are_not_enough_scores_still_add_up(make, strategy):
    network = small(make(), strategy=strategy)
    rounds = window(network, 2)
    worth = reverse_gossip(network, rounds, evaluate_on(network))
    found = by_sample(network, rounds[0], worth)
    torch.testing.assert_close(found.sum(1), by_participant(rounds[0], worth), **CLOSE)
    if make is not in_place or strategy == "loop":  # inside torch.func what is changed in place is a sum of its own
        assert known_layers(network, rounds[0].draw) is None


def test_layers_are_verified_for_each_strategy():
    """What is changed in place is right inside torch.func, and wrong outside it."""
    network = small(in_place(), strategy="vmap")
    loop = replace(network, strategy="loop")
    assert known_layers(network, draw(network, 0)) is not None
    assert known_layers(loop, draw(loop, 0)) is None


def test_training_goes_on_after_a_pass_that_was_interrupted():
    network = small(strategy="loop")
    layers = known_layers(network, draw(network, 0))
    x, y, *_ = load(network, draw(network, 0), [0])
    mine, own = network.initial.theta[0], layers.learner.twin()
    with pytest.raises(RuntimeError):
        eager_directional(layers, own, mine, {}, x[0, 0, :, 1:], y[0, 0], (), mine, True, False)
    with torch.no_grad():
        tapes = []
        eager_step(own, tapes)(mine, {}, {}, x[0, 0], y[0, 0], torch.tensor(0.1, dtype=torch.float64), (), None)
    assert len(tapes[0]) == len(layers.names)


def test_remembered_gradients_are_not_confused_with_those_of_another_place():
    network = small()
    operator = Operator(network)
    rounds, yardstick = window(network, 1), evaluate_on(network)
    for scale in (0.5, 2.0):
        direct = scale * rounds[0].before.theta
        expected = reverse_gossip(network, rounds, yardstick, direct=direct).theta
        torch.testing.assert_close(
            reverse_gossip(network, rounds, yardstick, direct=direct, operator=operator).theta, expected, **CLOSE
        )


def test_a_convolution_in_the_precision_of_the_pass():
    eager, pure, generic = along(engine_cases.make("cnn", dtype="bfloat16"), hvp=False)
    scale = generic[0].abs().max()
    for found, _ in (eager, pure):
        torch.testing.assert_close(found.to(generic[0].dtype) / scale, generic[0] / scale, rtol=0, atol=0.05)


RULES = {
    "sgd": optimizers.sgd(),
    "momentum": optimizers.momentum(weight_decay=0.1),
    "adam": optimizers.adam(eps=1e-3),
}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, strategy) for name in RULES for strategy in ("loop", "vmap")),
        ("sgd", "compile"),
        *(pytest.param(name, "compile", marks=pytest.mark.slow) for name in ("momentum", "adam")),
    ],
)
def test_a_taped_round_has_the_same_parameters_and_scores(name, strategy, compiler, unchecked):
    network = small(
        optimizer=RULES[name], strategy=strategy, behaviours=[Behaviour("sign-flipper", (1,), strength=2.0)]
    )
    plain, taped = list(simulate(network, 4)), list(simulate(network, 4, taped=True))
    assert all(done.tape for done in taped)
    for one, other in zip(plain, taped, strict=True):
        torch.testing.assert_close(one.after.theta, other.after.theta, **CLOSE)
    worth = reverse_gossip(network, taped[2:], evaluate_on(network))
    found = by_sample(network, taped[2], worth)
    torch.testing.assert_close(found, by_sample(network, plain[2], worth), **CLOSE)
    assert found.shape == (NODES, 4)


def test_taped_rounds_keep_their_tapes_in_a_window():
    network = small()
    everything = list(simulate(network, 5, taped=True))
    worth = reverse_gossip(network, everything[2:4], evaluate_on(network))
    expected = by_sample(network, everything[2], worth)
    kept = []
    for done in simulate(network, 5, taped=True, window=1):
        kept = [*kept[-1:], done]
        if done.t == 3:
            torch.testing.assert_close(by_sample(network, kept[0], worth), expected, **CLOSE)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_full_horizon_is_the_last_hop_of_the_first_order(rule, strategy):
    network = small(optimizer=rule, strategy=strategy)
    rounds, yardstick = list(simulate(network, 4)), evaluate_on(network)
    found = {scored.t: scored for scored in full_horizon(network, reversed(rounds), yardstick)}
    assert sorted(found) == [0, 1, 2, 3]
    for t, scored in found.items():
        expected = first_order(network, rounds[t:], yardstick).value[-1].sum(-1)
        torch.testing.assert_close(scored.participants, expected, **CLOSE)
        if rule.linear and not rule.descend:
            continue  # with weight decay, not all of an update is its samples'
        if rule.linear:
            torch.testing.assert_close(scored.samples.sum(1), expected, **CLOSE)


def test_the_full_horizon_goes_back_one_by_one():
    network = small()
    rounds = list(simulate(network, 4))
    with pytest.raises(ValueError, match=r"must be consecutive; round 0 is followed by 3"):
        list(full_horizon(network, [rounds[3], rounds[0]], evaluate_on(network)))
