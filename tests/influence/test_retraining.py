"""Networks trained again without participants or samples, and how well scores predict them."""

from dataclasses import replace
from itertools import pairwise
from math import inf, nan

import pytest
import torch
from influence.cases import NODES, data, small, smooth
from torch import nn

from cascadice.engine import DivergedError, simulate
from cascadice.engine.weighting import with_weights
from cascadice.influence import evaluate_on, retraining
from cascadice.influence.retraining import (
    datamodeling_score,
    leave_one_out,
    predicts,
    random_subsets,
    retrain,
    without_each,
)
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import contributions, measured_at, whole_run_shares
from cascadice.optimizers import Optimizer, build

ROUNDS = 6


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "lr": 0.02}, {"strategy": "loop"}, {"local_steps": 2}])
def test_side_by_side_is_one_by_one(options):
    network = small(**options)
    evaluation, subsets = evaluate_on(network), without_each(NODES)
    found = retrain(network, ROUNDS, evaluation, updates=subsets, together=3)
    expected = [measured_at(network, ROUNDS, evaluation, row) for row in subsets]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    samples = random_subsets(48, 0.5, 3)
    found = retrain(network, ROUNDS, evaluation, samples=samples)
    expected = [measured_at(with_weights(network, samples=row), ROUNDS, evaluation, 1.0) for row in samples]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def counts(network, **options):
    """How many of 40 networks were trained side by side, each time."""
    told, subsets = [0], torch.ones(40, NODES, dtype=torch.float64)
    retrain(network, 1, evaluate_on(network), updates=subsets, trained=told.append, **options)
    return [later - earlier for earlier, later in pairwise(told)]


def test_as_many_side_by_side_as_fit_in_memory(monkeypatch):
    """Of a step in Adam's state and in large batches fewer fit; a number given by hand is kept."""
    usual, adam, large = small(batch_size=2), small(batch_size=2, optimizer="adam", lr=0.01), small(batch_size=12)
    assert counts(usual) == [40]
    monkeypatch.setattr(retraining, "MEMORY", 10 * retraining.bytes_of_step(usual))
    most = {name: counts(network)[0] for name, network in (("sgd", usual), ("adam", adam), ("large", large))}
    assert 1 < most["adam"] < most["sgd"] < 10
    assert 1 < most["large"] < most["sgd"]
    held = 5 * usual.initial.theta.nbytes  # to begin with, and in two rounds, before and after gossip
    assert most["sgd"] * (held + retraining.bytes_of_step(usual)) <= retraining.MEMORY
    assert counts(large, together=30) == [30, 10]
    monkeypatch.setattr(retraining, "MEMORY", 1)
    assert counts(usual)[:3] == [1, 1, 1]
    many = small(nodes=200, mixing=torch.eye(200, dtype=torch.float64), data=data(2000), model=smooth(width=1))
    monkeypatch.setattr(retraining, "MEMORY", 16 * (5 * 200) ** 2)  # of the joint W, which grows with the square
    assert 1 < retraining.side_by_side(many) < 5


def test_participants_that_work_in_several_ways_are_trained_in_turn():
    network = small(optimizer=["sgd", "adam", "sgd", "sgd"], lr=[0.2, 0.02, 0.2, 0.2])
    evaluation = evaluate_on(network)
    found = retrain(network, ROUNDS, evaluation, updates=without_each(NODES))
    assert float(found[1]) == pytest.approx(measured_at(network, ROUNDS, evaluation, without_each(NODES)[1]), abs=1e-12)


@pytest.mark.parametrize("options", [{"optimizer": "adam", "lr": 0.02}, {"strategy": "loop"}, {"local_steps": 2}])
@pytest.mark.parametrize("together", [1, 3])
def test_whoever_is_left_out_does_no_work(options, together):
    """Not even on data that nobody could train on; and the others train as they would if it worked for nothing."""
    network = small(**options)
    evaluation, subsets = evaluate_on(network), without_each(NODES)[1].expand(3, -1)
    expected = measured_at(network, ROUNDS, evaluation, subsets[0])
    x = network.data.train.x.clone()
    x[network.partition[1]] = nan
    broken = replace(network, data=replace(network.data, train=replace(network.data.train, x=x)))
    found = retrain(broken, ROUNDS, evaluation, updates=subsets, together=together)
    torch.testing.assert_close(found, torch.full((3,), expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    with pytest.raises(DivergedError, match="in retrained network 0, the loss of participant 1"):
        retrain(broken, ROUNDS, evaluation, updates=torch.ones_like(subsets), together=together)


def test_running_statistics_of_whoever_is_left_out_still_change():
    network = small(smooth(nn.BatchNorm1d(4)))
    evaluation, subsets = evaluate_on(network), without_each(NODES)
    found = retrain(network, ROUNDS, evaluation, updates=subsets)
    expected = [measured_at(network, ROUNDS, evaluation, row) for row in subsets]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_a_sample_left_out_is_a_sample_that_is_not_there():
    network = small(batch_size=12)  # everybody's whole data in every batch
    evaluation, samples = evaluate_on(network), torch.ones(1, 48, dtype=torch.float64)
    samples[0, network.partition[1]] = 0
    alone = retrain(network, ROUNDS, evaluation, updates=without_each(NODES)[1:2])
    torch.testing.assert_close(retrain(network, ROUNDS, evaluation, samples=samples), alone)


def test_weights_of_samples_weigh_terms_of_the_gradient():
    network = small(batch_size=4)
    weights = torch.rand(48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plain, weighed = (next(simulate(net, 1)) for net in (network, with_weights(network, samples=weights)))
    from cascadice.engine.networks import Weights
    from cascadice.engine.operator import Operator

    chosen = weights[plain.draw.batch]
    expected, _, _ = Operator(network).work(plain.draw, plain.before, None, Weights(samples=(chosen,)))
    torch.testing.assert_close(weighed.half.theta, expected.theta)
    assert not torch.equal(weighed.half.theta, plain.half.theta)


def test_leaving_one_out():
    network = small()
    evaluation, told = evaluate_on(network), []
    found = leave_one_out(network, ROUNDS, evaluation, trained=told.append)
    run = measured_at(network, ROUNDS, evaluation, 1.0)
    assert float(found[2]) == pytest.approx(run - measured_at(network, ROUNDS, evaluation, without_each(NODES)[2]))
    assert told == [NODES + 1]


@pytest.mark.parametrize("on", ["average", 2])
def test_on_whose_final_models(on):
    """Retrained networks are measured as those of whole-run influence are; shares are theirs, too."""
    network = small()
    evaluation = evaluate_on(network)
    rows = torch.cat([torch.ones(1, NODES), without_each(NODES)]).double()
    slow = [measured_at(network, 5, evaluation, row, on=on) for row in rows]
    torch.testing.assert_close(retrain(network, 5, evaluation, updates=rows, on=on), torch.tensor(slow).double())
    found = leave_one_out(network, 5, evaluation, on=on)
    torch.testing.assert_close(found, slow[0] - torch.tensor(slow[1:]).double())
    shares = whole_run_shares(network, 5, evaluation, on=on, samples=False).participants
    torch.testing.assert_close(contributions(network, 5, evaluation, on=on), shares)
    with pytest.raises(ValueError, match=r'on must be "all", "average" or a participant below'):
        retrain(network, 5, evaluation, updates=rows, on="everyone")


def test_whole_run_influence_predicts_small_changes():
    """Of weights near 1, the prediction is exact to first order."""
    network = small()
    evaluation = evaluate_on(network)
    draw = torch.Generator().manual_seed(0)
    weights = 1 - 0.01 * torch.rand(12, NODES, generator=draw, dtype=torch.float64)
    found = retrain(network, ROUNDS, evaluation, updates=weights)
    score = datamodeling_score(whole_run(network, ROUNDS, evaluation).participants, weights, found, resamples=50)
    assert score.spearman > 0.97
    assert score.low <= score.spearman <= score.high
    assert datamodeling_score(-whole_run(network, ROUNDS, evaluation).participants, weights, found, 50).spearman < -0.97


def test_predictions_in_the_right_order_score_one():
    found = torch.tensor([3.0, 1.0, 2.0, 5.0])
    assert predicts(found * 2, found, 20).spearman == pytest.approx(1)
    assert predicts(-found, found, 20).spearman == pytest.approx(-1)


def test_the_interval_is_as_wide_as_theory_says():
    draw = torch.Generator().manual_seed(0)
    found, noise = torch.randn(2, 200, generator=draw, dtype=torch.float64)
    score = predicts(found + noise, found, 400)
    expected = 2 * 1.96 * (1 - score.spearman**2) / 200**0.5  # of a correlation, to first order
    assert 0.8 < (score.high - score.low) / expected < 1.4


def test_random_subsets_keep_a_part(unchecked):
    found = random_subsets(10, 0.8, 20, seed=1)
    assert found.shape == (20, 10)
    assert set(found.sum(1).tolist()) == {8.0}
    assert len({tuple(row) for row in found.tolist()}) > 5
    assert torch.equal(found, random_subsets(10, 0.8, 20, seed=1))
    for keep in (0.0, 1.0, 0.01, 0.99):
        with pytest.raises(ValueError, match="keep some"):
            random_subsets(10, keep, 3)
    for keep, found in (("a", "'a'"), (nan, "nan"), (inf, "inf"), (None, "None")):
        with pytest.raises(TypeError, match=f"keep must be a number, the fraction .*; found {found}"):
            random_subsets(10, keep, 3)
    for count, found in ((0, "0"), (2.5, "2.5"), (True, "True"), ("3", "str")):
        with pytest.raises(ValueError, match=f"count must be a whole number of subsets, at least 1; found {found}"):
            random_subsets(10, 0.5, count)


def test_bad_input(unchecked):
    network = small()
    evaluation = evaluate_on(network)
    for options, message in (
        ({}, "found neither"),
        ({"updates": torch.zeros(1, NODES)}, "row 0 of updates"),
        ({"samples": torch.zeros(2, 48)}, "row 0 of samples"),
        ({"updates": torch.ones(2, 3)}, r"a column for each of 4 participants; found shape \[2, 3\]"),
        ({"updates": torch.ones(NODES)}, r"found shape \[4\]. Use weights\[None\] for one network"),
        ({"updates": torch.tensor(1.0)}, r"found shape \[\]. Use weights\[None\] for one network"),
        ({"samples": torch.ones(2, 47)}, r"a column for each of 48 training samples; found shape \[2, 47\]"),
        ({"updates": torch.ones(2, NODES), "samples": torch.ones(3, 48)}, "a row for each network; found 2 and 3 rows"),
        ({"samples": torch.full((1, 48), -1.0)}, "weights of samples must be at least 0 and finite; found -1"),
        (
            {"updates": torch.tensor([[1.0, torch.inf, 1.0, 1.0]])},
            "of updates must be at least 0 and finite; found inf",
        ),
        ({"updates": torch.ones(2, NODES), "names": ["one"]}, "a name for each of 2 networks; found 1"),
        ({"updates": torch.ones(0, NODES)}, "row 0 of updates"),
    ):
        with pytest.raises(ValueError, match=message):
            retrain(network, 2, evaluation, **options)
    for rounds, found in ((0, "0"), (True, "True"), (simulate(network, 2), "generator")):
        with pytest.raises(ValueError, match=f"the number of rounds to train, at least 1; found {found}"):
            retrain(network, rounds, evaluation, updates=torch.ones(1, NODES))
    for together in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"networks to train side by side, at least 1; found {together}"):
            retrain(network, 2, evaluation, updates=torch.ones(1, NODES), together=together)
    with pytest.raises(TypeError, match=r"updates must be a tensor; found list. Use torch.tensor\(updates\)"):
        retrain(network, 2, evaluation, updates=[[1] * NODES])
    alone = small(mixing=torch.ones(1, 1), init="shared", q=None)
    with pytest.raises(ValueError, match="at least 2 participants to leave one out; found 1"):
        leave_one_out(alone, 2, evaluate_on(alone))


def test_scores_subsets_and_losses_must_fit(unchecked):
    subsets, scores, losses = random_subsets(6, 0.5, 8), torch.rand(6), torch.rand(8)
    for wrong in ((scores[:5], subsets, losses), (scores, subsets, losses[:7]), (scores, subsets[0], losses)):
        with pytest.raises(ValueError, match=r"a row for each of .* and a column for each of .* found"):
            datamodeling_score(*wrong)
    with pytest.raises(ValueError, match=r"each of 7 retrained networks and .* each of 5 scores; found 8 × 6\."):
        datamodeling_score(scores[:5], subsets, losses[:7])
    for place, name in enumerate(("scores", "subsets", "retrained")):
        listed = [each.tolist() if place == i else each for i, each in enumerate((scores, subsets, losses))]
        with pytest.raises(TypeError, match=rf"^{name} must be a tensor; found list\. Use torch\.tensor\({name}\)"):
            datamodeling_score(*listed)
    with pytest.raises(
        ValueError, match=r"at least 3 networks must be retrained, .*; found 1\. Retrain on more subsets"
    ):
        datamodeling_score(scores, subsets[:1], losses[:1])
    with pytest.raises(ValueError, match=r"one prediction for each retrained value.* found 8 predictions of 7 values"):
        predicts(losses, losses[:7])
    with pytest.raises(ValueError, match=r"and 0 resamples"):
        predicts(losses, losses, 0)


def test_samples_that_share_statistics_cannot_be_left_out():
    network = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="BatchNorm"):
        retrain(network, 2, evaluate_on(network), samples=random_subsets(48, 0.5, 2))


def test_leave_one_out_says_without_whom_a_network_diverges():
    """Three participants double their parameters, the fourth keeps the average small."""

    def times(factor):
        return Optimizer(lambda theta: {}, lambda gradient, state, theta, lr: (factor * lr[..., None] * theta, state))

    network = small(
        mixing=torch.full((4, 4), 0.25), optimizer=[*[times(1.0)] * 3, times(-6.0)], lr=1.0, dtype="float32"
    )
    with pytest.raises(DivergedError, match=r"^in the network without participant 3, .* became NaN or infinite"):
        leave_one_out(network, 200, evaluate_on(network))


def test_a_network_that_diverges_is_named():
    network = small(lr=0.1, dtype="float32", optimizer=build("sgd", weight_decay=0.1))
    weights = torch.ones(3, NODES, dtype=torch.float64)
    weights[2] = 1e30
    with pytest.raises(DivergedError, match="retrained network 2"):
        retrain(network, 30, evaluate_on(network), updates=weights)
