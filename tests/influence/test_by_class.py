"""Influence by class: slopes of each class's loss, and predictions that a sum of scores cannot make."""

from dataclasses import replace

import pytest
import torch
from engine.cases import data, make
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from cascadice.data.inputs import IGNORED
from cascadice.engine import evaluate_on, simulate
from cascadice.engine.parts import part_of
from cascadice.influence import measures
from cascadice.influence.by_class import DOUBLED, ByClass, reciprocal, whole_run_by_class
from cascadice.influence.retraining import retrain, without_each
from cascadice.influence.whole_run import whole_run

ROUNDS = 5


@pytest.mark.parametrize("at", [1.0, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_class_has_the_slopes_of_its_own_run(at, optimizer):
    network = make(optimizer=optimizer)
    found = whole_run_by_class(network, ROUNDS, evaluate_on(network), at=at)
    labels = network.data.test.y
    for place, label in enumerate(labels.unique()):
        own = network.data.test.subset((labels == label).nonzero().flatten())
        expected = whole_run(network, ROUNDS, evaluate_on(network, own), at=at, samples=False)
        assert_close(found.slopes[place], expected.participants, rtol=1e-12, atol=1e-14)
        assert_close(float(found.losses[place].sum()), expected.value)
        assert_close(float(found.parts[place]), len(own) / len(labels))


def test_classes_make_up_the_whole():
    network = make()
    found = whole_run_by_class(network, ROUNDS, evaluate_on(network), at=0.8)
    whole = whole_run(network, ROUNDS, evaluate_on(network), at=0.8, samples=False)
    assert_close(found.participants, whole.participants, rtol=1e-12, atol=1e-14)
    at_alpha = torch.full((1, network.nodes), 0.8, dtype=torch.float64)
    assert_close(float(found.predicted(at_alpha)), whole.value)


def test_predictions_have_the_slopes_at_alpha():
    network = make()
    found = whole_run_by_class(network, ROUNDS, evaluate_on(network), at=0.5)
    kept = torch.full((1, network.nodes), 0.5, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(found.predicted(kept).sum(), kept)
    assert_close(slopes[0], found.participants)


def test_losses_whose_reciprocals_add_up_are_predicted_exactly():
    draw = torch.Generator().manual_seed(0)
    data, parts = torch.rand(3, 6, generator=draw, dtype=torch.float64) + 0.1, torch.tensor([0.2, 0.3, 0.5]).double()
    at = 0.8
    losses = 1 / (at * data.sum(1))
    scores = ByClass(at, parts, losses[:, None].expand(3, 6) / 6, -data * losses[:, None] ** 2)
    kept = without_each(6)  # takes away less than half of each class
    assert_close(scores.predicted(kept), (1 / (kept @ data.T)) @ parts)


def test_predicted_losses_stay_finite_and_smooth_where_a_reciprocal_would_reach_zero():
    rise = torch.tensor([DOUBLED - 1e-9, DOUBLED, DOUBLED + 1e-9], dtype=torch.float64, requires_grad=True)
    loss = reciprocal(rise)
    (slope,) = torch.autograd.grad(loss.sum(), rise)
    assert_close(loss.detach(), torch.full_like(loss, 2.0), rtol=0, atol=1e-8)
    assert_close(slope, torch.full_like(slope, 4.0), rtol=0, atol=1e-7)
    at_pole = torch.ones((), dtype=torch.float64, requires_grad=True)  # of 1 / (1 − rise), whose gradient is infinite
    reciprocal(at_pole).backward()
    assert (reciprocal(at_pole).item(), at_pole.grad.item()) == (4.0, 4.0)
    beyond = reciprocal(torch.linspace(-3, 9, 100, dtype=torch.float64))
    assert bool((beyond.diff() > 0).all())  # the order is kept where 1 / (1 − rise) would change its sign
    assert bool((beyond > 0).all())


def test_kept_rounds_are_read_as_they_are():
    network = make()
    kept = list(simulate(network, ROUNDS))
    found, played = (whole_run_by_class(network, rounds, evaluate_on(network)) for rounds in (kept, ROUNDS))
    assert_close(found.slopes, played.slopes, rtol=1e-12, atol=1e-14)


def test_a_short_run_is_predicted_closely():
    network = make(lr=0.01)
    evaluation = evaluate_on(network)
    subsets = without_each(network.nodes)
    expected = retrain(network, ROUNDS, evaluation, updates=subsets)
    assert_close(whole_run_by_class(network, ROUNDS, evaluation).predicted(subsets), expected, rtol=0, atol=2e-4)


def test_refusals():
    network = make()
    own = evaluate_on(network, [network.data.test] * network.nodes)
    with pytest.raises(ValueError, match=r"needs evaluation data that everyone shares, with one class for each sample"):
        whole_run_by_class(network, ROUNDS, own)
    with pytest.raises(ValueError, match=r"with one class for each sample"):
        whole_run_by_class(make("transformer"), ROUNDS, evaluate_on(make("transformer")))
    summed = evaluate_on(network, measure=lambda outputs, y: cross_entropy(outputs, y, reduction="sum"))
    with pytest.raises(ValueError, match=r"a measure that is a mean over samples; its classes add up"):
        whole_run_by_class(network, ROUNDS, summed)
    below = evaluate_on(network, measure=lambda outputs, y: cross_entropy(outputs, y) - 9)
    with pytest.raises(ValueError, match=r"a measure above 0 on every class, and above rounding .*; found -"):
        whole_run_by_class(network, ROUNDS, below)
    solved = evaluate_on(network, measure=lambda outputs, y: cross_entropy(outputs, y) * 1e-16)
    with pytest.raises(
        ValueError, match=r"and above rounding \(2.2e-15\); found .*e-17\. Use a loss that is, or whole_run"
    ):
        whole_run_by_class(network, ROUNDS, solved)


def test_measures_that_no_single_class_has_are_named():
    network = make()
    labels = network.data.test.y
    first, *_, last = labels.unique().tolist()
    of_one = evaluate_on(network, measure=measures.on_class(last))
    with pytest.raises(
        ValueError, match=rf"a measure of any samples; on the samples of class {first} it is nan\. Use the"
    ):
        whole_run_by_class(network, ROUNDS, of_one)
    gap = evaluate_on(network, measure=measures.gap(labels == last))
    with pytest.raises(
        ValueError, match=rf"on the samples of class {first} it fails: group must have .*\. Use the plain"
    ):
        whole_run_by_class(network, ROUNDS, gap)


def test_ignored_targets_are_no_class():
    network = make()
    test = network.data.test
    counted = torch.arange(len(test)) >= 3
    ignoring = replace(test, y=torch.where(counted, test.y, IGNORED))
    found = whole_run_by_class(network, ROUNDS, evaluate_on(network, ignoring), at=0.8)
    expected = whole_run_by_class(
        network, ROUNDS, evaluate_on(network, test.subset(counted.nonzero().flatten())), at=0.8
    )
    for name in ("parts", "losses", "slopes"):
        assert_close(getattr(found, name), getattr(expected, name))


def test_subsets_are_checked(unchecked):
    scores = ByClass(1.0, torch.ones(1).double(), torch.ones(1, 4).double(), -torch.ones(1, 4).double())
    with pytest.raises(TypeError, match=r"a column for each of 4 participants; found list\. Use torch\.tensor\(kept\)"):
        scores.predicted([[1, 1, 1, 1]])
    for wrong in (torch.ones(1, 5), torch.ones(4), torch.ones(2, 1, 4)):
        with pytest.raises(ValueError, match=r"each of 4 participants; found shape \["):
            scores.predicted(wrong)
    for wrong, shown in ((float("nan"), "nan"), (5.0, "5"), (-1.0, "-1")):
        with pytest.raises(ValueError, match=f"1 for participants in a subset, else 0; found {shown}"):
            scores.predicted(torch.full((1, 4), wrong))
    with pytest.raises(ValueError, match=r"each subset must keep somebody; row 1 of kept leaves nobody\. Without"):
        scores.predicted(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    assert_close(scores.predicted(torch.ones(1, 4).bool()), torch.tensor([4.0]).double())


def test_a_class_that_loses_all_its_holders_is_predicted_to_have_four_times_its_loss():
    """If 1 / L_c is the data in the class, nothing of it is left; the line that takes over ends at 4 L_c(α)."""
    data, at = torch.tensor([[0.7, 0.3, 0.0]]).double(), 0.8
    loss = 1 / (at * data.sum(1))
    scores = ByClass(at, torch.ones(1).double(), loss[:, None].expand(1, 3) / 3, -data * loss[:, None] ** 2)
    assert_close(scores.predicted(torch.tensor([[0, 0, at]]).double()), 4 * loss)


def test_data_has_several_classes():
    assert len(data().test.y.unique()) > 2  # or the tests above show nothing


def test_a_measure_that_does_not_fit_is_refused_before_anything_is_trained():
    network, played = make(), []
    summed = evaluate_on(network, measure=lambda outputs, y: cross_entropy(outputs, y, reduction="sum"))
    below = evaluate_on(network, measure=lambda outputs, y: cross_entropy(outputs, y) - 9)
    for evaluation, problem in ((summed, "a mean over samples"), (below, "a measure above 0 on every class")):
        with pytest.raises(ValueError, match=problem):
            whole_run_by_class(network, ROUNDS, evaluation, played=lambda: played.append(1))
    assert not played


def test_slopes_too_large_to_believe_come_with_a_warning():
    network = make(lr=40.0)
    with pytest.warns(RuntimeWarning, match="but the whole loss was"):
        found = whole_run_by_class(network, 12, evaluate_on(network))
    assert float(found.participants.abs().max()) > float(found.parts @ found.losses.sum(1))


def test_a_part_of_a_network_needs_its_exchange():
    part = part_of(make(), (0, 1))
    with pytest.raises(ValueError, match=r"found the parameters of 2\. A part of a network needs the exchange"):
        whole_run_by_class(part, ROUNDS, evaluate_on(part))
    with pytest.raises(ValueError, match="A part of a network needs the exchange"):
        retrain(part, ROUNDS, evaluate_on(part), updates=torch.ones(1, 2))
