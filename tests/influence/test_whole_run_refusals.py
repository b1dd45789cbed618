"""What whole-run influence refuses, and how it says so."""

import pytest
import torch
from engine.cases import make
from influence.cases import directed, small

from cascadice.engine import DivergedError, fleet, simulate
from cascadice.engine.exchange.robust import trimmed_mean
from cascadice.engine.parts import part_of
from cascadice.engine.weighting import with_weights
from cascadice.influence import evaluate_on
from cascadice.influence.by_class import whole_run_by_class
from cascadice.influence.weighted_run import WeightedRun
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import contributions, measured_at, whole_run_shares

ROUNDS = 9


def test_bad_input(unchecked):
    network = small()
    evaluation, rounds = evaluate_on(network), list(simulate(network, ROUNDS))
    for bad, message in (
        (lambda: whole_run(network, 0, evaluation), "at least one round"),
        (lambda: whole_run(network, [], evaluation), "at least one round"),
        (lambda: whole_run(network, [rounds[0], rounds[2]], evaluation), "one by one"),
        (
            lambda: whole_run(network, [*rounds[:2], *rounds[4:]], evaluation, at=0.5),
            r"consecutive; found \[0, 1, 4, 5",
        ),
        (lambda: whole_run(network, rounds[::-1], evaluation, at=0.5), r"consecutive; found \[8, 7"),
        (lambda: whole_run_shares(network, [*rounds[:2], *rounds[4:]], evaluation), "must be consecutive"),
        (lambda: measured_at(network, [*rounds[:2], *rounds[4:]], evaluation, 0.0), "must be consecutive"),
        (lambda: whole_run(network, 3, evaluation, at=-1.0), "at least 0"),
        (lambda: whole_run(network, 3, evaluation, at=torch.ones(3)), "one per participant"),
        (lambda: whole_run(network, 3, evaluation, on=7), "a participant below 4"),
        (lambda: whole_run(network, 3, evaluation, on="nobody"), "average"),
        (lambda: whole_run(fleet([network, network]), 3, evaluation, on="average"), "side by side"),
        (lambda: whole_run_shares(network, 3, evaluation, points=0), "at least 1 point"),
        (
            lambda: whole_run(network, 3, evaluation).by_sample(20),
            r"size must be above \d\d, the largest index drawn; found 20",
        ),
        (lambda: whole_run_by_class(network, 3, evaluation, at=0.0), "at must be one number above 0; found 0"),
        (lambda: whole_run_by_class(network, 3, evaluation, at=torch.ones(4)), "at must be one number above 0"),
        (lambda: whole_run(network, 3, evaluation, during=range(0)), r"during must be rounds of the run, from 0 to 2"),
        (lambda: whole_run(network, 3, evaluation, during=range(2, 4)), r"from 0 to 2; found range\(2, 4\)"),
        (lambda: whole_run(network, rounds[2:], evaluation, during=range(1, 3)), r"from 2 to 8; found range\(1, 3\)"),
        (lambda: whole_run(network, 3, evaluation, during=(0, 2)), r"must be a range of rounds.*found \(0, 2\)"),
        (lambda: with_weights(network, samples=torch.ones(3)), "one per training sample"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()


def test_rules_that_do_not_average_are_followed_as_they_were_but_not_replayed():
    network = small(mixing=directed(1, density=0.9))
    evaluation = evaluate_on(network)
    rounds = list(simulate(network, 4, rule=trimmed_mean(0.25)))
    assert any(round_.rule is not None for round_ in rounds)
    assert whole_run(network, rounds, evaluation).by_round.isfinite().all()
    with pytest.raises(ValueError, match="does not average"):
        whole_run(network, rounds, evaluation, at=0.5)


def test_a_run_that_diverges_says_at_which_weight():
    network = make("mlp", lr=1.0, optimizer="sgd", dtype="float32")
    with pytest.raises(DivergedError, match="at α = 1e"):
        whole_run(network, 30, evaluate_on(network), at=1e30)


def test_a_part_that_diverges_names_the_participant_in_the_whole_network():
    network = make("mlp", lr=[0.1, 0.1, 0.1, 1e30], optimizer="sgd", dtype="float32")
    part = part_of(network, (2, 3))
    with pytest.raises(DivergedError, match="participant 3"):
        raise WeightedRun(part, 1, evaluate_on(part), 1.0).diverged(DivergedError(0, 1))


@pytest.mark.parametrize("call", [whole_run, whole_run_by_class], ids=["whole_run", "by class"])
def test_derivatives_that_overflow_are_not_returned(call):
    """The losses of this run stay finite, and its slopes were NaN."""
    network = make("mlp", lr=100.0, optimizer="sgd", dtype="float32")
    with pytest.raises(DivergedError, match=r"at α = 1, participant \d has an influence that became NaN"):
        call(network, 300, evaluate_on(network))


@pytest.mark.parametrize(
    "call",
    [whole_run, whole_run_shares, contributions, lambda *arguments: measured_at(*arguments, 1.0)],
    ids=["whole_run", "whole_run_shares", "contributions", "measured_at"],
)
def test_rounds_that_can_be_read_only_once_are_named(call, unchecked):
    network = small()
    evaluation = evaluate_on(network)
    for rounds, name in ((simulate(network, 2), "generator"), (next(simulate(network, 1)), "Round"), (2.0, "float")):
        with pytest.raises(TypeError, match=rf"or a list of recorded rounds; found {name}\. Use list\(rounds\)"):
            call(network, rounds, evaluation)
