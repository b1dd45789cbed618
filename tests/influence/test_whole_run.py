"""Whole-run influence against finite differences of the run itself, recordings, and what shares must add up to."""

import weakref
from dataclasses import replace

import pytest
import torch
from influence.cases import NODES, small, smooth
from torch import nn
from torch.utils._pytree import tree_map

from cascadice.data import Samples
from cascadice.engine import Behaviour, Operator, fleet, simulate
from cascadice.engine.exchange.stacked import Averaging
from cascadice.engine.parts import part_of
from cascadice.engine.rounds import Adjoint
from cascadice.engine.weighting import with_weights
from cascadice.influence import evaluate_on, full_horizon
from cascadice.influence.weighted_run import WeightedRun, focus, initial_value
from cascadice.influence.whole_run import combine_rounds, doubt_of_slopes, sweep, warn_if_rough, whole_run
from cascadice.influence.whole_run_shares import contributions, measured_at, whole_run_shares
from cascadice.optimizers import Optimizer, build, clip

ROUNDS = 9
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum", "lr": 0.05},
    "nesterov": {"optimizer": "nesterov", "lr": 0.05},
    "adam": {"optimizer": "adam", "lr": 0.02},
    "adamw": {"optimizer": "adamw", "lr": 0.02},
    "weight decay": {"optimizer": build("sgd", weight_decay=0.1)},
    "clipped": {"optimizer": clip(build("momentum"), 0.1), "lr": 0.05},
    "local steps": {"local_steps": 3, "lr": 0.1},
    "local steps of adam": {"optimizer": "adam", "lr": 0.02, "local_steps": 2},
    "one by one": {"local_steps": 2, "strategy": "loop"},
    "several ways": {"optimizer": ["sgd", "adam", "momentum", "sgd"], "lr": [0.2, 0.02, 0.05, 0.1],
                     "batch_size": [4, 3, 4, 2]},
    "a cosine": {"lr": lambda t: 0.3 * (1 - t / 12)},
    "sign flipper": {"behaviours": [Behaviour("sign-flipper", (1,), strength=0.5)]},
    "noise sender": {"behaviours": [Behaviour("noise-sender", (1,), strength=1e-4)]},
}  # fmt: skip


def own_sets(network):
    x, y = network.data.test.x, network.data.test.y
    return [Samples(x[k : k + 4], y[k : k + 4]) for k in range(NODES)]


TRIED = [0, 1]  # participants


def slopes(network, evaluation, at, **options):
    """∂f/∂α_j of some participants by central differences."""
    found = []
    for one in torch.eye(NODES, dtype=torch.float64)[TRIED] * 1e-5:
        alpha = torch.full((NODES,), at, dtype=torch.float64)
        up, down = (measured_at(network, ROUNDS, evaluation, alpha + step, **options) for step in (one, -one))
        found.append((up - down) / 2e-5)
    return torch.tensor(found, dtype=torch.float64)


def assert_slopes(found, expected):
    torch.testing.assert_close(found[TRIED], expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "at"), [*((name, 0.5) for name in OPTIMIZERS), ("sgd", 1.0), ("adam", 1.0), ("several ways", 1.0)]
)
def test_it_is_the_slope_of_the_run(name, at):
    network = small(**OPTIMIZERS[name])
    evaluation = evaluate_on(network, own_sets(network))
    found = whole_run(network, ROUNDS, evaluation, at=at, length=4)
    assert_slopes(found.participants, slopes(network, evaluation, at))
    assert found.value == pytest.approx(measured_at(network, ROUNDS, evaluation, at), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "at"),
    [("sgd", 1.0), *((name, 0.5) for name in ("momentum", "nesterov", "local steps", "one by one", "a cosine"))],
)
def test_samples_add_up_to_their_participants(name, at):
    network = small(**OPTIMIZERS[name])
    found = whole_run(network, ROUNDS, evaluate_on(network), at=at)
    torch.testing.assert_close(found.samples.sum((0, 2)), found.participants)
    of_partition = torch.stack([found.by_sample(48)[part].sum() for part in network.partition])
    torch.testing.assert_close(of_partition, found.participants)


@pytest.mark.parametrize("name", ["adam", "adamw", "local steps of adam"])
def test_adam_does_not_notice_the_size_of_all_gradients(name):
    network = small(**OPTIMIZERS[name])
    found = whole_run(network, ROUNDS, evaluate_on(network))
    together, apart = found.samples.sum((0, 2)).abs(), found.samples.abs().sum((0, 2))
    assert (together < 1e-4 * apart).all()  # not 0, because of ε
    assert (found.participants.abs() > 0.01 * apart).any()


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "local steps", "several ways"])
def test_a_sample_is_the_slope_of_the_run_by_its_weight(name):
    network = small(**OPTIMIZERS[name])
    evaluation = evaluate_on(network)
    found = whole_run(network, ROUNDS, evaluation).by_sample(48)
    for i in (int(network.partition[0][0]), int(network.partition[2][1])):
        step = torch.zeros(48, dtype=torch.float64)
        step[i] = 1e-4
        up, down = (measured_at(with_weights(network, 1.0, 1 + s), ROUNDS, evaluation, 1.0) for s in (step, -step))
        assert float(found[i]) == pytest.approx((up - down) / 2e-4, abs=1e-6 * float(found.abs().max()))


def test_at_one_with_sgd_it_is_the_full_horizon():
    network = small()
    evaluation, rounds = evaluate_on(network), list(simulate(network, ROUNDS))
    expected = list(full_horizon(network, reversed(rounds), evaluation))[::-1]
    found = whole_run(network, rounds, evaluation)
    assert torch.equal(found.by_round, torch.stack([e.participants for e in expected]))
    assert torch.equal(found.samples, torch.stack([e.samples for e in expected]))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "local steps"])
def test_replay_from_checkpoints_is_the_recording_bit_for_bit(name):
    network = small(**OPTIMIZERS[name])
    evaluation = evaluate_on(network)
    kept = whole_run(network, list(simulate(network, ROUNDS)), evaluation)
    for length in (1, 4, ROUNDS):
        found = whole_run(network, ROUNDS, evaluation, length=length)
        assert torch.equal(found.by_round, kept.by_round)
        assert torch.equal(found.samples, kept.samples)
        assert torch.equal(found.drawn, kept.drawn)
        assert found.value == kept.value


def test_rounds_that_were_kept_are_played_again_at_another_weight():
    network = small(optimizer="momentum", lr=0.05)
    evaluation, rounds = evaluate_on(network), list(simulate(network, ROUNDS))
    found = whole_run(network, rounds, evaluation, at=0.5)
    assert torch.equal(found.by_round, whole_run(network, ROUNDS, evaluation, at=0.5).by_round)
    late = whole_run(network, rounds[4:], evaluation, at=0.5)
    assert (late.first, len(late.by_round)) == (4, ROUNDS - 4)


@pytest.mark.parametrize("on", ["average", 2])
def test_on_other_final_models(on):
    network = small()
    evaluation = evaluate_on(network)
    found = whole_run(network, ROUNDS, evaluation, on=on)
    assert_slopes(found.participants, slopes(network, evaluation, 1.0, on=on))
    *_, last = simulate(network, ROUNDS)
    chosen = network.q @ last.after.theta if on == "average" else last.after.theta[on]
    here = last.after._replace(theta=chosen.expand_as(last.after.theta))
    assert found.value == pytest.approx(float(Operator(network).losses(evaluation, here, [0] * NODES)[0]), abs=1e-12)


def test_a_part_finds_participants_by_their_numbers():
    part = part_of(small(), (2, 3))
    assert [focus(part, on)[0].q.tolist() for on in (3, 0)] == [[0, 1], [0, 0]]


def test_during_some_rounds_only():
    network = small()
    evaluation, during = evaluate_on(network), range(2, 5)
    found = whole_run(network, ROUNDS, evaluation, at=0.5, during=during)
    assert not found.by_round[[0, 1, 5, 8]].any()
    step = torch.eye(NODES, dtype=torch.float64)[1] * 1e-5
    up, down = (
        measured_at(with_weights(network, 0.5 + s, during=during), ROUNDS, evaluation, 1.0) for s in (step, -step)
    )
    assert float(found.participants[1]) == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_at_weights_of_their_own(unchecked):
    network = small()
    evaluation, at = evaluate_on(network), torch.tensor([1.0, 0.0, 0.3, 1.0], dtype=torch.float64)
    found = whole_run(network, ROUNDS, evaluation, at=at).participants
    assert found.isnan().tolist() == [False, True, False, False]
    assert torch.equal(whole_run(network, ROUNDS, evaluation, at=at.tolist()).participants[2:], found[2:])
    step = torch.eye(NODES, dtype=torch.float64)[2] * 1e-5
    up, down = (measured_at(network, ROUNDS, evaluation, at + s) for s in (step, -step))
    assert float(found[2]) == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_running_statistics_are_refused():
    network = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="running statistics"):
        whole_run(network, ROUNDS, evaluate_on(network), samples=False)


def test_participants_alone():
    network = small()
    found = whole_run(network, ROUNDS, evaluate_on(network), samples=False)
    assert torch.equal(found.by_round, whole_run(network, ROUNDS, evaluate_on(network)).by_round)
    with pytest.raises(ValueError, match="samples=True"):
        found.by_sample(48)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_shares_sum_to_what_training_did_and_the_gap_falls_tenfold_a_point(name):
    gentle = {"sgd": {"lr": 0.1}, "momentum": {"optimizer": "momentum", "lr": 0.01},
              "adam": {"optimizer": "adam", "lr": 0.005}}  # fmt: skip
    network = small(**gentle[name])
    evaluation = evaluate_on(network)
    trained, untrained = (measured_at(network, ROUNDS, evaluation, at) for at in (1.0, 0.0))
    change = trained - untrained
    gaps = []
    for points in (1, 2, 4):
        found = whole_run_shares(network, ROUNDS, evaluation, points=points)
        assert float(found.participants.sum()) - change == pytest.approx(found.gap, abs=1e-12)
        assert found.value == pytest.approx(trained, abs=1e-12)
        gaps.append(abs(found.gap))
    assert gaps[0] < 0.2 * abs(change)
    assert gaps[1] < 0.1 * gaps[0]
    assert gaps[2] < 1e-3 * gaps[0]
    torch.testing.assert_close(contributions(network, ROUNDS, evaluation, points=4), found.participants)


@pytest.mark.parametrize("kept", [True, False])
def test_shares_of_some_rounds_sum_to_what_their_updates_changed(kept):
    network, during = small(optimizer="momentum", lr=0.02), range(2, 5)
    evaluation = evaluate_on(network)
    without = with_weights(network, 0.0, during=during)
    change = measured_at(network, ROUNDS, evaluation, 1.0) - measured_at(without, ROUNDS, evaluation, 1.0)
    rounds = list(simulate(network, ROUNDS)) if kept else ROUNDS
    found = [whole_run_shares(network, rounds, evaluation, points=points, during=during) for points in (1, 4)]
    for shares in found:
        assert float(shares.participants.sum()) - change == pytest.approx(shares.gap, abs=1e-12)
        assert not shares.by_round[[0, 1, *range(5, ROUNDS)]].any()
    assert abs(found[1].gap) < min(1e-3 * abs(found[0].gap), 1e-6 * abs(change))


def test_untrained_participants_still_gossip():
    network = small()
    evaluation = evaluate_on(network)
    still = torch.zeros(NODES, dtype=torch.float64)
    assert measured_at(network, ROUNDS, evaluation, 0.0) == pytest.approx(
        measured_at(network, ROUNDS, evaluation, still), abs=1e-12
    )


def test_a_sweep_can_be_resumed():
    network = small(optimizer="momentum", lr=0.05)
    evaluation, saved = evaluate_on(network), {}
    run = WeightedRun(network, ROUNDS, evaluation, at=0.5, length=3)
    whole = list(sweep(run))
    some = []
    for scored in sweep(run, saved=saved):
        adjoint = scored.sweep.adjoint  # the operator reuses its memory
        kept = scored.sweep._replace(adjoint=tree_map(torch.clone, adjoint))
        some.append(scored)
        if scored.t == 6:
            break
    rest = list(sweep(run, kept, saved))
    assert [s.t for s in rest] == [5, 4, 3, 2, 1, 0]
    assert torch.equal(combine_rounds([*some, *rest]).by_round, combine_rounds(whole).by_round)


def test_every_round_that_is_played_or_scored_is_told():
    network, told = small(), []
    whole_run(network, ROUNDS, evaluate_on(network), length=3, played=lambda: told.append(1))
    assert len(told) == 6 + 9 + 9  # to the last checkpoint, again, and back


def test_with_another_exchange():
    class Counting(Averaging):
        pulls = 0

        def pull(self, *arguments):
            Counting.pulls += 1
            return super().pull(*arguments)

    network = small()
    evaluation = evaluate_on(network)
    found = whole_run(network, ROUNDS, evaluation, exchange=Counting())
    assert Counting.pulls == ROUNDS
    assert torch.equal(found.by_round, whole_run(network, ROUNDS, evaluation).by_round)


def test_optimizers_must_scale_with_their_rate():
    def update(gradient, state, theta, lr):
        return -gradient, state

    network = small(optimizer=Optimizer(init=lambda theta: {}, update=update))
    with pytest.raises(ValueError, match="proportional"):
        whole_run(network, 2, evaluate_on(network), at=0.5)


def test_operators_agree_that_pulled_rates_are_of_updates():
    network = small()
    evaluation, rounds = evaluate_on(network), list(simulate(network, 2))
    operator = Operator(network)
    adjoint = operator.objective(evaluation, rounds[1].after)
    pulled = operator.pull_scored(rounds[1], Adjoint(adjoint, {}))
    assert torch.equal(pulled.rates, pulled.participants)


def test_only_the_latest_adjoint_is_held():
    """All of them once were: as much memory as every round of the run."""
    network, held = small(), []

    def watched():
        for scored in sweep(WeightedRun(network, ROUNDS, evaluate_on(network))):
            held.append(weakref.ref(scored.sweep.adjoint.theta))
            yield scored
            del scored
            assert sum(one() is not None for one in held) <= 2

    combine_rounds(watched())
    assert len(held) == ROUNDS


@pytest.mark.parametrize("at", [1.0, 0.5])
@pytest.mark.parametrize("recorded", [True, False])
def test_slopes_larger_than_the_whole_loss_are_doubted(recorded, at):
    """At this learning rate training is chaotic: derivatives are finite and grow from round to round."""
    network = small(lr=6.0)
    evaluation, rounds = evaluate_on(network), list(simulate(network, 40)) if recorded else 40
    with pytest.warns(RuntimeWarning, match=r"implies a change of the loss by .*, but the whole loss was 1\.13 before"):
        rough = whole_run(network, rounds, evaluation, at=at)
    worst = int(rough.participants.abs().argmax())
    with pytest.warns(RuntimeWarning, match=f"slope of participant {worst} .*lower the learning rate, or retrain"):
        whole_run(network, rounds, evaluation, at=at, samples=False)
    assert float(rough.participants.abs().max()) > 1e3
    # of a measure that may be near 0, and of a run that is not rough, nothing is said: warnings are errors
    whole_run(network, rounds, evaluate_on(network, measure=lambda outputs, y: outputs.var()), at=at, samples=False)
    assert float(whole_run(small(lr=0.5), 40, evaluation, at=at).participants.abs().max()) < 0.5


def test_a_slope_is_doubted_if_it_exceeds_the_loss_both_before_and_after_training():
    assert doubt_of_slopes([float("nan"), -1.9, 1.0], before=2.0, after=1.0) == ""
    assert doubt_of_slopes([0.5, -1.9], before=1.0, after=2.0) == ""
    doubt = doubt_of_slopes([float("nan"), -2.1, 1.0], before=2.0, after=1.0)
    assert (
        "participant 1 implies a change of the loss by 2.1, but the whole loss was 2 before training and 1 after."
        in doubt
    )


def test_slopes_count_by_alpha_and_against_the_loss_of_one_network():
    network = small()
    evaluation = evaluate_on(network)
    before = initial_value(WeightedRun(network, ROUNDS, evaluation))
    slopes = torch.full((NODES,), 1.5 * before, dtype=torch.float64)
    warn_if_rough(WeightedRun(network, ROUNDS, evaluation, 0.5), slopes, 0.0)  # says nothing: warnings are errors
    part = part_of(network, (0, 1))
    warn_if_rough(WeightedRun(part, ROUNDS, evaluate_on(part), exchange=Averaging()), slopes[:2], 0.0)
    two = fleet([network, network])
    for one, own in ((network, slopes), (two, slopes.repeat(2))):
        with pytest.warns(RuntimeWarning, match=rf"the whole loss was {before:.3g} before"):
            warn_if_rough(WeightedRun(one, ROUNDS, evaluate_on(one)), own, 0.0)


def test_the_average_of_the_first_models_is_measured_if_that_of_the_final_ones_is():
    network = small()
    apart = network.initial.theta + torch.randn(network.initial.theta.shape, dtype=torch.float64)
    network = replace(network, initial=network.initial._replace(theta=apart))
    evaluation = evaluate_on(network)
    average = network.initial._replace(theta=(network.weights @ apart).expand_as(apart))
    expected = Operator(network).losses(evaluation, average, range(NODES))[0]
    found = initial_value(WeightedRun(network, ROUNDS, evaluation, on="average"))
    assert found == pytest.approx(float(expected), rel=1e-12)
    assert found != pytest.approx(initial_value(WeightedRun(network, ROUNDS, evaluation)), rel=1e-3)
