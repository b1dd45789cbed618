"""The parts of a round, each applied, pushed and pulled: derivatives against finite differences and transposes."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small
from torch.testing import assert_close

from cascadice import influence
from cascadice.engine import Behaviour, Operator, draw, simulate
from cascadice.engine.exchange.stacked import Averaging
from cascadice.engine.networks import Weights
from cascadice.engine.rounds import Adjoint, Perturbation, rows_of

CASES = {
    "sgd": {},
    "adam": {"optimizer": "adam", "lr": 0.05},
    "two local steps": {"local_steps": 2, "optimizer": "momentum"},
    "a sign flipper": {"behaviours": [Behaviour("sign-flipper", (1,), strength=0.5)]},
    "top-k": {"compression": "top-k"},
    "different optimizers": {"optimizer": ["sgd", "momentum", "adam", "sgd"], "batch_size": [4, 2, 3, 4]},
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def played(request):
    """A network and its third round."""
    network = small(**request.param)
    *_, last = simulate(network, 3)
    return Operator(network), last


def random_like(participants, seed):
    generator = torch.Generator().manual_seed(seed)

    def rows(tensor):
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)

    return Adjoint(rows(participants.theta), {name: rows(value) for name, value in participants.state.items()})


def as_change(adjoint, scale=1.0):
    everyone = torch.arange(NODES)
    state = {name: scale * value for name, value in adjoint.state.items()}
    return Perturbation(everyone, everyone, scale * adjoint.theta, state)


def inner(one, other):
    states = sum(float((one.state[name] * other.state[name]).sum()) for name in one.state)
    return float((one.theta * other.theta).sum()) + states


def test_apply_is_the_round_that_training_made(played):
    operator, round_ = played
    again = operator.apply(draw(operator.network, round_.t), round_.before)
    assert_close(again.half.theta, round_.half.theta, **CLOSE)
    assert_close(again.after.theta, round_.after.theta, **CLOSE)


def test_push_is_the_derivative_of_replay(played):
    operator, round_ = played
    direction, step = random_like(round_.before, 1), 1e-6
    direction = direction._replace(state={name: torch.zeros_like(value) for name, value in direction.state.items()})
    ahead, behind = (operator.replay(round_, as_change(direction, sign * step)).theta for sign in (1, -1))
    assert_close(operator.push(round_, as_change(direction)).theta, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


def test_pull_is_the_transpose_of_push(played):
    operator, round_ = played
    change, adjoint = random_like(round_.before, 2), random_like(round_.after, 3)
    half = operator.push(round_, as_change(change))
    after = Adjoint(round_.W @ half.theta, half.state)
    pulled = operator.pull(round_, adjoint)
    assert inner(adjoint, after) == pytest.approx(inner(pulled, change), rel=1e-9)


def test_a_weight_of_zero_leaves_the_update_out_and_one_leaves_all_as_it_was(played):
    operator, round_ = played
    alpha = torch.tensor([0.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    half, _, _ = operator.work(round_.draw, round_.before, None, Weights(updates=(alpha,)))
    assert_close(half.theta, round_.before.theta + alpha[:, None] * round_.update, **CLOSE)


class Counted(Averaging):
    """Averages as ever, and counts how often it was asked."""

    def __init__(self):
        self.calls = {"apply": 0, "replay": 0, "push": 0, "pull": 0}

    def apply(self, *arguments):
        self.calls["apply"] += 1
        return super().apply(*arguments)

    def replay(self, *arguments):
        self.calls["replay"] += 1
        return super().replay(*arguments)

    def push(self, *arguments):
        self.calls["push"] += 1
        return super().push(*arguments)

    def pull(self, *arguments):
        self.calls["pull"] += 1
        return super().pull(*arguments)


def test_the_exchange_is_an_argument_of_training_and_of_every_estimator():
    network, exchange = small(), Counted()
    operator = Operator(network, exchange)
    rounds = list(simulate(network, 4, operator=operator))
    assert exchange.calls["apply"] == 4
    evaluation = influence.evaluate_on(network)
    for estimate in (influence.truth, influence.first_order, influence.path_integrated):
        torch.testing.assert_close(
            estimate(network, rounds[1:], evaluation, operator=operator).value,
            estimate(network, rounds[1:], evaluation).value,
        )
    influence.reverse_gossip(network, rounds[1:], evaluation, operator=operator)
    list(influence.full_horizon(network, reversed(rounds), evaluation, operator=operator))
    points, hops = 2, 3
    assert exchange.calls == {
        "apply": 4,
        "replay": hops + points * hops,
        "push": hops + points * hops,
        "pull": hops + 4,
    }


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "lr": 0.05, "local_steps": 2},
        {"behaviours": [Behaviour("sign-flipper", (1,), strength=1.5)], "optimizer": "momentum", "lr": 0.1},
        {"behaviours": [Behaviour("free-rider", (2,))], "optimizer": "adam", "lr": 0.05, "compression": "8-bit"},
        {"optimizer": ["sgd", "adam", "momentum", "sgd"], "lr": [0.3, 0.02, 0.1, 0.2], "batch_size": [4, 3, 2, 4]},
    ],
    ids=["sgd", "adam", "flipped", "free-riding", "different"],
)
def test_pull_of_some_rows_with_weights_is_push_transposed(options, strategy):
    """⟨push(δ), λ⟩ = ⟨δ, pull(λ)⟩ for any rows, one of them twice, and any weights on updates and samples."""
    network = small(**options, strategy=strategy)
    *_, round_ = simulate(network, 3)
    operator, nodes = Operator(network), [2, 0, 2, 1]
    generator = torch.Generator().manual_seed(4)

    def random(like):
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    before = rows_of(round_.before, nodes)
    before = before._replace(theta=before.theta + 0.01 * random(before.theta))
    shape = (len(nodes), *round_.draw.batch.shape[1:])
    weights = Weights(
        (torch.rand(len(nodes), generator=generator, dtype=torch.float64),),
        (torch.rand(shape, generator=generator, dtype=torch.float64),),
    )
    change, adjoint = (Adjoint(random(before.theta), {n: random(v) for n, v in before.state.items()}) for _ in range(2))
    used = {name: torch.tensor([keeps(network, k, name) for k in nodes]) for name in before.state}
    for pair in (change, adjoint):  # an optimizer's state is part of what its own participants carry
        for name, rows in used.items():
            pair.state[name][~rows] = 0
    sent, pushed = operator.push_rows(round_.draw, before, change, nodes, weights)
    pulled, _, _ = operator.pull_rows(round_.draw, before, sent, adjoint, nodes, weights, scores=False)
    for pair in (pushed, pulled):
        for name, rows in used.items():
            pair.state[name][~rows] = 0
    assert_close(product(pushed, adjoint), product(change, pulled), rtol=1e-9, atol=1e-12)


def keeps(network, k, name):
    """Whether the optimizer of participant k keeps this part of the state."""
    return not network.groups or any(k in group.nodes and name in group.state for group in network.groups)


def product(one, other):
    """⟨one, other⟩ over parameters and state."""
    return (one.theta * other.theta).sum() + sum((one.state[name] * other.state[name]).sum() for name in one.state)
