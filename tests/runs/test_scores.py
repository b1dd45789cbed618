"""One call to numbers: two questions that cannot be confused, and two tables that are never mixed."""

import re

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import cascadice as cd
from cascadice.influence.tables import concatenate, table_of_participants
from cascadice.influence.whole_run_shares import measured_at
from cascadice.runs.score_table import ScoreTable
from cascadice.runs.scores import Scores


@pytest.fixture(scope="module")
def network():
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    data = cd.data.from_tensors(x[:72], y[:72], x[72:], y[72:])
    liar, rider = cd.Corruption("mirror-labels", (1,)), cd.Behaviour("free-rider", (2,))
    model = cd.models.build("mlp", (5,), 2, hidden=(4,), activation="tanh")
    return cd.network(model, data, nodes=4, mixing="ring", batch_size=6, corruptions=[liar], behaviours=[rider])


@pytest.fixture(scope="module")
def rounds(network):
    return list(cd.simulate(network, 8))


def of_participants(scores):
    values = scores.participants
    return values["influence"][np.argsort(values["participant"])]


def test_by_default_it_is_about_the_final_models(network, rounds):
    scores = cd.score(network, rounds)
    wanted = cd.influence.whole_run(network, rounds, cd.influence.evaluate_on(network), samples=False)
    np.testing.assert_allclose(of_participants(scores), wanted.participants)
    assert scores.kind == "whole-run"
    assert "final models" in scores.question
    verdicts = dict(zip(scores.participants["participant"], scores.participants["verdict"], strict=True))
    assert (verdicts[0], verdicts[1], verdicts[2]) == ("helped", "harmed", "no influence")


def test_another_weight_of_all_updates_is_in_the_heading(network, rounds):
    scores = cd.score(network, rounds, at=0.5)
    assert (scores.kind, scores.at) == ("whole-run", 0.5)
    assert repr(scores).startswith("Scores (whole-run at 0.5) of 4 participants over 8 rounds")
    assert scores._repr_html_().startswith("<b>Scores</b> (whole-run at 0.5 over 8 rounds")
    assert scores.question.endswith("counts for more, in the run with all updates × 0.5")
    assert "(whole-run at 0.5)" in scores.plot(Figure().subplots()).get_title()


@pytest.mark.parametrize("kind", ["whole-run", "whole-run-shares"])
def test_rounds_that_begin_later_leave_out_what_was_trained_before(network, rounds, kind):
    note = "what was trained before round 5 is not counted"
    scores = cd.score(network, rounds[5:], kind=kind)
    assert scores.question.endswith(note)
    assert f"{note}; negative helped" in repr(scores)
    assert note in scores._repr_html_()
    assert "not counted" not in repr(cd.score(network, rounds, kind=kind))
    assert "not counted" not in repr(cd.score(network, rounds[5:], hops=1))


@pytest.mark.parametrize(("points", "missed"), [(12, ""), (1, "parts of a whole")])
def test_shares_say_what_they_sum_to(network, rounds, points, missed):
    scores, evaluation = (
        cd.score(network, rounds, kind="whole-run-shares", points=points),
        cd.influence.evaluate_on(network),
    )
    total, (before, after) = (
        of_participants(scores).sum(),
        (measured_at(network, 8, evaluation, at) for at in (0.0, 1.0)),
    )
    sums = f"shares sum to {total:+.4f}; training changed the loss by {after - before:+.4f}"
    assert sums in repr(scores).splitlines()[-1]
    assert sums in scores._repr_html_()
    assert missed in scores.sums
    assert ("Use more points: points=2. If that brings the sum no closer" in scores.sums) == bool(missed)
    assert cd.score(network, rounds).sums == ""


def test_with_hops_it_is_about_rounds(network, rounds):
    scores = cd.score(network, rounds, hops=2, kind="truth")
    windows = [rounds[t : t + 2] for t in range(7)]
    evaluation = cd.influence.evaluate_on(network)
    wanted = sum(cd.influence.truth(network, window, evaluation).total for window in windows)
    np.testing.assert_allclose(of_participants(scores), wanted, rtol=1e-5, atol=1e-8)
    assert "each round" in scores.question
    assert "2 hops later" in scores.question
    assert cd.score(network, 3, 2).kind == "shares"


def test_an_estimator_of_one_s_own_can_be_asked(network, rounds, monkeypatch):
    mine = cd.influence.estimators.ESTIMATORS["truth"]._replace(question="what I found {hops} later")
    monkeypatch.setitem(cd.influence.estimators.ESTIMATORS, "mine", mine)
    assert cd.score(network, rounds, kind="mine", hops=1).question == "each round: what I found 1 hop later"


def test_samples_have_a_table_of_their_own(network, rounds):
    scores = cd.score(network, rounds, samples=True)
    assert len(scores.participants) == len(scores.to_pandas()) == 4
    frame = scores.samples.to_pandas()
    assert list(frame.columns) == [
        "participant", "sample", "uses", "influence", "low", "high", "verdict", "label"
    ]  # fmt: skip
    assert set(frame.verdict) <= {"helped", "harmed", "within noise", "used once"}
    clear = frame[frame.verdict.isin(["helped", "harmed"])]
    assert 0 < len(clear) < len(frame)
    assert (clear.low * clear.high > 0).all()
    assert frame.uses.sum() == 8 * 4 * 6
    totals = frame.groupby("participant").influence.sum()
    np.testing.assert_allclose(totals, of_participants(scores), atol=1e-6)
    with pytest.raises(ValueError, match="samples were not scored"):
        _ = cd.score(network, rounds).samples


def test_what_is_within_noise_is_neither_help_nor_harm():
    updates = np.array([[-1.0, 1.0, 0.5], [-1.1, 1.2, -0.6], [-0.9, 1.1, 0.4], [-1.0, 0.9, -0.2]])
    from cascadice.runs.scores import _scores
    from cascadice.runs.summary import summarise

    class Bare:
        data = None

    tables = [table_of_participants("whole-run", t, torch.from_numpy(row)) for t, row in enumerate(updates)]
    summary = summarise(concatenate(tables), 3)
    table = _scores(summary, "whole-run", "", Bare()).participants
    assert list(table["participant"]) == [0, 2, 1]
    assert list(table["verdict"]) == ["helped", "within noise", "harmed"]
    assert table["low"][1] < 0 < table["high"][1]


def test_they_are_short_in_print(network, rounds):
    scores = cd.score(network, rounds, samples=True)
    assert isinstance(scores, Scores)
    assert repr(scores).count("\n") == 6
    assert "negative helped" in repr(scores)
    assert " over 8 rounds: " in repr(scores)
    assert "used once" not in repr(scores).partition("\n")[0]
    assert "may be noise: each was used once in these rounds" in repr(cd.score(network, rounds[:1], samples=True))
    assert repr(scores.samples).count("\n") == 9  # four of each end
    assert "<td>mirror-labels</td>" in scores._repr_html_()
    assert len(repr(network)) < 200
    assert len(repr(rounds[0])) < 200
    assert "data: tensors" in network._repr_html_()
    evaluation, own = cd.influence.evaluate_on(network), cd.influence.evaluate_on(network, [network.data.test] * 4)
    assert repr(evaluation) == "Evaluation(cross_entropy on 24 samples, for everyone)"
    assert repr(own) == "Evaluation(cross_entropy on 24 samples, of its own for each of 4 participants)"
    assert repr(network.data.test) == "Samples(24 of 5, float32, on cpu)"
    assert repr(network.data) == (
        "DataSet(tensors, train=Samples(72 of 5, float32, on cpu), test=Samples(24 of 5, float32, on cpu), 2 classes)"
    )
    swept = cd.influence.whole_run(network, rounds, evaluation)
    assert re.fullmatch(
        r"WholeRun\(4 participants, 8 rounds, 192 scores of samples, value [\d.]+, gap 0\)", repr(swept)
    )
    small = ScoreTable("", {"influence": np.array([-1.234e-6, 0.0]), "low": np.array([np.nan, -2e-7])})
    assert [line.split() for line in repr(small).splitlines()[1:]] == [
        ["-0.00000123", "none"],
        ["+0.00000000", "-0.00000020"],
    ]
    table = ScoreTable("a < b", {"influence": np.array([1.0])})
    assert "<p>a &lt; b</p>" in table._repr_html_()


@pytest.mark.parametrize(("optimizer", "warned"), [("adam", True), ("momentum", False)])
def test_samples_are_not_to_be_chosen_by_scores_where_the_optimizer_hides_the_size_of_gradients(optimizer, warned):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = cd.data.from_tensors(x[:32], (x[:32, 0] > 0).long(), x[32:], (x[32:, 0] > 0).long())
    network = cd.network(torch.nn.Linear(3, 2), data, nodes=2, optimizer=optimizer, batch_size=8)
    scores, words = cd.score(network, 6, samples=True), "Do not choose samples by these scores"
    shown = [repr(scores), scores._repr_html_(), repr(scores.samples), scores.samples._repr_html_()]
    assert [words in text for text in [*shown, scores.samples.to_pandas().attrs.get("caution", "")]] == [warned] * 5
    assert words not in repr(cd.score(network, 6))


def test_they_say_which_rounds_were_scored(network, rounds):
    later = cd.score(network, rounds[2:6])
    assert later.rounds == (2, 3, 4, 5)
    assert " over rounds 2 to 5 (4 rounds): " in repr(later)
    assert "whole-run over rounds 2 to 5 (4 rounds); negative helped" in later._repr_html_()
    assert later.plot(ax=Figure().subplots()).get_title().endswith("(whole-run, rounds 2 to 5 (4 rounds))")
    assert " over round 3: " in repr(cd.score(network, rounds[3:4]))


def test_they_can_be_plotted(network, rounds):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert cd.score(network, rounds).plot(axes) is axes
    assert len(axes.patches) == 4
    assert "the final models" in axes.get_title()


def test_progress_is_shown(network, capsys):
    rounds = list(cd.simulate(network, 3, progress=True))
    assert "trained round 2, 3/3" in capsys.readouterr().out
    cd.score(network, rounds, progress=True)
    cd.score(network, rounds, hops=2, progress=True)
    printed = capsys.readouterr().out
    assert "whole-run influence, 3/3" in printed
    assert "scoring rounds, 2/2" in printed
    with pytest.raises(ValueError, match="progress needs the number of rounds"):
        next(iter(cd.simulate(network, progress=True)))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"kind": "truth"}, "kind 'truth' is about rounds: give hops"),
        ({"kind": "whole-run", "hops": 2}, "kind 'whole-run' is about the final models: leave out hops"),
        ({"kind": "trut", "hops": 1}, "Did you mean 'truth'"),
        ({"hops": 99}, "99 hops need at least 99 rounds"),
    ],
)
def test_questions_that_make_no_sense_are_refused(network, rounds, asked, reason):
    with pytest.raises(ValueError, match=reason):
        cd.score(network, rounds, **asked)


def test_wrong_kinds_are_named(network, rounds, unchecked):
    with pytest.raises(TypeError, match=r"hops must be a whole number, or None for the final models; found 2\.5"):
        cd.score(network, rounds, hops=2.5)
    for wrong, found in ((rounds[0], "Round"), (network, "Network"), (rounds[0].after.theta, "Tensor")):
        with pytest.raises(
            TypeError, match=f"rounds must be a list of rounds, such as those of simulate; found {found}"
        ):
            cd.score(network, wrong)
    with pytest.raises(TypeError, match=r"found function\. Use influence\.evaluate_on"):
        cd.score(network, rounds, evaluation=cd.losses.accuracy)
    with pytest.raises(TypeError, match=r"network must be a Network; found \w+\. Build it with cascadice\.network"):
        cd.score(network.learner.training, rounds)
    for asked in ({"kind": "whole-run-shares", "points": "3"}, {"hops": 1, "points": 2.5}):
        with pytest.raises(TypeError, match=f"points must be a whole number.*found {asked['points']!r}"):
            cd.score(network, rounds, **asked)
    assert "over round 0: " in repr(cd.score(network, rounds[:1]))
