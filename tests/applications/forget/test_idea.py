"""Forgetting is training again without; estimates of it are derivatives of training, or exact where nothing bends."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from influence.cases import CLOSE, FEATURES, NODES, small, smooth, window
from torch import nn

from cascadice import learning_rates
from cascadice.applications.forget.idea import LEVELS, Removal, forget, repair
from cascadice.applications.forget.removals import part_of
from cascadice.applications.forget.traces import distance
from cascadice.engine import Behaviour, Operator, Participants, evaluate, load, mix, module_of, simulate
from cascadice.engine.exchange.stacked import Averaging

ROUNDS = 3
ESTIMATES = ("gossip", "first-order", "path-integrated")
PARTICIPANT, BATCH = Removal(nodes=(1,)), Removal(nodes=(2,), rounds=range(3, 4))


def some_samples(rounds, node=1, count=2):
    """A few samples of one participant's first batch, whoever else draws them and whenever."""
    return Removal(samples=tuple(rounds[0].draw.batch[node, 0, :count].tolist()))


def trained_with(network, rounds, removal, alpha):
    """Algorithm 1 again, participant by participant by plain autograd, with the weight α on what is forgotten."""
    now = rounds[0].before
    for round_ in rounds:
        part = part_of(removal, round_.draw, network.nodes)
        inputs = load(network, round_.draw)
        rows = []
        for k in range(network.nodes):
            theta, state = now.theta[k], {name: value[k] for name, value in now.state.items()}
            share = alpha if part.updates[k] else 1.0
            for x, y, gone in zip(inputs.x[k], inputs.y[k], part.samples[k], strict=True):
                gradient = gradient_of(network, theta, x, y, torch.where(gone, alpha, 1.0))
                delta, state = network.learner.optimizer.update(gradient, state, theta, inputs.lr[k])
                theta = theta + delta
            taken, factor = (c[k] for c in round_.draw.conduct) if round_.draw.conduct else (1.0, 1.0)
            noise = round_.half.theta[k] - round_.before.theta[k] if float(taken) == 0 else 0.0
            theta = now.theta[k] + share * (taken * factor * (theta - now.theta[k]) + noise)
            state = {n: now.state[n][k] + share * taken * (v - now.state[n][k]) for n, v in state.items()}
            rows.append((theta, state))
        half = Participants(
            torch.stack([theta for theta, _ in rows]),
            {name: torch.stack([state[name] for _, state in rows]) for name in now.state},
            {},
        )
        now = mix(round_.W, half)
    return now


def gradient_of(network, theta, x, y, weights):
    module = module_of(network, Participants(theta[None], {}, {}), 0).train()
    each = nn.functional.cross_entropy(module(x), y, reduction="none")
    pieces = torch.autograd.grad((weights * each).sum() / len(y), list(module.parameters()))
    return torch.cat([piece.flatten() for piece in pieces])


NETWORKS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adamw": {"optimizer": "adamw", "lr": 0.05},
    "two steps": {"local_steps": 2, "optimizer": "momentum"},
    "loop": {"strategy": "loop", "optimizer": "nesterov"},
    "rates": {"lr": lambda t: torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64) / (1 + t)},
    "sign flipper": {"optimizer": "momentum", "behaviours": [Behaviour("sign-flipper", (1,), strength=2.0)]},
    "noise sender": {"behaviours": [Behaviour("noise-sender", (1, 3), strength=0.01)]},
    "free-rider": {"optimizer": "momentum", "behaviours": [Behaviour("free-rider", (0,))]},
    # nobody hears itself: after a batch is forgotten, what stays changed of its participant is the momentum alone
    "state alone": {"optimizer": "momentum", "mixing": torch.eye(NODES, dtype=torch.float64).roll(1, 0)},
}
REMOVALS = {"participant": lambda rounds: PARTICIPANT, "batch": lambda rounds: BATCH, "samples": some_samples}
SAMPLES = ("sgd", "adamw", "two steps", "loop", "sign flipper", "free-rider")
BATCHES = ("momentum", "state alone")
CASES = [
    *((name, "samples") for name in SAMPLES),
    *((name, "participant") for name in NETWORKS),
    *((name, "batch") for name in BATCHES),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_replay_is_training_again_without(name, kind):
    network = small(**NETWORKS[name])
    rounds = window(network, ROUNDS)
    removal = REMOVALS[kind](rounds)
    corrected = forget(network, iter(rounds), removal, "replay")
    expected = trained_with(network, rounds, removal, 0.0)
    torch.testing.assert_close(corrected.participants.theta, expected.theta, **CLOSE)
    torch.testing.assert_close(corrected.participants.state, expected.state, **CLOSE)
    assert (corrected.participants.theta - rounds[-1].after.theta).norm() > 1e-4
    assert corrected.t == rounds[-1].t + 1


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_first_order_is_the_derivative_of_training(name, kind):
    network, step = small(**NETWORKS[name]), 1e-3
    rounds = window(network, ROUNDS)
    removal = REMOVALS[kind](rounds)
    corrected = forget(network, rounds, removal, "first-order").participants.theta
    at = {alpha: trained_with(network, rounds, removal, alpha).theta for alpha in (1 + step, 1 - step)}
    gradient = (at[1 + step] - at[1 - step]) / (2 * step)
    assert gradient.norm() > 1e-4
    torch.testing.assert_close(corrected, rounds[-1].after.theta - gradient, rtol=0, atol=1e-5 * float(gradient.norm()))


PATHS = [("sgd", "samples"), ("two steps", "samples"), ("adamw", "participant"), ("noise sender", "participant")]


@pytest.mark.parametrize(("name", "kind"), PATHS)
def test_path_integrals_converge_to_replay(name, kind):
    network = small(**NETWORKS[name])
    rounds = window(network, ROUNDS)
    removal = REMOVALS[kind](rounds)
    replayed, trained = forget(network, rounds, removal, "replay").participants, rounds[-1].after

    def left(level, points=1):
        return distance(forget(network, rounds, removal, level, points).participants, trained, replayed)

    first, one, three = left("first-order"), left("path-integrated", 1), left("path-integrated", 3)
    assert one < first / 2
    assert three < one / 20
    assert three < 1e-3


@pytest.mark.parametrize(("optimizer", "kind"), [("sgd", "participant"), ("sgd", "batch"), ("nesterov", "samples")])
def test_where_nothing_bends_all_levels_are_exact(optimizer, kind):
    """A loss that is linear in the parameters has no Hessian: then W, and what momentum keeps, are all there is.

    Whole updates only of SGD: to skip a step is to skip the decay of old momentum, which is not linear in α.
    """
    network = small(nn.Linear(FEATURES, 3), loss=lambda outputs, y: outputs[..., 0].mean(), optimizer=optimizer)
    rounds = window(network, ROUNDS)
    exact = forget(network, rounds, REMOVALS[kind](rounds), "replay").participants
    assert (exact.theta - rounds[-1].after.theta).norm() > 1e-3
    for level in ESTIMATES:
        corrected = forget(network, rounds, REMOVALS[kind](rounds), level).participants
        torch.testing.assert_close(corrected.theta, exact.theta, **CLOSE)
        torch.testing.assert_close(corrected.state, exact.state, **CLOSE)


def test_gossip_is_products_of_w():
    network = small()
    rounds = window(network, ROUNDS)
    off = torch.zeros_like(rounds[0].before.theta)
    for t, round_ in enumerate(rounds):
        change = torch.zeros_like(off)
        change[1] = round_.update[1]
        for later in rounds[t:]:
            change = later.W.to_dense() @ change
        off += change
    corrected = forget(network, rounds, PARTICIPANT, "gossip")
    torch.testing.assert_close(corrected.participants.theta, rounds[-1].after.theta - off, **CLOSE)


class Counted:
    """The exchange in memory, counting its calls."""

    def __init__(self):
        self.inner, self.calls = Averaging(), Counter()

    def __getattr__(self, name):
        def call(*args):
            self.calls[name] += 1
            return getattr(self.inner, name)(*args)

        return call


@pytest.mark.parametrize("level", LEVELS)
def test_corrections_go_through_the_exchange_of_the_operator(level):
    network = small()
    rounds, exchange = window(network, ROUNDS), Counted()
    operator = Operator(network, exchange)
    corrected = forget(network, rounds, PARTICIPANT, level, operator=operator)
    expected = {"replay": {"apply"}, "gossip": {"push"}, "first-order": {"push"}, "path-integrated": {"push", "apply"}}
    assert set(exchange.calls) == expected[level]
    assert min(exchange.calls.values()) >= ROUNDS
    torch.testing.assert_close(
        corrected.participants, forget(network, rounds, PARTICIPANT, level).participants, **CLOSE
    )
    before = exchange.calls["apply"]
    repair(network, corrected, PARTICIPANT, 2, operator=operator)
    assert exchange.calls["apply"] == before + 2


def test_gossip_of_whole_updates_needs_no_data():
    network = small(optimizer="momentum")
    rounds = window(network, ROUNDS)
    corrected = forget(network, rounds, PARTICIPANT, "gossip").participants
    unreadable = replace(network.data.train, x=torch.full_like(network.data.train.x, torch.nan))
    blind = replace(network, data=replace(network.data, train=unreadable))
    parts = ((round_, part_of(PARTICIPANT, round_.draw, NODES)) for round_ in rounds)
    torch.testing.assert_close(LEVELS["gossip"].correct(Operator(blind), parts, 1), corrected, **CLOSE)
    # that the rounds are this network's is looked at once, with data
    with pytest.raises(ValueError, match="gives different parameters"):
        forget(blind, rounds, PARTICIPANT, "gossip")


def test_gossip_forgets_in_models_with_masks():
    model = nn.Sequential(nn.Linear(FEATURES, 3))
    model[0].register_buffer("mask", torch.tensor([True, False]))
    masked = small(model=model)
    rounds = window(masked, ROUNDS)
    plain = small(model=nn.Sequential(nn.Linear(FEATURES, 3)))
    bare = [
        round_._replace(before=bare_of(round_.before), half=bare_of(round_.half), after=bare_of(round_.after))
        for round_ in rounds
    ]
    expected = forget(plain, bare, PARTICIPANT, "gossip").participants
    torch.testing.assert_close(
        forget(masked, rounds, PARTICIPANT, "gossip").participants.theta, expected.theta, **CLOSE
    )


def bare_of(participants):
    return participants._replace(buffers={})


@pytest.mark.parametrize("level", ["gossip", "first-order"])
def test_contributions_superpose(level):
    network = small(optimizer="momentum")
    rounds = window(network, ROUNDS)
    trained = rounds[-1].after.theta

    def correction(removal):
        return trained - forget(network, rounds, removal, level).participants.theta

    both, apart = correction(Removal(nodes=(0, 2))), correction(Removal(nodes=(0,))) + correction(Removal(nodes=(2,)))
    torch.testing.assert_close(both, apart, **CLOSE)
    early, late = (correction(Removal(nodes=(1,), rounds=part)) for part in (range(2, 4), range(4, 5)))
    torch.testing.assert_close(correction(PARTICIPANT), early + late, **CLOSE)


def test_halving_the_rate_quarters_the_error_of_first_order():
    trained = small(lr=0.1)
    start, errors = list(simulate(trained, 3))[-1].after, []
    for lr in (4e-3, 2e-3):
        network = replace(trained, lr=learning_rates.constant(lr))
        rounds = list(simulate(network, 7, start=3, participants=start))
        corrected, exact = (
            forget(network, rounds, PARTICIPANT, level).participants for level in ("first-order", "replay")
        )
        errors.append(float((corrected.theta - exact.theta).norm()))
    assert 3.6 < errors[0] / errors[1] < 4.4


@pytest.mark.parametrize("level", LEVELS)
def test_only_whom_it_reached_is_touched(level):
    network = small(mixing=torch.eye(NODES, dtype=torch.float64).roll(1, 0))
    rounds = window(network, 2)
    corrected = forget(network, rounds, Removal(nodes=(0,), rounds=range(2, 3)), level).participants.theta
    changed = (corrected - rounds[-1].after.theta).abs().amax(1) > 1e-12
    assert changed.tolist() == [False, False, True, False]


@pytest.mark.parametrize("level", LEVELS)
def test_the_only_sample_of_a_batch_is_the_whole_update(level):
    network = small(batch_size=1)
    rounds = window(network, ROUNDS)
    drawn = tuple(int(round_.draw.batch[1, 0, 0]) for round_ in rounds)
    samples = forget(network, rounds, Removal(nodes=(1,), samples=drawn), level)
    whole = forget(network, rounds, PARTICIPANT, level)
    torch.testing.assert_close(samples.participants.theta, whole.participants.theta, **CLOSE)
    assert (samples.updates, whole.updates, int(samples.uses.sum())) == (0, ROUNDS, ROUNDS)


def test_counts_what_was_left_out():
    network = small()
    rounds = list(simulate(network, 9))  # three epochs
    removal = some_samples(rounds, count=3)
    corrected = forget(network, rounds, removal, "gossip")
    drawn = torch.stack([round_.draw.batch for round_ in rounds]).flatten()
    assert corrected.uses.tolist() == [int((drawn == sample).sum()) for sample in removal.samples]
    assert corrected.updates == 0
    assert int(corrected.uses.min()) >= 2


def test_samples_of_those_who_do_not_work_are_not_used():
    network = small(behaviours=[Behaviour("free-rider", (1,))])
    rounds = window(network, 2)
    removal = Removal(nodes=(1,), samples=some_samples(rounds).samples)
    with pytest.raises(ValueError, match="participants 1 did not use any of these samples in rounds 2 to 3"):
        forget(network, rounds, removal)


def test_dropout_is_forgotten_by_the_masks_that_were_drawn():
    network = small(smooth(nn.Dropout(0.5)), strategy="loop", batch_size=1)
    rounds = window(network, ROUNDS)
    drawn = tuple(int(round_.draw.batch[1, 0, 0]) for round_ in rounds)
    samples = forget(network, rounds, Removal(nodes=(1,), samples=drawn), "replay").participants.theta
    replayed = forget(network, rounds, PARTICIPANT, "replay").participants.theta
    torch.testing.assert_close(samples, replayed, **CLOSE)
    estimate = forget(network, rounds, PARTICIPANT, "path-integrated").participants.theta
    assert torch.dist(estimate, replayed) < 0.01 * torch.dist(rounds[-1].after.theta, replayed)
    untouched = Removal(samples=tuple(set(range(48)) - set(drawn)))
    kept = forget(network, rounds, replace(untouched, nodes=(1, 2)), "replay")
    assert int(kept.uses.sum()) == ROUNDS


def test_repair_is_training_on_without():
    network = small(optimizer="momentum")
    rounds = window(network, ROUNDS)
    corrected = forget(network, rounds, BATCH, "replay")
    repaired = repair(network, corrected, BATCH, 3)
    idle = replace(network, behaviours=(Behaviour("free-rider", (2,)),))
    *_, wanted = simulate(idle, corrected.t + 3, start=corrected.t, participants=corrected.participants)
    torch.testing.assert_close(repaired.participants, wanted.after, **CLOSE)
    assert (repaired.t, repaired.updates) == (corrected.t + 3, corrected.updates)
    assert repair(network, corrected, BATCH, 0) == corrected


def test_running_statistics_are_replayed_too():
    network = small(smooth(nn.BatchNorm1d(4)))
    rounds = window(network, ROUNDS)
    corrected = forget(network, rounds, PARTICIPANT, "replay").participants
    idle = replace(network, behaviours=(Behaviour("free-rider", (1,)),))
    *_, wanted = simulate(idle, rounds[-1].t + 1, start=rounds[0].t, participants=rounds[0].before)
    torch.testing.assert_close(corrected, wanted.after, **CLOSE)
    assert forget(network, rounds, PARTICIPANT, "first-order").participants.theta.isfinite().all()


def test_adam_can_go_on_from_a_first_order_correction():
    network = small(optimizer="adam", lr=0.05)
    rounds = window(network, ROUNDS)
    corrected = repair(network, forget(network, rounds, PARTICIPANT, "first-order"), PARTICIPANT, 5)
    assert corrected.participants.theta.isfinite().all()
    assert evaluate(network, corrected.participants).loss.max() < 3


def test_corrections_are_of_the_precision_of_the_run():
    network = small(optimizer="adam", lr=0.05, dtype=torch.float32)
    corrected = forget(network, window(network, 2), Removal(nodes=(1,)), "first-order").participants
    assert {value.dtype for value in (corrected.theta, *corrected.state.values())} == {torch.float32}
