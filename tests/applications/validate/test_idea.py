"""Estimates beside networks that were trained again: what is computed, what it says, and what is refused."""

from collections import deque
from math import comb, isnan, nan

import pytest
import torch
from influence.cases import NODES, small, smooth

from cascadice import seeds
from cascadice.applications.validate import idea
from cascadice.applications.validate.advice import advise, trust
from cascadice.applications.validate.estimates import (
    ESTIMATES,
    Setting,
    estimate,
    how_to_compute,
    kinds_of,
    name_of,
)
from cascadice.applications.validate.findings import forecast
from cascadice.applications.validate.idea import (
    EACH,
    SUBSETS,
    Checked,
    Results,
    check,
    compare,
    distinct_subsets,
    make_plan,
    ranked,
    steps,
    train,
    validate,
)
from cascadice.engine import DivergedError, simulate
from cascadice.influence import agreement, by_class, evaluate_on, first_order, shares, shares_of_samples, truth
from cascadice.influence.by_class import whole_run_by_class
from cascadice.influence.retraining import Prediction, leave_one_out, paired_advantage, retrain, without_each
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import contributions, measured_at, whole_run_shares
from cascadice.runs.config import Config, build

ROUNDS, SAMPLES = 6, 48


def setting(*, samples=False, keep=0.5, rounds=ROUNDS, **options):
    network = small(**options)
    return Setting(network, rounds, evaluate_on(network), keep, samples)


def checked(name, spearman, low, high, trainings=1.0, subsets=48, behind=None):
    lds = Prediction(spearman, low, high, spearman)
    return Checked(name, torch.zeros(subsets).double(), lds, None, trainings, behind)


def test_whole_run_estimates_are_those_of_the_library():
    here = setting()
    network, rounds, evaluation, *_ = here
    expected = {
        "whole-run": whole_run(network, rounds, evaluation, at=0.5).participants,
        "whole-run-at-1": whole_run(network, rounds, evaluation).participants,
        "whole-run-at-0.5": whole_run(network, rounds, evaluation, at=0.5).participants,
        "whole-run-shares": contributions(network, rounds, evaluation),
    }
    for kind, scores in expected.items():
        torch.testing.assert_close(estimate(kind, here), scores)
    of_samples = setting(samples=True)
    found = estimate("whole-run-shares", of_samples)
    torch.testing.assert_close(found, whole_run_shares(network, rounds, evaluation).by_sample(SAMPLES))


def test_by_class_it_predicts_as_the_library_does():
    here = setting()
    subsets = distinct_subsets(NODES, 0.5, 6)
    classes = whole_run_by_class(*here[:3], at=0.5)
    plan = make_plan(here, subsets, ["whole-run-by-class"], leave_one_out=True)
    trained, results = train(here), Results()
    deque(steps(here, plan, trained, results), maxlen=0)
    (found,) = compare(here, plan, trained, results)
    torch.testing.assert_close(found.predicted, classes.predicted(subsets))
    lost = classes.predicted(torch.ones(1, NODES)) - classes.predicted(without_each(NODES))
    expected = agreement(lost, trained.value - results[EACH])
    assert found.leaving_out.spearman == pytest.approx(expected.spearman)
    with pytest.raises(ValueError, match=r"'whole-run-by-class' scores participants only"):
        estimate("whole-run-by-class", setting(samples=True))


@pytest.mark.parametrize(("kind", "hops"), [("first-order", 1), ("truth", 1), ("shares", 4)])
def test_estimates_of_rounds_are_summed_over_the_run(kind, hops):
    here = setting()
    network, rounds = here.network, list(simulate(here.network, ROUNDS))
    function = {"first-order": first_order, "truth": truth, "shares": shares}[kind]
    windows = [rounds[t : t + hops] for t in range(ROUNDS - hops + 1)]
    each = [function(network, window, here.evaluation) for window in windows]
    totals = [one if isinstance(one, torch.Tensor) else one.total for one in each]
    torch.testing.assert_close(estimate(kind, here), torch.stack(totals).sum(0))


def test_of_a_long_run_every_nth_round_stands_for_n(monkeypatch):
    monkeypatch.setattr("cascadice.applications.validate.estimates.SCORED", 3)
    here = setting()
    rounds = list(simulate(here.network, ROUNDS))
    each = [first_order(here.network, [rounds[t]], here.evaluation).total for t in (0, 2, 4)]
    torch.testing.assert_close(estimate("first-order", here), 2 * torch.stack(each).sum(0))


def test_samples_of_rounds_are_summed_over_the_run():
    here = setting(samples=True)
    rounds, expected = list(simulate(here.network, ROUNDS)), torch.zeros(SAMPLES).double()
    for t in range(ROUNDS - 3):
        found = shares_of_samples(here.network, rounds[t : t + 4], here.evaluation, 2)
        expected.index_add_(0, rounds[t].draw.batch.reshape(-1), found.reshape(-1))
    torch.testing.assert_close(estimate("shares", here), expected)


def test_only_some_estimates_score_samples():
    assert "truth" not in kinds_of(samples=True)
    assert kinds_of(samples=False) == list(ESTIMATES)
    here = setting()
    usual = make_plan(here, distinct_subsets(here.size, 0.5, 4), None, False).kinds
    assert set(ESTIMATES) - set(usual) == {"whole-run-at-0.5", "whole-run-by-class"}  # checked if named
    with pytest.raises(ValueError, match=r"'truth' scores participants only. For samples use any of whole-run, "):
        estimate("truth", setting(samples=True))
    with pytest.raises(ValueError, match=r"unknown estimate 'whole-runs'. Did you mean 'whole-run'"):
        estimate("whole-runs", setting())


@pytest.mark.parametrize(("size", "keep", "count"), [(16, 0.8, 48), (5, 0.8, 48), (6, 0.5, 19), (60, 0.5, 4)])
def test_subsets_are_distinct_and_more_begin_with_the_same(size, keep, count):
    subsets = distinct_subsets(size, keep, count)
    assert len(subsets) == min(count, comb(size, round(keep * size))) == len(subsets.unique(dim=0))
    assert bool((subsets.sum(1) == round(keep * size)).all())
    torch.testing.assert_close(distinct_subsets(size, keep, 2 * count)[: len(subsets)], subsets)
    assert not torch.equal(distinct_subsets(size, keep, count, seed=5), subsets)


def test_subsets_that_cannot_be():
    with pytest.raises(ValueError, match=r"must keep some and leave some out; the fraction 0.1 of 4 keeps none"):
        distinct_subsets(4, 0.1, 48)
    with pytest.raises(ValueError, match=r"at least 4 different subsets are needed.*; found 3, of 3 that keep 2 of 3"):
        distinct_subsets(3, 0.67, 48)
    with pytest.raises(ValueError, match=r"count must be a whole number of subsets, at least 1; found 0"):
        distinct_subsets(4, 0.5, 0)


def test_whole_run_is_taken_at_the_part_that_is_really_kept():
    here = setting(keep=0.6)  # of 4 it keeps 2
    assert (here.kept, here.part, here.in_words) == (2, 0.5, "2 of 4 participants")
    assert name_of("whole-run", here) == "whole-run at 0.5"
    expected = whole_run(here.network, here.rounds, here.evaluation, at=0.5, samples=False).participants
    torch.testing.assert_close(estimate("whole-run", here), expected, rtol=0, atol=0)


def test_scores_that_are_right_have_an_lds_of_one():
    subsets, scores = distinct_subsets(6, 0.5, 20), torch.tensor([3.0, -1.0, 4.0, -1.5, 5.0, -9.0]).double()
    found = check("right", scores, 2.0, subsets, 1 + subsets @ scores, scores)
    assert (found.lds.spearman, found.lds.pearson) == pytest.approx((1, 1))
    assert (found.lds.low, found.leaving_out.spearman) == pytest.approx((1, 1))
    assert check("wrong", -scores, 2.0, subsets, subsets @ scores).lds.high == pytest.approx(-1)
    assert isnan(check("constant", torch.ones(6).double(), 1.0, subsets, subsets @ scores).lds.spearman)


def test_it_says_how_to_compute_an_estimate_if_it_can_be_trusted():
    here = setting(keep=0.8)
    assert how_to_compute("whole-run", here) == "cascadice influence RUN --kind whole-run --at 0.75"
    assert how_to_compute("whole-run-by-class", here).startswith(f"{by_class.__name__}.{whole_run_by_class.__name__}(")
    quality = "accuracy", torch.tensor([0.9])
    for low, said in ((0.5, ["To compute it: this."]), (-0.1, []), (nan, [])):
        (one,) = [checked("a", 0.8, low, 0.9)._replace(how="this")]
        assert list(advise([one], here, 0.3, torch.tensor([0.3, 0.4]), quality))[1:-2] == said


@pytest.mark.parametrize("samples", [False, True])
def test_it_is_what_retraining_and_estimates_give(samples):
    here = setting(samples=samples)
    kinds = ["first-order", "whole-run"]
    found = {one.name: one for one in validate(here, subsets=5, kinds=kinds, leave_one_out=not samples, seed=3)}
    subsets = distinct_subsets(here.size, 0.5, 5, seed=3)
    weights = {"samples" if samples else "updates": subsets}
    retrained = retrain(here.network, ROUNDS, here.evaluation, **weights)
    left_out = None if samples else leave_one_out(here.network, ROUNDS, here.evaluation)
    for kind in kinds:
        expected = check(name_of(kind, here), estimate(kind, here), 1.0, subsets, retrained, left_out)
        one = found[name_of(kind, here)]
        torch.testing.assert_close(one.predicted, expected.predicted)
        assert one.lds == pytest.approx(expected.lds, nan_ok=True)
        assert (one.leaving_out is None) == samples
        assert samples or one.leaving_out == pytest.approx(expected.leaving_out)
        assert one.trainings > 0
    assert name_of("whole-run", here) == "whole-run at 0.5"


def test_one_kind_needs_no_list():
    (found,) = validate(setting(), subsets=4, kinds="whole-run")
    assert found.name == "whole-run at 0.5"


def test_the_best_comes_first_and_what_says_nothing_last():
    here, trained = setting(), train(setting())
    subsets = distinct_subsets(NODES, 0.5, 6)
    worth = torch.tensor([1.0, 2.0, 4.0, 8.0]).double()
    scores = {"truth": torch.ones(NODES).double(), "shares": -worth, "first-order": worth}
    results = {SUBSETS: subsets @ worth, **scores}
    results |= {f"{kind}: trainings": torch.tensor(1.0).double() for kind in scores}
    plan = make_plan(here, subsets, list(scores), leave_one_out=False)
    found = compare(here, plan, trained, results)
    assert [one.name for one in found] == ["first order, 1 hop", "shares, 4 hops", "truth, 1 hop"]


def test_it_goes_on_where_it_stopped(monkeypatch):
    monkeypatch.setitem(idea.TOGETHER, "cpu", 2)
    here = setting()
    trained, plan = train(here), make_plan(here, distinct_subsets(NODES, 0.5, 5), ["first-order"], True)
    whole, kept = Results(), Results()
    said = list(steps(here, plan, trained, whole))
    assert said[0] == "estimated first order, 1 hop"
    assert said[1:4] == [f"trained {done} of 5 subsets" for done in (2, 4, 5)]
    assert said[4:] == ["trained 2 of 4 with one left out", "trained 4 of 4 with one left out"]
    stopped = steps(here, plan, trained, kept)
    assert [next(stopped) for _ in range(3)] == said[:3]
    counted = []
    monkeypatch.setattr(idea, "retrain", lambda *args, **more: counted.append(more["names"]) or retrain(*args, **more))
    monkeypatch.setattr(idea, "estimate", None)
    assert list(steps(here, plan, trained, kept)) == said
    assert [len(names) for names in counted] == [1, 2, 2]
    for name in (SUBSETS, EACH):
        torch.testing.assert_close(kept[name], whole[name])


def test_one_training_is_the_run():
    here = setting()
    trained = train(here)
    assert trained.value == pytest.approx(measured_at(here.network, ROUNDS, here.evaluation, 1.0))
    assert trained.seconds > 0


def test_estimates_that_cannot_follow_running_statistics_are_not_planned():
    here, subsets = setting(model=smooth(torch.nn.BatchNorm1d(4))), distinct_subsets(NODES, 0.5, 4)
    plan = make_plan(here, subsets, None, leave_one_out=False)
    assert plan.kinds == ("first-order", "truth", "shares")
    steps_done = list(steps(here, plan, train(here), results := Results()))
    assert len(steps_done) == 4
    assert set(plan.kinds) < set(results)
    said = (
        r"'whole-run-at-1' does not follow .* '2.running_mean' changes .* any of first-order, truth, shares, or Group"
    )
    with pytest.raises(ValueError, match=said):
        make_plan(here, subsets, ["truth", "whole-run-at-1"], leave_one_out=False)
    with pytest.raises(ValueError, match=r"is a BatchNorm: .* Score participants, or use GroupNorm"):
        make_plan(here._replace(samples=True), torch.ones(1, SAMPLES), None, leave_one_out=False)


def test_what_cannot_be_planned():
    here = setting(samples=True)
    subsets = distinct_subsets(SAMPLES, 0.5, 4)
    with pytest.raises(ValueError, match="samples are too many to leave each of 48 out in turn"):
        make_plan(here, subsets, None, leave_one_out=True)
    with pytest.raises(ValueError, match="there must be at least one estimate"):
        make_plan(here, subsets, [], leave_one_out=False)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (False, r"in the network without participants \d, \d, participant \d sent parameters of norm inf"),
        (True, r"in the network of subset \d, without 24 of 48 samples, the loss of participant \d became NaN"),
    ],
)
def test_a_subset_that_diverges_is_named(samples, said):
    here = setting(samples=samples, lr=1e308, rounds=4)
    plan = make_plan(here, distinct_subsets(here.size, 0.5, 4), ["whole-run"], leave_one_out=False)
    results = {"whole-run": torch.zeros(here.size).double()}
    with pytest.raises(DivergedError, match=said):
        list(steps(here, plan, idea.Trained(here.network.initial, 0.0, 1.0), results))


def test_an_estimate_that_diverges_is_named_with_how_to_check_the_others():
    here = setting(lr=1e308, rounds=4)
    plan = make_plan(here, distinct_subsets(here.size, 0.5, 4), ["truth", "shares", "whole-run"], leave_one_out=False)
    results, trained = {"truth": torch.zeros(here.size)}, idea.Trained(here.network.initial, 0.0, 1.0)
    with pytest.raises(DivergedError, match=r"^in the estimate 'shares, 4 hops', .* use --kinds truth,whole-run\.$"):
        list(steps(here, plan, trained, results))


@pytest.mark.parametrize(("rounds", "every"), [(24, 1), (60, 2), (125, 4)])
def test_a_forecast_counts_the_rounds_that_are_scored(rounds, every):
    here = setting(rounds=rounds, samples=True)
    plan = make_plan(here, distinct_subsets(here.size, 0.5, 4), None, leave_one_out=False)
    kinds = ("whole-run", "whole-run-at-1", "whole-run-shares", "first-order", "shares")
    assert (here.every, plan.kinds) == (every, kinds)
    known = {idea.SUBSETS: torch.zeros(4)}
    assert forecast(here, plan, known) == 19 + 44 // every
    assert forecast(here, plan, known | {"shares": torch.zeros(here.size)}) == 18 + 4 // every
    assert forecast(here, plan, known | dict.fromkeys(kinds, torch.zeros(here.size))) == 1


def test_a_final_loss_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setattr(idea, "retrain", lambda *args, **more: torch.tensor([1.0, nan, 1.0, 1.0]).double())
    here = setting()
    subsets = distinct_subsets(NODES, 0.5, 4)
    plan = make_plan(here, subsets, ["whole-run"], leave_one_out=False)
    absent = ", ".join(map(str, (subsets[1] == 0).nonzero().flatten().tolist()))
    with pytest.raises(ArithmeticError, match=f"in the network without participants {absent}, the final loss is NaN"):
        list(steps(here, plan, train(here), {"whole-run": torch.zeros(NODES).double()}))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            [checked("a", 0.93, 0.87, 0.97), checked("b", -0.41, -0.6, -0.2)],
            "On your network, trust a (LDS 0.93, 0.87 to 0.97); b (-0.41) ranks subsets the wrong way round.",
        ),
        (
            [checked("a", 0.2, -0.1, 0.5), checked("b", -0.4, -0.6, -0.2), checked("c", -0.5, -0.6, -0.2)],
            "On your network, trust none of these estimates: the best is a (LDS 0.20, -0.10 to 0.50), and more "
            "--subsets may settle it; b (-0.40) and c (-0.50) rank subsets the wrong way round.",
        ),
        ([checked("a", 0.62, 0.4, 0.8)], "On your network, trust a most, but with care (LDS 0.62, 0.40 to 0.80)."),
        ([checked("a", 0.9, 0.8, 1.0)], "On your network, trust a (LDS 0.90, 0.80 to 1.00)."),
        (
            [checked("a", nan, nan, nan)],
            "No estimate distinguishes subsets on your network, or all subsets gave the same loss.",
        ),
    ],
)
def test_the_advice_in_one_sentence(found, said):
    assert trust(found) == said


@pytest.mark.parametrize(
    ("subsets", "others", "said"),
    [
        (8, [(0.9, 0.2, 0.95, (0.1, 0.2)), (0.3, 0.1, 0.4, (0.2, 0.9))],
         ["Too few subsets (8) to tell whether these are worse: b (0.90) and c (0.30)."]),
        (48, [(0.9, 0.2, 0.99, (0.02, 0.4)), (0.6, 0.1, 0.7, (-0.01, 0.8))],
         ["Not clearly worse: c (0.60; -0.01 to 0.80 behind).", "Clearly worse: b (0.90; 0.02 to 0.40 behind)."]),
        (48, [(0.9, 0.2, 0.99, (0.004, 0.4))], ["Not clearly worse: b (0.90; 0.00 to 0.40 behind)."]),
    ],
)  # fmt: skip
def test_clearly_worse_takes_a_paired_interval_above_0_and_subsets_enough(subsets, others, said):
    best = checked("a", 1.0, 1.0 if subsets == 8 else 0.97, 1.0, subsets=subsets)
    rest = zip("bc", others, strict=False)
    ones = [best, *(checked(name, *other, subsets=subsets, behind=behind) for name, (*other, behind) in rest)]
    found = list(advise(ones, setting(), 0.3, torch.tensor([0.3, 0.4]).double(), ("accuracy", torch.tensor([0.9]))))
    assert found[1:-2] == said
    care = (
        " most, but with care (LDS 1.00, 1.00 to 1.00, from 8 subsets only)." if subsets == 8 else " (LDS 1.00, 0.97 "
    )
    assert found[0].startswith(f"On your network, trust a{care}")


def scored(name, predicted, retrained):
    return check(name, predicted, 1.0, torch.eye(len(predicted)).double(), retrained)


def noise(seed, size=48):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def test_estimates_that_err_alike_are_told_apart_by_the_same_subsets():
    retrained, error = torch.arange(48).double(), 20 * noise(0)
    best, other = ranked(
        [scored("other", 0.5 * retrained + error, retrained), scored("best", retrained + error, retrained)], retrained
    )
    assert (best.name, best.behind) == ("best", None)
    assert other.lds.high > best.lds.low + 0.05  # each by itself, they cannot be told apart
    assert other.behind[0] > 0.05
    found = list(advise([best, other], setting(), 0.3, retrained, ("accuracy", torch.tensor([0.9]))))
    assert found[1].startswith("Clearly worse: other")
    again = ranked([best, other], retrained)
    assert again[1].behind == other.behind  # seeded


def test_estimates_that_err_apart_may_be_alike():
    retrained = torch.arange(48).double()
    ones = [scored(str(seed), retrained + 14 * noise(seed), retrained) for seed in (2, 3)]
    best, other = ranked(ones, retrained)
    assert other.behind[0] < 0 < other.behind[1]
    found = list(advise([best, other], setting(), 0.3, retrained, ("accuracy", torch.tensor([0.9]))))
    assert found[1].startswith(f"Not clearly worse: {other.name} (")
    assert " behind)" in found[1]


def test_the_interval_of_a_difference_is_that_of_resampled_differences():
    """By a loop over bootstrap samples."""
    retrained = noise(0, 12)
    one, other = retrained + noise(1, 12), retrained + 2 * noise(2, 12)
    picks = torch.randint(12, (200, 12), generator=seeds.generator(0, "bootstrap", 12))
    each = [[agreement(retrained[pick], values[pick]).spearman for values in (one, other)] for pick in picks]
    expected = torch.tensor([a - b for a, b in each], dtype=torch.float64).quantile(
        torch.tensor([0.025, 0.975], dtype=torch.float64)
    )
    assert paired_advantage(one, other, retrained, 200) == pytest.approx(tuple(expected.tolist()), abs=1e-12)
    assert all(map(isnan, paired_advantage(one, torch.zeros(12).double(), retrained, 200)))


def test_advice_names_what_is_as_good_and_what_says_nothing_and_how_good_the_network_is():
    ones = [checked("a", 0.9, 0.05, 1.0, 4.0), checked("b", 0.85, 0.7, 1.0, 2.0), checked("c", 0.1, -0.2, 0.4)]
    found = list(
        advise(ones, setting(), 0.31, torch.tensor([0.3, 0.4]).double(), ("accuracy", torch.tensor([0.9, 0.8])))
    )
    assert found[1] == "Not clearly worse: b (0.85). b is cheaper: 2.0 trainings, not 4.0."
    assert found[2] == "No better than guessing, as far as these subsets show: c (0.10)."
    assert "over 2 random subsets, each with 2 of 4 participants" in found[3]
    assert found[4].startswith(
        "The full run's test accuracy is 0.850 on average (0.800 to 0.900). Its mean test loss is"
    )


@pytest.mark.parametrize(
    ("accuracy", "loss", "said"),
    [
        (0.099, 2.358, "The network has not learned (test accuracy 0.10 with 10 classes): correlations mean little."),
        (0.13, 2.2, "The network has not learned (test accuracy 0.13 with 10 classes)"),  # 355 test samples
        (0.14, 2.2, "On your network, trust"),
        (0.4, 2.358, "The mean test loss (2.358) is not below that of predicting all 10 classes equally (2.303): corr"),
    ],
)
def test_it_says_first_if_the_network_has_not_learned(accuracy, loss, said):
    network = build(Config(nodes=2, model_options=("hidden=[4]",)))
    quality, here = ("accuracy", torch.tensor([accuracy])), Setting(network, 1, evaluate_on(network))
    first, *others = advise([checked("a", 0.78, 0.6, 0.9)], here, loss, torch.tensor([2.3, 2.4]), quality)
    assert first.startswith(said)
    assert "trust a" in first + others[0]


@pytest.mark.parametrize(("spearman", "accuracy"), [(0.69, 0.9), (nan, 0.9), (0.69, 0.1), (0.7, 0.9)])
def test_it_says_what_makes_a_network_easier_to_predict(spearman, accuracy):
    network = build(Config(nodes=2, model_options=("hidden=[4]",)))
    quality, here = ("accuracy", torch.tensor([accuracy])), Setting(network, 1, evaluate_on(network))
    said = list(advise([checked("a", spearman, 0.1, 0.9)], here, 0.3, torch.tensor([0.3, 0.4]), quality))
    rough = any("Smoother training is easier to predict: a lower learning rate" in sentence for sentence in said)
    assert rough is (accuracy > 0.1 and spearman != 0.7)


def test_values_are_not_called_learned_or_not():
    quality, one = ("loss", torch.tensor([2.358])), [checked("a", 0.78, 0.6, 0.9)]
    assert "trust a" in next(advise(one, setting(), 2.358, torch.tensor([2.3, 2.4]), quality))
