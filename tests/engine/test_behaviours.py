"""Misbehaving and absent participants, and corrupted data: what they do, in which rounds, and to nobody else."""

import pytest
import torch
from engine.cases import CLOSE, equal, last, make
from torch import nn
from torch.utils._pytree import tree_map

from cascadice import topology
from cascadice.data.corruption import Corruption
from cascadice.engine.behaviours import BEHAVIOURS, Behaviour, conduct
from cascadice.engine.networks import draw, load
from cascadice.engine.operator import Operator
from cascadice.engine.simulation import simulate

WIDE = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.Linear(100, 4))
STRATEGIES = pytest.mark.parametrize("strategy", ["loop", "vmap"])


def pair(behaviour, rounds=1, **options):
    """The same run without and with a behaviour of participant 2."""
    usual = {"optimizer": "momentum", "local_steps": 2, "nodes": 4, "mixing": "ring"} | options
    return last(make(**usual), rounds), last(make(behaviours=[behaviour], **usual), rounds)


def honest_alike(plain, bent):
    """In the round in which the bad start, the others' work is the same to the last bit."""
    keep = [0, 1, 3]
    return (
        torch.equal(plain.half.theta[keep], bent.half.theta[keep])
        and torch.equal(plain.loss, bent.loss)
        and torch.equal(plain.half.state["momentum"][keep], bent.half.state["momentum"][keep])
    )


@STRATEGIES
def test_a_free_rider_sends_what_it_has(strategy):
    plain, bent = pair(Behaviour("free-rider", (2,)), strategy=strategy)
    assert torch.equal(bent.half.theta[2], bent.before.theta[2])
    assert not torch.equal(plain.half.theta[2], bent.half.theta[2])
    assert torch.equal(bent.half.state["momentum"][2], bent.before.state["momentum"][2])
    assert honest_alike(plain, bent)


@STRATEGIES
def test_a_sign_flipper_sends_its_update_negated(strategy):
    plain, bent = pair(Behaviour("sign-flipper", (2,), strength=2.5), strategy=strategy)
    expected = plain.before.theta[2] - 2.5 * plain.update[2]
    torch.testing.assert_close(bent.half.theta[2], expected, **CLOSE)
    assert torch.equal(bent.half.state["momentum"][2], plain.half.state["momentum"][2])
    assert honest_alike(plain, bent)


@STRATEGIES
def test_a_noise_sender_sends_noise_of_that_variance_in_place_of_its_update(strategy):
    plain, bent = pair(Behaviour("noise-sender", (2,), strength=9.0), strategy=strategy, name=WIDE)
    sent = bent.update[2]
    assert len(sent) > 5000
    assert float(sent.var()) == pytest.approx(9, rel=0.1)
    assert abs(float(sent.mean())) < 0.2
    assert torch.equal(bent.half.state["momentum"][2], bent.before.state["momentum"][2])
    assert honest_alike(plain, bent)


def test_noise_is_drawn_anew_each_round_and_repeats_with_the_seed():
    net = make(behaviours=[Behaviour("noise-sender", (1, 2))])
    one, again = list(simulate(net, 2)), list(simulate(net, 2))
    assert equal(one[1].half, again[1].half)
    assert not torch.equal(one[0].update[2], one[1].update[2])
    assert not torch.equal(one[0].update[1], one[0].update[2])
    other = last(make(behaviours=[Behaviour("noise-sender", (1, 2))], seed=4), 1)
    assert not torch.equal(other.update[2], one[0].update[2])


def test_noise_and_window():
    net = make(behaviours=[Behaviour("noise-sender", (2,))])
    assert equal(last(net, 6).after, last(net, 6, window=1).after)


@STRATEGIES
def test_the_absent_neither_work_nor_hear_nor_are_heard(strategy):
    plain, bent = pair(Behaviour("absent", (2,)), strategy=strategy)
    assert torch.equal(bent.after.theta[2], bent.before.theta[2])
    assert torch.equal(bent.after.state["momentum"][2], bent.before.state["momentum"][2])
    assert bent.W[2].tolist() == [0, 0, 1, 0]
    assert bent.W[[0, 1, 3], 2].tolist() == [0, 0, 0]
    torch.testing.assert_close(bent.W.sum(1), torch.ones(4, dtype=torch.float64))
    kept = plain.W.clone()
    kept[[0, 1, 3], 2] = 0
    torch.testing.assert_close(bent.W[[0, 1, 3]], (kept / kept.sum(1, keepdim=True))[[0, 1, 3]])
    assert honest_alike(plain, bent)


def test_what_the_absent_hold_reaches_nobody():
    away = Behaviour("absent", (2,))
    net = make(behaviours=[away])
    theta = net.initial.theta.clone()
    theta[2] += 1
    one, other = last(net, 4), last(make(behaviours=[away], init=theta), 4)
    assert torch.equal(one.after.theta[[0, 1, 3]], other.after.theta[[0, 1, 3]])


@pytest.mark.parametrize("kind", BEHAVIOURS)
def test_only_in_the_rounds_named(kind):
    usual = {"optimizer": "momentum", "mixing": "alone", "nodes": 4}
    bent = list(simulate(make(behaviours=[Behaviour(kind, (2,), rounds=range(2, 4))], **usual), 6))
    plain = list(simulate(make(**usual), 6))
    for a, b in zip(plain[:2], bent[:2], strict=True):
        assert equal(a.after, b.after)
    assert not torch.equal(plain[2].after.theta[2], bent[2].after.theta[2])
    keep = [0, 1, 3]
    assert torch.equal(plain[5].after.theta[keep], bent[5].after.theta[keep])
    honest_again = last(make(**usual), 5, start=4, participants=bent[3].after)
    assert equal(honest_again.after, bent[4].after)


@STRATEGIES
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_honest_conduct_is_no_conduct(optimizer, steps, strategy):
    net = make(optimizer=optimizer, local_steps=steps, strategy=strategy)
    operator, before, drawn = Operator(net), last(net, 2).after, draw(net, 2)
    honest = drawn._replace(conduct=(torch.ones(4), torch.ones(4)))
    assert equal(operator.work(drawn, before)[:2], operator.work(honest, before)[:2])


@STRATEGIES
def test_half_a_step_is_half_the_update_and_half_the_change_of_state(strategy):
    net = make(optimizer="adam", strategy=strategy)
    operator, drawn, one = Operator(net), draw(net, 0), torch.ones(4)
    whole, *_ = operator.work(drawn, net.initial)
    half, *_ = operator.work(drawn._replace(conduct=(0.5 * one, one)), net.initial)
    torch.testing.assert_close(half, tree_map(lambda a, b: (a + b) / 2, net.initial, whole), **CLOSE)


@STRATEGIES
def test_the_state_of_a_free_rider_stays_in_the_memory_of_its_round(strategy):
    """Captured graphs are found by addresses: those of a ring must come again and again."""
    net = make(optimizer="momentum", strategy=strategy, behaviours=[Behaviour("free-rider", (2,), rounds=range(3, 9))])
    places = [round_.half.state["momentum"].data_ptr() for round_ in simulate(net, 12, window=1)]
    assert places == 4 * places[:3]


def test_behaviours_combine():
    taken, factor = conduct(
        [Behaviour("sign-flipper", (1,), strength=3.0), Behaviour("free-rider", (0, 1))], 0, range(3)
    )
    assert taken.tolist() == [0, 0, 1]
    assert factor.tolist() == [1, -3, 1]
    assert conduct([Behaviour("free-rider", (1,), rounds=range(5, 6))], 4, range(3)) == ()


def test_a_schedule_of_ones_own_is_thinned_too():
    net = make(mixing=topology.random_matching(4, seed=1), behaviours=[Behaviour("absent", (0, 3), rounds=range(1, 9))])
    for done in simulate(net, 5):
        if done.t >= 1:
            assert done.W[0, 0] == done.W[3, 3] == 1


def test_corrupted_data_reach_training_only_where_named():
    usual = {"mixing": "alone", "nodes": 4}
    spoiled = Corruption("noise", (1,), rounds=range(2, 3), strength=4.0)
    plain, bent = (list(simulate(make(corruptions=c, **usual), 4)) for c in ((), (spoiled,)))
    for a, b in zip(plain[:2], bent[:2], strict=True):
        assert equal(a.after, b.after)
    keep = [0, 2, 3]
    assert torch.equal(plain[3].after.theta[keep], bent[3].after.theta[keep])
    assert not torch.equal(plain[2].loss[1], bent[2].loss[1])
    assert not torch.equal(plain[2].after.theta[1], bent[2].after.theta[1])
    honest_again = last(make(**usual), 4, start=3, participants=bent[2].after)
    assert equal(honest_again.after, bent[3].after)


def test_all_labels_flipped_is_training_on_other_labels():
    flipped = Corruption("flip-labels", (0, 1, 2, 3), strength=1.0)
    net = make(corruptions=[flipped])
    clean = make()
    a, b = load(net, draw(net, 3)), load(clean, draw(clean, 3))
    assert torch.equal(a.x, b.x)
    assert not (a.y == b.y).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"behaviours": [Behaviour("absent", (4,))]}, "absent names participant 4; there are 4, numbered 0..3"),
        ({"corruptions": [Corruption("noise", (7,))]}, "noise names participant 7; there are 4, numbered 0..3"),
    ],
)
def test_participants_that_do_not_exist(given, message):
    with pytest.raises(ValueError, match=message):
        make(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("free-ride", (0,)), "unknown behaviour 'free-ride'. Did you mean 'free-rider'"),
        (("absent", ()), "absent must name participants, numbered from 0; found \\(\\)"),
        (("absent", (0, -1)), "must name participants, numbered from 0"),
        (("sign-flipper", (0,), None, -1.0), "strength of sign-flipper must be at least 0 and finite; found -1.0"),
        (("noise-sender", (0,), None, float("nan")), "must be at least 0 and finite; found nan"),
    ],
)
def test_bad_behaviours(arguments, message):
    with pytest.raises(ValueError, match=message):
        Behaviour(*arguments)
