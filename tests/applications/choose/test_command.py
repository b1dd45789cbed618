"""`cascadice choose` and `cascadice run --rule` as their user meets them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from cascadice import topology
from cascadice.applications.choose import findings
from cascadice.applications.choose.charts import LOWERED, charts, signed_table
from cascadice.applications.choose.findings import conflict
from cascadice.cli import main
from cascadice.engine import evaluate_on
from cascadice.influence.uncertainty import Bounds, bounds_of_totals
from cascadice.influence.whole_run_shares import share_out, whole_run_shares
from cascadice.runs import store
from cascadice.runs.folder import read_config
from cascadice.runs.recording import open_recording

RUN = ["--nodes", "6", "--model-options", "hidden=[12]", "--per-node", "96", "--batch-size", "16", "--lr", "0.2"]
TOLD = ["run", *RUN, "--rounds", "25", "--quiet", "--topology", "complete"]


@pytest.fixture
def undrawn(monkeypatch):
    """Without pictures, which take longer than the rest."""
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    monkeypatch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: path.touch())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recorded run of six with a sign-flipper, number 4."""
    place = tmp_path_factory.mktemp("choose") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        assert main([*TOLD, "--behaviours", "sign-flipper:4", "--record", "all", "--out", str(place)]) == 0
    return place


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The same in eight rounds, which are enough to see who helped in the end."""
    place = tmp_path_factory.mktemp("short") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        told = [*TOLD, "--rounds", "8", "--behaviours", "sign-flipper:4", "--record", "all", "--out", str(place)]
        assert main(told) == 0
    return place


@pytest.fixture
def choose(recorded, tmp_path, capsys, one_thread):
    """Call the command on that run, with results in a folder of this test's own."""

    def call(*arguments, run=recorded):
        code = main(["choose", str(run), "--out", str(tmp_path / "out"), *arguments])
        return code, *capsys.readouterr()

    return call


def test_finds_who_should_go_and_suggests_a_w_that_runs(choose, recorded, tmp_path, capsys):
    code, out, err = choose()
    assert (code, err) == (0, "")
    found = json.loads((tmp_path / "out" / "choose.json").read_text())
    assert (found["command"], found["run"]) == ("choose", open_recording(recorded).fingerprint)
    assert (tmp_path / "out" / found["figure"]).stat().st_size > 10_000
    assert found["groups"] == [0, 0, 0, 0, -1, 0]
    assert [one["verdict"] for one in found["advice"]] == [*["keep"] * 4, "expel", "keep"]
    told = "Participant 4: expel; by cosine, it helps nobody. It changed its neighbours' losses by +"
    assert any(text.startswith(told) for text in found["findings"])
    assert any(text.startswith("Who helps, the groups and the suggested W go by cosines") for text in found["findings"])
    assert not any("help one another" in text for text in found["findings"])
    low, high = (np.array(end).T for end in found["intervals"]["influence_between"])
    dropped = (np.array(found["mixing"]) == 0) & ~np.eye(6, dtype=bool)
    counts = f"{(high < 0)[dropped].sum()} clearly helped, {(low > 0)[dropped].sum()} clearly harmed"
    assert any(text.startswith(f"Of the {dropped.sum()} links it drops, {counts}") for text in found["findings"])
    assert (low[:, 4] > 0)[[0, 1, 2, 3, 5]].all()  # what the sign-flipper sent clearly harmed
    assert all(sentence in out for sentence in found["findings"])
    assert found["known"] == {"4": "sign-flipper"}
    assert len(found["neighbourhoods"]) == len(found["rounds"]) == len(found["pairs"]) == 13
    assert found["pairs"][-1][0][0] == 1
    W = topology.read_csv(tmp_path / "out" / "mixing.csv")
    assert not W[[0, 1, 2, 3, 5], 4].any()
    assert (W[[0, 1, 2, 3, 5]][:, [0, 1, 2, 3, 5]] > 0).all()
    again = ["run", str(recorded), "--mixing", str(tmp_path / "out" / "mixing.csv"), "--record", "none", "--quiet"]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0


def test_matrices_are_those_of_the_readings(choose, recorded, tmp_path, undrawn):
    from cascadice.influence import evaluate_on, own_data, proximity
    from cascadice.influence.proximity import in_turn

    assert choose("--quiet")[0] == 0
    found = json.loads((tmp_path / "out" / "choose.json").read_text())
    recording = open_recording(recorded)
    own = evaluate_on(recording.network, own_data(recording.network, 96))
    total = sum(proximity(recording.network, d, in_turn(own, d.t, 96)).influence for d in recording.load_rounds())
    torch.testing.assert_close(torch.tensor(found["influence_between"], dtype=torch.float64), total)
    rounds = [proximity(recording.network, d, in_turn(own, d.t, 96)).influence for d in recording.load_rounds()]
    values = torch.stack(rounds).numpy()
    for j, k in ((0, 1), (4, 2), (3, 3)):
        wanted = bounds_of_totals(values[:, [j], k])
        low, high = (end[j][k] for end in found["intervals"]["influence_between"])
        assert (low, high) == pytest.approx((float(wanted.low[0]), float(wanted.high[0])), rel=1e-6)
    others = values * (1 - torch.eye(6).numpy())
    for name, sums in {
        "influence_given": others.sum(2),
        "influence_taken": others.sum(1),
        "influence_given_minus_taken": others.sum(2) - others.sum(1),
    }.items():
        wanted = bounds_of_totals(sums)
        assert found["half_widths"][name] == pytest.approx((wanted.high - wanted.low) / 2, rel=1e-5)


def test_where_cosines_and_what_links_carried_disagree_it_says_why_and_which_to_follow():
    pair = ~torch.eye(2, dtype=torch.bool)
    harmed, helped = (Bounds(np.full((2, 2), low), np.full((2, 2), low + 0.1)) for low in (0.1, -0.2))
    said, follow = conflict(pair, pair, harmed)
    assert said.startswith("Cosines and what links carried disagree about 2 of 2 links: 2 fit by cosine but clearly")
    assert "Where steps overshoot, as they can at a high learning rate" in said
    assert follow.startswith("Where the two disagree, follow the cosines; --by contribution says")
    said, _ = conflict(~pair, pair, helped)
    assert "2 of 2 links: 2 clearly helped but fit less than others. " in said
    assert said.endswith("Labels that contradict each other show in cosines, and hardly in what a link carried.")
    assert "overshoot" not in said
    assert [*conflict(pair, pair, helped)] == [*conflict(~pair, pair, harmed)] == []
    one_way = Bounds(np.array([[0.0, 0.1], [-0.2, 0.0]]), np.array([[0.0, 0.2], [-0.1, 0.0]]))  # from 0 to 1: harm
    said, _ = conflict(torch.tensor([[False, False], [True, False]]), pair, one_way)
    assert "disagree about 2 of 2 links: 1 fit by cosine but clearly harmed and 1 clearly helped" in said


def test_its_matrix_on_the_page_says_that_it_shows_cosines():
    results = {"groups": [0, 0], "influence": [[0, -0.5], [-0.4, 0]], "gave": [[1, 1]], "took": [[1, 1]], "rounds": [0]}
    drawn = charts({**results, "advice": [{"verdict": "keep"}] * 2})[0]
    (heat,) = drawn["traces"]
    assert drawn["title"] == "Cosines of summed updates, sorted by group"
    assert (heat["z"][0][1], heat["z"][1][0]) == (0.4, 0.5)  # the same way: positive, and blue
    assert heat["reversescale"]
    assert heat["colorbar"]["title"]["text"] == "cosine: + same way, − opposite ways"
    assert [drawn["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == ["source j", "receiver k"]
    assert "Blue = updates point the same way" in drawn["note"]


def test_points_that_crowd_have_no_numbers_over_each_other():
    results = {"groups": [0] * 4, "influence": [[0] * 4] * 4, "rounds": [0], "advice": [{"verdict": "keep"}] * 4}
    drawn = charts({**results, "gave": [[1, 1.01, 5, 1]], "took": [[1, 1.02, 1, 4]]})[1]
    assert drawn["traces"][1]["text"] == ["", "", "2", "3"]
    assert drawn["traces"][1]["customdata"] == [0, 1, 2, 3]  # pointing at one says which it is
    assert drawn["note"].endswith("Where points crowd, their numbers are in the table.")
    apart = charts({**results, "gave": [[1, 2, 3, 4]], "took": [[1, 2, 3, 4]]})[1]
    assert apart["traces"][1]["text"] == ["0", "1", "2", "3"]
    assert "crowd" not in apart["note"]


def test_says_which_to_follow_where_cosines_and_the_final_models_disagree(choose, monkeypatch, undrawn, tmp_path):
    monkeypatch.setattr(findings, "helped_finally", lambda recording: {0, 4})
    assert choose()[0] == 0
    found = json.loads((tmp_path / "out" / "choose.json").read_text())
    assert {one["verdict"] for one in found["advice"]} == {"keep"}
    told = "Participant 4: keep; by cosine, it helps nobody, but its data clearly helped the final models. "
    assert [text.startswith(told) for text in found["findings"]].count(True) == 1
    assert findings.FINAL in found["findings"]


def test_its_table_on_the_page_has_the_signs_and_words_of_the_page():
    table = {"columns": ["participant", "group", "gave", "± gave", LOWERED], "rows": [[0, -1, 0.5, 0.1, -2.0]]}
    shown = signed_table(table)
    assert shown["columns"] == ["participant", "group", "gave", "± gave", "changed the loss by"]
    assert shown["rows"] == [[0, "none", -0.5, 0.1, 2.0]]
    results = {"groups": [0, 0], "influence": [[0, -1], [-1, 0]], "gave": [[1, 2]], "took": [[3, 4]], "rounds": [0]}
    _, exchange, over_time = charts({**results, "advice": [{"verdict": "keep"}] * 2})
    assert [exchange["traces"][1][axis] for axis in ("x", "y")] == [[-3, -4], [-1, -2]]
    assert [line["y"] for line in over_time["traces"]] == [[2], [2]]


@pytest.mark.parametrize("most", [False, True])
def test_warns_before_most_links_are_dropped(choose, monkeypatch, undrawn, most):
    monkeypatch.setattr(findings, "suggest_mixing", lambda trust, W, **options: torch.eye(6).to(W) if most else W)
    assert (findings.APART in choose()[1]) == most


def test_links_groups_and_degree_as_told(choose, tmp_path, undrawn):
    assert choose("--quiet", "--degree", "2", "--groups", "2", "--new-links")[0] == 0
    found = json.loads((tmp_path / "out" / "choose.json").read_text())
    assert set(found["groups"]) - {-1} == {0, 1}
    assert all(sum(weight > 0 for weight in row) <= 3 for row in found["mixing"])


@pytest.mark.parametrize(
    ("degree", "warned"),
    [
        ("1", ["Warning: 1 neighbour is too few to tell which one is the odd one out, and too few to mix: what one "
               "participant learns hardly reaches the others."]),
        ("2", ["Warning: 2 neighbours are too few to tell which one is the odd one out."]),
        ("3", []),
    ],
)  # fmt: skip
def test_warns_of_too_few_neighbours(degree, warned, choose, tmp_path, undrawn):
    code, out, _ = choose("--degree", degree, "--new-links")
    found = json.loads((tmp_path / "out" / "choose.json").read_text())
    assert [sentence for sentence in found["findings"] if sentence.startswith("Warning")] == warned
    assert code == 0
    assert all(sentence in out for sentence in warned)


def test_who_was_given_batches_holds_what_it_used(choose, recorded, monkeypatch, undrawn):
    recording = open_recording(recorded)
    bare = replace(recording, network=replace(recording.network, partition=None))
    monkeypatch.setattr("cascadice.applications.choose.findings.open_from", lambda args, world: bare)
    assert choose("--quiet") == (0, "", "")


def test_who_used_no_sample_is_named(choose, recorded, monkeypatch, undrawn):
    recording = open_recording(recorded)
    bare = replace(recording, network=replace(recording.network, partition=None))
    monkeypatch.setattr("cascadice.applications.choose.findings.open_from", lambda args, world: bare)
    monkeypatch.setattr("cascadice.applications.neighbours.used", lambda batches: [[0]] * 2 + [[]] + [[1]] * 3)
    code, _, err = choose("--quiet")
    assert code == 2
    assert "participant 2 used none in the recorded rounds. Build the network with partition=..." in err


def test_results_are_replaced_only_if_asked(choose, undrawn):
    assert choose("--quiet") == (0, "", "")
    code, _, err = choose("--quiet")
    assert code == 2
    assert "choose.json already exists. Replace it with --overwrite" in err
    assert choose("--quiet", "--overwrite") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--degree", "0"], "--degree must be at least 1; found 0."),
        (["--groups", "7"], "--groups must be in 1..6, the participants; found 7."),
        (
            ["--by", "contributions"],
            "unknown criterion 'contributions'. Did you mean 'contribution'? Known: contribution, exchange.",
        ),
        (["--on", "1"], "--on is for contributions. Use --by contribution, or leave it out."),
        (["--by", "contribution", "--degree", "2"], "--degree is for exchange. Use --by exchange, or leave it out."),
        (["--by", "contribution", "--heard"], "--heard is for exchange. Use --by exchange, or leave it out."),
        (["--by", "contribution", "--on", "6"], "--on must be a participant, from 0 to 5; found 6."),
    ],
)
def test_mistakes(choose, arguments, said):
    code, _, err = choose(*arguments)
    assert (code, err) == (2, f"cascadice: {said}\n")


@pytest.mark.parametrize("on", [None, 2])
def test_by_contribution_it_ranks_who_helped_a_final_model(choose, short, tmp_path, on):
    code, out, err = choose("--by", "contribution", *([] if on is None else ["--on", str(on)]), run=short)
    assert (code, err) == (0, "")
    results = json.loads((tmp_path / "out" / "contribution.json").read_text())
    network = open_recording(short).network
    shares = whole_run_shares(network, 8, evaluate_on(network), on="all" if on is None else on, samples=False)
    values = torch.tensor(results["contributions"], dtype=torch.float64)
    torch.testing.assert_close(values, shares.participants, rtol=1e-3, atol=1e-5)
    assert results["gap"] == pytest.approx(shares.gap, abs=1e-4)
    rows = results["table"]["rows"]
    assert [row[0] for row in rows] == values.argsort().tolist()
    change = results["trained"] - results["untrained"]
    assert [row[3] for row in rows] == pytest.approx([row[1] / change for row in rows])
    bounds = bounds_of_totals(shares.by_round.numpy())
    np.testing.assert_allclose(np.array(results["intervals"]).T, bounds, rtol=1e-2, atol=1e-4)
    clear = {"keep": bounds.high < 0, "let go": bounds.low > 0, "unclear": (bounds.low <= 0) & (bounds.high >= 0)}
    for advice, nodes in clear.items():
        assert {row[0] for row in rows if row[4] == advice} == set(np.flatnonzero(nodes).tolist())
    whose = "the final models" if on is None else "2's final model"
    kept = [row[0] for row in rows if row[0] != on and row[4] == "keep"]
    assert f"Clearly helped {whose}, the largest share first: {', '.join(map(str, kept))}." in out
    own = [f"Its own data accounts for {100 * row[3]:.1f} % of what training did to its loss." for row in rows
           if row[0] == on]  # fmt: skip
    assert [line for line in out.splitlines() if line.startswith("Its own data")] == own
    assert "Part: its influence divided by what training as a whole did to the loss." in out
    assert (tmp_path / "out" / results["figure"]).stat().st_size > 5_000


@pytest.mark.parametrize("on", [None, 2])
def test_by_contribution_it_says_what_intervals_leave_out(choose, short, tmp_path, on, monkeypatch):
    def off(parts, trained, untrained):
        run = share_out(parts, trained, untrained)
        return replace(run, by_round=1.2 * (trained - untrained) / float(run.by_round.sum()) * run.by_round)

    monkeypatch.setattr("cascadice.runs.sweeps.share_out", off)
    _, out, _ = choose("--by", "contribution", *([] if on is None else ["--on", str(on)]), run=short)
    said = json.loads((tmp_path / "out" / "contribution.json").read_text())["findings"][-1]
    assert said in out
    assert "The shares miss what training changed by 20 %: do not read them as parts of a whole. The 95 %" in said
    assert ", which may be larger for a single participant. Use more points: repeat the command with --points 6" in said
    assert said.endswith("training is too rough for shares: lower the learning rate.")


def test_by_contribution_more_points_are_used_if_asked_for(choose, short, tmp_path):
    """As it advises where shares do not add up."""
    results = []
    for points in (1, 4):
        choose("--by", "contribution", "--points", str(points), "--overwrite", run=short)
        results.append(json.loads((tmp_path / "out" / "contribution.json").read_text()))
    assert [each["points"] for each in results] == [1, 4]
    assert abs(results[1]["gap"]) < abs(results[0]["gap"])


def test_nothing_recorded(choose, tmp_path, undrawn):
    assert main([*TOLD, "--rounds", "1", "--out", str(tmp_path / "bare")]) == 0
    code, _, err = choose(run=tmp_path / "bare")
    assert code == 2
    assert "has no recorded rounds" in err


def test_a_run_by_influence_keeps_the_attacker_out(tmp_path, undrawn, one_thread):
    told = [*TOLD, "--behaviours", "sign-flipper:4:3", "--rule", "influence", "--record", "last:1"]
    assert main([*told, "--out", str(tmp_path / "run")]) == 0
    assert read_config(tmp_path / "run").rule == "influence"
    W = store.load_round(tmp_path / "run", 24).W
    assert not W[[0, 1, 2, 3, 5], 4].any()


def test_a_rule_that_remembers_cannot_go_on_and_others_can(tmp_path, undrawn, capsys, one_thread):
    place = ["--out", str(tmp_path / "run"), "--quiet"]
    assert main([*TOLD, "--rule", "influence", *place, "--rounds", "4"]) == 0
    assert main(["run", "--resume", "--rounds", "6", *place]) == 2
    assert "cannot be resumed: what the rule has learnt is not in the" in capsys.readouterr().err
    for name, rounds in {"parts": ("4", "6"), "whole": ("6",)}.items():
        place = ["--out", str(tmp_path / name), "--quiet"]
        assert main([*TOLD, "--rule", "clipping", *place, "--rounds", rounds[0]]) == 0
        for more in rounds[1:]:
            assert main(["run", "--resume", "--rounds", more, *place]) == 0
    parts, whole = (store.load_checkpoint(tmp_path / name).participants.theta for name in ("parts", "whole"))
    assert torch.equal(parts, whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "influences"], "unknown rule 'influences'. Did you mean 'influence'?"),
        (["--rule", "trimmed-mean", "--record", "all"], "rounds can be recorded or scored only if they average"),
        (["--rule", "trimmed-mean", "--kind", "truth"], "rounds can be recorded or scored only if they average"),
    ],
)
def test_mistakes_with_rules(arguments, said, tmp_path, capsys):
    assert main([*TOLD, *arguments, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
