"""Contributions keep the axioms of fair division: efficiency, symmetry, null player, additivity."""

import pytest
import torch
from engine.rows import losses as values
from influence.cases import CLOSE, data, small, smooth
from torch.testing import assert_close

from cascadice import influence, topology
from cascadice.applications.reward.contributions import by_horizon, by_shares, by_whole_run
from cascadice.applications.reward.ledger import by_round, enter, read_ledger
from cascadice.engine import Behaviour, Operator, mix, simulate
from cascadice.engine.networks import draw

NOTE = {"run": "cafe", "kind": "shares, 1 hop"}
SHARED = {"mixing": topology.build("ring", 4)(0), "init": "shared", "q": [0.25] * 4}


def mean_loss(network, evaluation, participants):
    each = values(network, evaluation, participants.theta, participants.buffers, range(network.nodes))
    return (network.weights * each).sum().double()


def replayed(network, rounds):
    """The rounds again, had nobody worked in the first: by the engine itself."""
    now = mix(rounds[0].W, rounds[0].before)
    after = [now]
    for round_ in rounds[1:]:
        now = Operator(network).apply(draw(network, round_.t), now, strategy="loop").after
        after.append(now)
    return after


@pytest.mark.parametrize("hops", [1, 3])
def test_efficiency_shares_sum_to_what_the_work_of_the_round_changed(hops):
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 2 + hops))[2:]
    shares = by_shares(network, rounds, evaluation, points=4).participants
    without = replayed(network, rounds)
    change = sum(
        mean_loss(network, evaluation, round_.after) - mean_loss(network, evaluation, other)
        for round_, other in zip(rounds, without, strict=True)
    )
    assert_close(shares.sum(), change, rtol=1e-7, atol=1e-9)
    assert shares.abs().sum() > 1e-3


def test_efficiency_of_a_run_work_and_gossip_add_up_to_the_change_of_the_loss(tmp_path):
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 6))
    enter(tmp_path, NOTE, (by_shares(network, [round_], evaluation, points=4) for round_ in rounds))
    gossip = sum(
        mean_loss(network, evaluation, mix(round_.W, round_.before)) - mean_loss(network, evaluation, round_.before)
        for round_ in rounds
    )
    change = mean_loss(network, evaluation, rounds[-1].after) - mean_loss(network, evaluation, rounds[0].before)
    assert_close(by_round(read_ledger(tmp_path)).sum() + gossip, change, rtol=1e-7, atol=1e-9)
    assert gossip.abs() > 1e-4


def test_efficiency_of_a_whole_run_entries_sum_to_what_training_changed():
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 4))
    untrained = rounds[0].before
    for round_ in rounds:
        untrained = mix(round_.W, untrained)
    change = mean_loss(network, evaluation, rounds[-1].after) - mean_loss(network, evaluation, untrained)
    for given in (4, rounds):
        entries = by_whole_run(network, given, evaluation, points=6, samples=True)
        assert [entry.round for entry in entries] == [0, 1, 2, 3]
        assert_close(sum(entry.participants for entry in entries).sum(), change, rtol=1e-5, atol=0)
        for entry, round_ in zip(entries, rounds, strict=True):
            assert_close(entry.samples.sum(1), entry.participants, **CLOSE)
            assert torch.equal(entry.draw, round_.draw.batch.flatten(1))


def test_it_is_shares_without_what_a_step_does_to_oneself_before_gossip():
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 5))[2:]
    first = rounds[0]
    direct = network.weights * (
        values(network, evaluation, first.half.theta, {}, range(4))
        - values(network, evaluation, first.before.theta, {}, range(4))
    )
    whole = influence.shares(network, rounds, evaluation, points=4)
    assert_close(by_shares(network, rounds, evaluation, points=4).participants, whole - direct, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_samples_sum_to_their_participant_where_nothing_else_moves_it(optimizer):
    network = small(optimizer=optimizer)
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 3))
    entry = by_shares(network, rounds[:1], evaluation, samples=True)  # old momentum is 0 in the first round
    assert_close(entry.samples.sum(1), entry.participants, **CLOSE)
    assert torch.equal(entry.draw, rounds[0].draw.batch.flatten(1))


def test_symmetry_the_same_data_at_the_same_place_in_the_graph_earn_the_same():
    part = list(range(12)), list(range(12, 24))
    # batches of everything: the order in which they are drawn does not matter
    network = small(**SHARED, partition=[part[0], part[1], part[0], part[1]], batch_size=12)
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 4))
    a, b, c, d = by_shares(network, rounds, evaluation).participants
    assert_close(a, c, **CLOSE)
    assert_close(b, d, **CLOSE)
    assert abs(a - b) > 1e-4
    for first in ([*by_horizon(network, reversed(rounds), evaluation)][-1], by_whole_run(network, 4, evaluation)[0]):
        assert_close(first.participants[0], first.participants[2], **CLOSE)


def test_null_player_a_free_rider_is_entered_with_nothing(tmp_path):
    network = small(behaviours=[Behaviour("free-rider", (2,))])
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 3))
    enter(tmp_path / "shares", NOTE, [by_shares(network, rounds, evaluation, samples=True)])
    enter(tmp_path / "horizon", NOTE, by_horizon(network, reversed(rounds), evaluation, samples=True))
    enter(tmp_path / "whole-run", NOTE, by_whole_run(network, 3, evaluation, samples=True))
    for folder in ("shares", "horizon", "whole-run"):
        rows = read_ledger(tmp_path / folder).rows
        own = rows["value"][rows["participant"] == 2]
        assert len(own) > 4
        assert not own.any()
        assert rows["value"].any()


def test_additivity_over_measures():
    network = small()
    rounds = list(simulate(network, 2))
    test = network.data.test

    def scored(measure):
        return by_shares(network, rounds, influence.evaluate_on(network, test, measure), samples=True)

    def margin(outputs, y):
        return influence.measures.negative_margin(outputs, y)

    loss = network.learner.loss
    both = scored(lambda outputs, y: loss(outputs, y) + 2 * margin(outputs, y))
    assert_close(both.participants, scored(loss).participants + 2 * scored(margin).participants, **CLOSE)
    assert_close(both.samples, scored(loss).samples + 2 * scored(margin).samples, **CLOSE)


def test_the_horizon_is_that_of_the_sweep_and_names_its_samples():
    network = small()
    evaluation, rounds = influence.evaluate_on(network), list(simulate(network, 4))
    scored = {s.t: s for s in influence.full_horizon(network, reversed(rounds), evaluation)}
    for entry in by_horizon(network, reversed(rounds), evaluation, samples=True):
        assert_close(entry.participants, scored[entry.round].participants, rtol=0, atol=0)
        assert_close(entry.samples, scored[entry.round].samples, rtol=0, atol=0)
        assert torch.equal(entry.draw, rounds[entry.round].draw.batch.flatten(1))
    assert {entry.samples for entry in by_horizon(network, reversed(rounds), evaluation)} == {None}


def test_recordings_of_another_network_are_refused():
    network, other = small(), small(smooth(width=5))
    with pytest.raises(ValueError, match="parameters"):
        by_shares(other, list(simulate(network, 1)), influence.evaluate_on(other, data().test))
