import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cascadice.console import Console
from cascadice.data.corruption import Corruption
from cascadice.engine import Metrics
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw, Round
from cascadice.influence import agreement
from cascadice.influence.cascade import Cascade
from cascadice.influence.readings import accumulate, by_hop
from cascadice.influence.tables import concatenate, table_of, table_of_participants, table_of_samples
from cascadice.influence.uncertainty import bounds_of_sums, bounds_of_totals
from cascadice.report.page.sentences import final_models
from cascadice.runs.round_metrics import RoundMetrics
from cascadice.runs.summary import injected_faults, sides, summarise
from cascadice.runs.words import meaning, print_summary

NODES, HOPS = 4, 2
KINDS = ("truth", "path-integrated, 2 points", "first order")


def cascade(kind, t, sources=range(NODES)):
    draw = torch.Generator().manual_seed(1000 * t + len(kind))
    value = torch.randn(HOPS + 1, len(sources), NODES, generator=draw, dtype=torch.float64)
    value[0] *= torch.eye(NODES)[list(sources)]
    return Cascade(kind, t, tuple(sources), value)


def cascades(kind, **options):
    return [cascade(kind, t, **options) for t in (3, 8)]


def table(**options):
    return concatenate(table_of(one) for kind in reversed(KINDS) for one in cascades(kind, **options))


def test_sums_are_those_of_the_readings():
    found = summarise(table(), NODES)
    assert found.rounds == (3, 8)
    assert tuple(found.updates) == KINDS  # the most accurate first
    for kind in KINDS:
        run = accumulate(cascades(kind))
        np.testing.assert_allclose(found.participants[kind], run.total)
        np.testing.assert_allclose(found.matrix[kind], run.value[1:].sum(0))
        sizes = torch.stack([by_hop(one).abs() for one in cascades(kind)]).mean((0, 2))
        np.testing.assert_allclose(found.by_hop[kind], sizes)


def test_estimates_are_compared_with_the_truth_update_by_update():
    found = summarise(table(), NODES)
    true, estimate = (torch.cat([one.total for one in cascades(kind)]) for kind in ("truth", "first order"))
    assert set(found.agreements) == {"path-integrated, 2 points", "first order"}
    np.testing.assert_allclose(found.agreements["first order"], agreement(true, estimate))


def test_ranks_are_also_compared_within_each_round():
    """Pooled over rounds they would say how rounds differ, not who helped more in a round."""
    pairs = zip(cascades("truth"), cascades("first order"), strict=True)
    each = [agreement(true.total, estimate.total).spearman for true, estimate in pairs]
    found = summarise(table(), NODES)
    np.testing.assert_allclose(found.within_rounds["first order"], (sum(each) / len(each), min(each), max(each)))
    assert f"{sum(each) / len(each):.2f} ({min(each):.2f} to {max(each):.2f})" in told(found)


def test_rounds_in_which_all_updates_did_the_same_have_no_ranks():
    true, estimate = cascades("truth"), cascades("first order")
    true[1].value.fill_(0.5)
    found = summarise(concatenate(map(table_of, [*true, *estimate])), NODES).within_rounds["first order"]
    assert found == pytest.approx((agreement(true[0].total, estimate[0].total).spearman,) * 3)


def test_whoever_was_not_asked_about_is_in_no_ranking():
    found = summarise(table(sources=[0, 3]), NODES)
    totals = found.participants["truth"]
    assert np.isnan(totals[1:3]).all()
    assert {node for side in sides(found, "truth")[:3] for node, _ in side} == {0, 3}


def test_too_few_updates_make_no_agreement():
    few = concatenate(table_of(cascade(kind, 0, sources=[1, 2])) for kind in KINDS)
    assert summarise(few, NODES).agreements == {}


def test_shares_are_no_estimate_of_removal():
    shares = table_of_participants("shares, 2 points", 3, torch.arange(4.0))
    found = summarise(concatenate([table_of(cascade("truth", 3)), shares]), NODES)
    assert found.agreements == {}
    assert found.participants["shares, 2 points"].tolist() == [0, 1, 2, 3]
    assert list(found.by_hop) == ["truth"]


def drawn(t, batch):
    nobody = Participants(torch.zeros(2, 1), {}, {})
    return Round(Draw(t, torch.tensor(batch)[:, None], torch.eye(2), 0.1), nobody, nobody, nobody, torch.zeros(2))


def sampled(kind, scale=1.0):
    scores = torch.tensor([[-1.0, 2.0], [0.5, torch.nan]], dtype=torch.float64)
    rounds = drawn(0, [[7, 8], [9, 3]]), drawn(1, [[7, 5], [9, 3]])
    return concatenate(table_of_samples(kind, done, scale * scores) for done in rounds)


def test_samples_add_up_over_their_uses():
    found = summarise(sampled("shares, 2 points"), 2)
    scores = [tuple(one)[:4] for one in found.samples["shares, 2 points"]]
    assert scores == [(0, 7, 2, -2.0), (1, 9, 2, 1.0), (0, 5, 1, 2.0), (0, 8, 1, 2.0)]


def used(*rounds):
    """A table of participant 0's samples 0, 1, 2 …, all used in every round, with these scores."""
    scores = [torch.tensor([one, [torch.nan] * len(one)], dtype=torch.float64) for one in rounds]
    numbers = list(range(len(rounds[0])))
    return concatenate(
        table_of_samples("first order", drawn(t, [numbers, numbers]), one) for t, one in enumerate(scores)
    )


NOISY = [-0.5, 0.3, -0.1, 0.2], [-0.6, 0.4, 0.3, 0.2], [-0.55, 0.35, -0.1, 0.2]


def bounds_of_noisy():
    group, rounds = np.tile(np.arange(4), 3), np.repeat(np.arange(3), 4)
    return bounds_of_sums(np.array(NOISY).ravel(), group, rounds, np.zeros(4, dtype=int))


def test_samples_have_the_intervals_of_their_uses():
    found = summarise(used(*NOISY), 2).samples["first order"]
    bounds = bounds_of_noisy()
    for one in found:
        assert (one.low, one.high) == pytest.approx((bounds.low[one.sample], bounds.high[one.sample]))
    verdicts = {one.sample: one.verdict for one in found}
    assert verdicts == {0: "helped", 1: "harmed", 2: "within noise", 3: "harmed"}
    assert {one.verdict for one in summarise(used(NOISY[0]), 2).samples["first order"]} == {"used once"}


def test_samples_within_noise_are_in_no_list_of_those_that_helped_or_harmed():
    text = told(summarise(used(*NOISY), 2))
    assert "Of 4 samples used more than once, 1 clearly helped and 2 clearly harmed" in text
    listed = [line.split() for line in text.splitlines() if re.match("h.+ed  participant", line)]
    assert [(line[0], line[3]) for line in listed] == [("helped", "0"), ("harmed", "1"), ("harmed", "3")]
    assert listed[0][-3:] == ["-1.6500", "±", f"{bounds_of_noisy().high[0] + 1.65:.4f}"]


@pytest.mark.parametrize(
    ("rounds", "why"),
    [(NOISY[:1], "each was used once in these rounds, so its score has no interval"),
     (([-1.0, 1.0], [2.0, -3.0]), "no score has a 95 % interval that excludes 0")],
)  # fmt: skip
def test_without_clear_samples_the_order_is_said_to_be_doubtful(rounds, why):
    text = told(summarise(used(*rounds), 2))
    assert f"The order of samples may be noise: {why}" in text
    assert "Samples with the lowest and the highest scores (first order)" in text
    verbs = {line.split()[0] for line in text.splitlines() if "  participant 0" in line}
    assert verbs == {"lowest", "highest"}


def test_estimates_of_samples_are_compared_with_the_truth_too():
    found = summarise(concatenate([sampled("truth"), sampled("first order", 2.0)]), 2)
    assert found.sample_agreements["first order"].pearson == pytest.approx(1)
    assert found.sample_agreements["first order"].slope == pytest.approx(2)


def measures(t, accuracy):
    seen = None if accuracy is None else Metrics(torch.tensor([0.5, 1.5]), torch.tensor([accuracy, accuracy]))
    return RoundMetrics(t, torch.ones(2), torch.tensor(0.0), seen)


def test_accuracy_is_that_of_the_rounds_looked_at():
    run = [measures(0, 0.1), measures(2, 0.25), measures(3, None), measures(7, 0.75), measures(20, 0.99)]
    found = summarise(table(), NODES, run)
    assert [tuple(result) for result in found.test_results] == [(2, "accuracy", 0.25), (7, "accuracy", 0.75)]
    regression = summarise(table(), NODES, [measures(4, float("nan"))])
    assert [tuple(result) for result in regression.test_results] == [(4, "loss", 1.0)]
    assert summarise(table(), NODES, [measures(3, None)]).test_results == ()


def test_what_participants_were_told_to_do_wrong():
    network = SimpleNamespace(
        members=(), corruptions=(Corruption("flip-labels", (1, 2)),), behaviours=(Behaviour("free-rider", (2,)),)
    )
    assert injected_faults(network) == {1: "flip-labels", 2: "flip-labels, free-rider"}


def told(found, **options):
    text = io.StringIO()
    print_summary(Console(file=text, width=120), found, **options)
    return text.getvalue()


def test_findings_in_words():
    value = torch.zeros(2, 3, 3, dtype=torch.float64)
    value[0] = torch.diag(torch.tensor([-0.5, 0.25, 0.0]))
    true, estimate = Cascade("truth", 4, (0, 1, 2), value), Cascade("first order", 4, (0, 1, 2), 2 * value)
    text = told(summarise(concatenate(map(table_of, (true, estimate))), 3, [measures(4, 0.75)], {1: "flip-labels"}))
    for line in (
        "Influence of the updates in round 4: the change of the weighted mean test loss. Negative lowered the loss (he",
        "helped  participant 0                   -0.5000",
        "harmed  participant 1 (flip-labels)     +0.2500",
        "no influence: participant 2",
        "on itself, before gossip   0.25000       0.50000",
        "first order    1.0000     1.0000                     1.00           1.000",
        "mean test accuracy of the participants: 0.750 (round 4)",
    ):
        assert line in text


def test_the_final_models_come_first_with_what_shares_sum_to():
    scores = torch.tensor([-0.5, 0.25, 0.0], dtype=torch.float64)
    kinds = ("truth", "whole-run at 0.5", "whole-run shares")
    rows = [table_of_participants(kind, t, scores) for kind in kinds for t in (0, 1)]
    found = summarise(concatenate(rows), 3, training_change=-0.75)
    assert list(found.updates) == ["whole-run shares", "whole-run at 0.5", "truth"]
    text = told(found)
    for line in (
        "Influence of the updates in 2 rounds from 0 to 1: each participant's share of what training did to the test",
        "Who helped the final models, and who harmed them (whole-run shares, summed over rounds)",
        "helped  participant 0     -1.0000",
        "no influence: participant 2\nshares sum to -0.5000; training changed the loss by -0.7500",
    ):
        assert line in text
    assert "shares sum" not in told(summarise(concatenate(rows), 3))
    assert "contributed to the final models" not in text


@pytest.mark.parametrize(("change", "warning"), [
    (-0.5, ""),
    (-0.504, ""),
    (-0.54, ". The shares miss what training changed by 7 %"),
    (-0.75, ". The shares miss what training changed by 33 %: do not read them as parts of a whole"),
    (0.3, ". The shares do not even have the same sign as what training changed: do not read them as parts of a whole"),
    (0.0, ". The shares do not even have the same sign as what training changed: do not read them as parts of a whole"),
])  # fmt: skip
def test_shares_that_do_not_add_up_are_called_so(change, warning):
    scores = table_of_participants("whole-run shares", 0, torch.tensor([-0.75, 0.25, 0.0], dtype=torch.float64))
    text = told(summarise(scores, 3, training_change=change, asked={"points": "4"}))
    uncovered = (
        ". The 95 % intervals of shares, and of payments made from them, show only how much shares vary between "
        "rounds; they do not include this error, which may be larger for a single participant"
    )
    advice = (
        ". Use more points: repeat the command with --points 8 --overwrite. If that brings the "
        "sum no closer, training is too rough for shares: lower the learning rate"
    ) * ("parts of a whole" in warning)
    rest = warning + uncovered + advice if warning else ""
    assert f"shares sum to -0.5000; training changed the loss by {change:+.4f}{rest}\n" in text


@pytest.mark.parametrize(("on", "models", "them"), [
    ("all", "the final models", "them"), ("average", "the average model", "it"), ("3", "3's final model", "it"),
])  # fmt: skip
def test_the_models_that_were_measured_are_named(on, models, them):
    scores = torch.tensor([-0.75, 0.25, 0.0], dtype=torch.float64)
    for kind in ("whole-run shares", "whole-run at 0.5"):
        found = summarise(table_of_participants(kind, 0, scores), 3, asked={"on": on})
        text, page = told(found), [*final_models(found), meaning(kind, found)]
        assert f"Who helped {models}, and who harmed {them} ({kind}" in text
        assert f"test loss of {models}" in text.partition("\n")[0]
        assert page[:2] == [f"Participant 0 (-0.75) helped {models}.", f"Participant 1 (+0.25) harmed {models}."]
        assert all("the final models" not in line for line in (text, *page)) or on == "all"


def test_rounds_whose_updates_were_not_weighted_are_left_out_of_intervals():
    rounds = torch.tensor([[0.0, 0.0], [-0.5, 0.3], [-0.6, 0.4], [0.0, 0.0]], dtype=torch.float64)
    rows = concatenate(table_of_participants("whole-run shares", t, row) for t, row in enumerate(rounds))
    run = [measures(0, 0.1), measures(3, 0.9)]
    found = summarise(rows, 2, run, training_change=-0.4, asked={"during": "1, 3"})
    np.testing.assert_allclose(found.bounds["whole-run shares"], bounds_of_totals(rounds[1:3].numpy()))
    assert found.rounds == (1, 2)
    for line in (
        "Influence of the updates in 2 rounds from 1 to 2: each participant's share of what the updates of rounds 1 to "
        "2 did to the test loss of the final models.",
        "shares sum to -0.4000; the updates of rounds 1 to 2 changed the loss by -0.4000",
        "0.100 (round 0) -> 0.900 (round 3)",
    ):
        assert line in told(found)


@pytest.mark.parametrize(("scores", "whole_run", "one_hop"), [
    ([-1.0, 1.0, 0.0], "Who helped the final models, and who harmed them (", ", and whose raised it ("),
    ([-1.0, 0.0, 0.0], "Who helped the final models (", "Whose updates lowered the loss ("),
    ([0.0, 1.0, 0.0], "Who harmed the final models (", "Whose updates raised the loss ("),
    ([0.0, 0.0, 0.5], "Nobody clearly helped or harmed the final models", "Nobody's updates clearly lowered or raised"),
])  # fmt: skip
def test_the_headline_promises_only_what_intervals_allow(scores, whole_run, one_hop):
    noisy = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, -3.0]], dtype=torch.float64)
    for kind, title in (("whole-run", whole_run), ("truth", one_hop)):
        rounds = torch.tensor([scores] * 2, dtype=torch.float64) + noisy
        rows = [table_of_participants(kind, t, row) for t, row in enumerate(rounds)]
        assert title in told(summarise(concatenate(rows), 3))


@pytest.mark.parametrize(("asked", "title"), [
    ({"hops": "0"}, "Whose updates lowered the loss before any gossip, and whose raised it (truth, "),
    ({"hops": "1"}, "Whose updates lowered the loss within 1 hop, and whose raised it (truth, "),
    ({"hops": "3"}, "Whose updates lowered the loss within 3 hops, and whose raised it (truth, "),
    ({}, "Whose updates lowered the loss, and whose raised it (truth, "),
])  # fmt: skip
def test_sums_over_hops_are_not_called_help_to_the_final_models(asked, title):
    scores = table_of_participants("truth", 0, torch.tensor([-0.75, 0.25, 0.0], dtype=torch.float64))
    text = told(summarise(scores, 3, asked=asked))
    assert title in text
    assert "These sums do not tell who contributed to the final models. For that, use --kind whole-run.\n" in text


def test_what_is_within_noise_is_not_called_harm():
    rounds = torch.tensor([[-0.5, 0.3, -0.1, 0.0], [-0.6, 0.4, 0.3, 0.0], [-0.55, 0.35, -0.1, 0.0]]).double()
    rows = concatenate(table_of_participants("truth", t, scores) for t, scores in enumerate(rounds))
    text = told(summarise(rows, 4))
    assert "helped  participant 0     -1.6500   -2.0227 to -1.2773" in text
    assert "harmed  participant 1     +1.0500" in text
    assert "within noise (the interval includes 0): participant 2 +0.1000\nno influence: participant 3" in text
    unclear = concatenate(table_of_participants("truth", t, scores[2:]) for t, scores in enumerate(rounds))
    assert "(truth, summed over rounds)\nwithin noise" in told(summarise(unclear, 2))  # no table without rows


def test_small_numbers_show_three_digits():
    rows = [table_of_participants("truth", t, torch.tensor([-1.5e-6, 2e-7 * (t - 0.4)]).double()) for t in (0, 1, 2)]
    text = told(summarise(concatenate(rows), 2))
    assert "helped  participant 0   -0.00000450   -0.00000450 to -0.00000450" in text
    assert "participant 1 +0.00000036" in text
    assert "-0.00000300 ± 0.00000000" in told(summarise(used([-1e-6, 0.0], [-1e-6, 0.0], [-1e-6, 0.0]), 2))


def test_a_derivative_is_not_called_a_change():
    scores = torch.tensor([-0.5, 0.25, 0.0], dtype=torch.float64)
    text = told(summarise(table_of_participants("whole-run at 0.5", 0, scores), 3))
    assert (
        "changes with the weight of a participant's updates: a derivative, not the effect of leaving them out" in text
    )
    assert "change of the" not in text


def test_how_many_more_helped_and_harmed():
    scores = torch.linspace(-1, 1, 17, dtype=torch.float64)  # 8 helped, 8 harmed, 5 of each are named
    found = summarise(table_of_participants("truth", 0, scores), 17)
    assert "3 more helped and 3 more harmed: all in the table\n" in told(found, where=": all in the table")
    few = summarise(table_of_participants("truth", 0, scores[4:13]), 9)
    assert "more h" not in told(few, where=": all in the table")


@pytest.mark.parametrize(("kind", "sees_scale", "warned"), [
    ("whole-run shares", False, True), ("whole-run shares", True, False), ("first order", False, False),
])  # fmt: skip
def test_under_adam_samples_are_not_ranked_as_if_it_meant_something(kind, sees_scale, warned):
    updates = table_of_participants(kind, 0, torch.tensor([-1.0, 2.0], dtype=torch.float64))
    text = told(summarise(concatenate([updates, sampled(kind)]), 2, sees_scale=sees_scale))
    assert ("Do not choose samples by these scores: Adam and clipping" in text) == warned
    assert ("LDS 0.1 to 0.3 for an MLP on images, 0.63 for a transformer on text" in text) == warned
    assert ("A larger ε may help: train with --optimizer-options eps=1e-4 (in Python" in text) == warned
    assert ("Samples that clearly helped and harmed" in text) != warned


def test_samples_in_words_with_their_labels():
    found = summarise(sampled("first order"), 2)
    text = told(found, classes=["cat", "dog"], labels=dict(enumerate([0] * 7 + [1, 0, 1])))
    helped, harmed = (line.split() for line in text.splitlines() if "ed  participant " in line)
    assert helped[:7] == ["helped", "participant", "0", "7", "dog", "2", "-2.0000"]
    assert harmed[:7] == ["harmed", "participant", "1", "9", "dog", "2", "+1.0000"]
    assert "2 more were used once and have no interval." in text
