"""What whole-run influence refuses, and how it says so."""

from functools import partial

import numpy as np
import pytest
import torch
from engine.cases import make
from influence.cases import directed, small

from cascadice.engine import DivergedError, Operator, fleet, mix, simulate
from cascadice.engine.exchange.robust import trimmed_mean
from cascadice.engine.parts import part_of
from cascadice.engine.rounds import rows_of
from cascadice.engine.weighting import with_weights
from cascadice.influence import (
    evaluate_on,
    first_order,
    full_horizon,
    interplay,
    leave_one_out,
    path_integrated,
    reverse_gossip,
    score_rounds,
    shares,
    truth,
)  # fmt: skip
from cascadice.influence.by_class import whole_run_by_class
from cascadice.influence.checks import _uses_tf32, check_rounds
from cascadice.influence.weighted_run import WeightedRun
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import contributions, measured_at, whole_run_shares
from cascadice.optimizers import Optimizer

ROUNDS = 9


def test_bad_input(unchecked):
    network = small()
    evaluation, rounds = evaluate_on(network), list(simulate(network, ROUNDS))
    for bad, message in (
        (lambda: whole_run(network, 0, evaluation), "at least one round"),
        (lambda: whole_run(network, [], evaluation), "at least one round"),
        (lambda: whole_run(network, [rounds[0], rounds[2]], evaluation), "round 0 is followed by 2"),
        (
            lambda: whole_run(network, [*rounds[:2], *rounds[4:]], evaluation, at=0.5),
            r"consecutive; round 1 is followed by 4\.",
        ),
        (lambda: whole_run(network, rounds[::-1], evaluation, at=0.5), "round 8 is followed by 7"),
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
        (lambda: whole_run_by_class(network, 3, evaluation, at=0.0), "one number above 0 and at most 1; found 0"),
        (lambda: whole_run_by_class(network, 3, evaluation, at=torch.ones(4)), "one number above 0 and at most 1"),
        (lambda: whole_run(network, 3, evaluation, during=range(0)), r"during must be rounds of the run, from 0 to 2"),
        (lambda: whole_run(network, 3, evaluation, during=range(2, 4)), r"from 0 to 2; found range\(2, 4\)"),
        (lambda: whole_run(network, rounds[2:], evaluation, during=range(1, 3)), r"from 2 to 8; found range\(1, 3\)"),
        (lambda: whole_run(network, 3, evaluation, during=(0, 2)), r"must be a range of rounds.*found \(0, 2\)"),
        (lambda: whole_run(network, 3, evaluation, length=-1), r"length must be .*, at least 1, or None; found -1"),
        (lambda: whole_run(network, 3, evaluation, length=0), "at least 1, or None; found 0"),
        (lambda: whole_run(network, rounds, evaluation, length=-2), "at least 1, or None; found -2"),
        (lambda: whole_run(network, rounds, evaluation, length=True), "at least 1, or None; found True"),
        (lambda: whole_run(network, 3, evaluation, on=True), "a participant below 4; found True"),
        (
            lambda: whole_run(network, 3, evaluation, at=0.0),
            "above 0 for at least one.*found 0 for all. Use measured_at",
        ),
        (lambda: whole_run(network, rounds, evaluation, at=torch.zeros(4)), "above 0 for at least one participant"),
        (lambda: whole_run_by_class(network, 3, evaluation, at=2), "above 0 and at most 1; found 2. Use the fraction"),
        (lambda: whole_run_by_class(network, 3, evaluation, at=True), "above 0 and at most 1; found True"),
        (lambda: interplay(network, 3, evaluation, at=True), "at must be one number above 0; found True"),
        (
            lambda: interplay(network, 3, evaluation, at=0),
            "one number above 0; found 0. Use 1, which is the run itself",
        ),
        (lambda: interplay(network, 3, evaluation, at=torch.ones(4)), "at must be one number above 0"),
        (lambda: interplay(network, 3, evaluation, at="x"), "at must be one number above 0; found 'x'"),
        (lambda: with_weights(network, samples=torch.ones(3)), "one per training sample"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()


def test_mistaken_types_are_named(unchecked):
    network = small()
    evaluation, module = evaluate_on(network), network.learner.training
    for call in (
        lambda network, evaluation: whole_run(network, 3, evaluation),
        lambda network, evaluation: whole_run_by_class(network, 3, evaluation),
        lambda network, evaluation: leave_one_out(network, 3, evaluation),
    ):
        with pytest.raises(TypeError, match=r"network must be a Network; found Sequential\. Build it with"):
            call(module, evaluation)
        for wrong in (None, network.data.test):
            with pytest.raises(TypeError, match=rf"an Evaluation; found {type(wrong).__name__}\. Use influence"):
                call(network, wrong)
    for points in (2.5, "3", True):
        with pytest.raises(TypeError, match=f"points must be a whole number, from 1 to 100; found {points!r}"):
            whole_run_shares(network, 3, evaluation, points=points)
    for call in (whole_run, measured_at):
        with pytest.raises(TypeError, match=r"weights of updates must be a number, or one per participant; found 'x'"):
            call(network, 3, evaluation, at="x")
        with pytest.raises(TypeError, match=r"at must be a number.*; found True\. Use at=1"):
            call(network, 3, evaluation, at=True)


def test_numbers_of_rounds_may_be_numpys(unchecked):
    network = small()
    evaluation = evaluate_on(network)
    found, expected = (whole_run(network, rounds, evaluation).participants for rounds in (np.int64(3), 3))
    assert found.equal(expected)


def test_contributions_warn_if_shares_are_no_parts_of_the_whole():
    network = small(lr=2.0)
    evaluation = evaluate_on(network)
    with pytest.warns(RuntimeWarning, match=r"shares sum to .*do not read them as parts.*points=2; if that"):
        found = contributions(network, ROUNDS, evaluation, points=1)
    shares = whole_run_shares(network, ROUNDS, evaluation, points=1)
    assert found.equal(shares.participants)
    assert abs(shares.gap) > 0.1 * abs(float(found.sum()) - shares.gap)


def test_a_recording_that_begins_later_weights_only_its_rounds():
    network = small()
    evaluation, rounds = evaluate_on(network), list(simulate(network, ROUNDS))
    cut = whole_run(network, rounds[4:], evaluation, at=0.5).by_round
    during = whole_run(network, rounds, evaluation, at=0.5, during=range(4, ROUNDS)).by_round[4:]
    torch.testing.assert_close(cut, during)


def test_a_single_participant_has_no_pairs():
    network = small(nodes=1, mixing=torch.ones(1, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="pairs need at least 2 participants; found 1"):
        interplay(network, 2, evaluate_on(network))


def spliced():
    """Rounds of one network, then of another that starts elsewhere; rounds of which one was given other parameters."""
    network, other = small(), small(seed=1)
    rounds = list(simulate(network, 6))
    swapped = rounds[3]._replace(before=rounds[0].before)
    return network, rounds, [*rounds[:3], *list(simulate(other, 6))[3:]], [*rounds[:3], swapped, *rounds[4:]]


@pytest.mark.parametrize("which", [2, 3], ids=["another run", "overwritten"])
@pytest.mark.parametrize(
    "call",
    [
        whole_run,
        partial(whole_run, at=0.5),
        whole_run_shares,
        whole_run_by_class,
        lambda network, rounds, evaluation: list(full_horizon(network, reversed(rounds), evaluation)),
        lambda network, rounds, evaluation: list(score_rounds(network, rounds, evaluation)),
        truth,
        first_order,
        path_integrated,
        reverse_gossip,
        shares,
    ],
)
def test_rounds_must_join(call, which):
    network, *_ = runs = spliced()
    with pytest.raises(ValueError, match="those of one run; round 3 does not start with the parameters after round 2"):
        call(network, runs[which], evaluate_on(network))


def test_rounds_join_up_to_rounding():
    """A stored round is read as W times what was sent, on another device perhaps in another order."""
    network = small(dtype="float32")
    rounds = list(simulate(network, 6))
    off = [r._replace(after=r.after._replace(theta=r.after.theta * (1 + 1e-6))) for r in rounds]
    assert whole_run(network, off, evaluate_on(network)).by_round.isfinite().all()
    assert whole_run(network, off, evaluate_on(network), at=0.5).by_round.isfinite().all()


def test_a_part_may_come_back_with_its_neighbours_parameters():
    _, rounds, *_ = spliced()
    earlier, later = (rows_of_part(round_, [0, 1]) for round_ in (rounds[2], rounds[3]))
    away = later._replace(before=later.before._replace(theta=later.before.theta + 1))
    check_rounds([earlier, away])


def rows_of_part(round_, nodes):
    return round_._replace(**{name: rows_of(getattr(round_, name), nodes) for name in ("before", "half", "after")})


def test_at_1_the_steps_of_any_optimizer_are_weighted():
    """The step of this one is not proportional to its learning rate, so at other α nothing is answered."""

    def update(gradient, state, theta, lr):
        return -lr.square()[..., None] * gradient, state

    network = small(optimizer=Optimizer(lambda theta: {}, update))
    evaluation = evaluate_on(network)
    (round_,) = rounds = list(simulate(network, 1))
    found = whole_run(network, rounds, evaluation, samples=False).participants
    (horizon,) = full_horizon(network, rounds, evaluation, samples=False)
    torch.testing.assert_close(found, horizon.participants)  # λ · Δ

    def measured(factor):
        half = round_.half._replace(theta=round_.before.theta + factor[:, None] * round_.update)
        return float(network.weights @ Operator(network).losses(evaluation, mix(round_.W, half), range(4)))

    step = 1e-5 * torch.eye(4, dtype=torch.float64)[2]
    assert float(found[2]) == pytest.approx((measured(1 + step) - measured(1 - step)) / 2e-5, rel=1e-6)
    for call in (partial(whole_run, at=0.5), whole_run_shares):
        with pytest.raises(ValueError, match="proportional to its learning rate"):
            call(network, rounds, evaluation)


def test_rules_that_do_not_average_are_followed_as_they_were_but_not_replayed():
    network = small(mixing=directed(1, density=0.9))
    evaluation = evaluate_on(network)
    rounds = list(simulate(network, 4, rule=trimmed_mean(0.25)))
    assert any(round_.rule is not None for round_ in rounds)
    assert whole_run(network, rounds, evaluation).by_round.isfinite().all()
    for call in (partial(whole_run, at=0.5), whole_run_shares):
        with pytest.raises(ValueError, match=r"does not average.*Use whole_run at α = 1, which follows them"):
            call(network, rounds, evaluation)


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
    for rounds, name in (
        (simulate(network, 2), "generator"),
        (next(simulate(network, 1)), "Round"),
        (2.0, "float"),
        (True, "True"),
        ("40", "str"),
        (["a"], "a list of str"),
    ):
        with pytest.raises(TypeError, match=rf"or a list of recorded rounds; found {name}\. Use list\(rounds\)"):
            call(network, rounds, evaluation)


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_may_be_rounded_to_tf32_where_other_products_are_not(allowed):
    """torch allows it on CUDA unless told not to; replayed steps then differ by more than float32 rounds."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=allowed):
        assert _uses_tf32(make("cnn")) is allowed
        assert not _uses_tf32(make("mlp"))
