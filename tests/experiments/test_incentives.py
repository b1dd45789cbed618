"""The study of ledgers: its game is what it says, its parts hang together, and a small one runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from torch.testing import assert_close

from cascadice import data, influence
from cascadice.applications.reward.contributions import by_shares
from cascadice.applications.reward.payouts import shapley
from cascadice.engine import Behaviour, evaluate, simulate
from cascadice.engine.fleets import by_network, fleet
from cascadice.influence.whole_run_shares import contributions
from cascadice_experiments.drawing import save
from cascadice_experiments.incentives import __main__ as command
from cascadice_experiments.incentives.coalitions import exact_shapley
from cascadice_experiments.incentives.measure import _equals, judge, ledgers, misplaced, pay_by_role
from cascadice_experiments.incentives.picture import _plus_minus, draw, lines
from cascadice_experiments.incentives.settings import (
    QUALITIES,
    QUICK,
    WRONG,
    Setting,
    holdings,
    make_network,
    roles_of,
    with_wrong_labels,
)
from cascadice_experiments.rivals.coalitions import every_coalition

SMALL = Setting(players=3, crowd=5, rounds=3, hops=(1, 2), seeds=(300, 301), per_node=64, hidden=8, judged=50)


@pytest.fixture(scope="module")
def digits():
    clean = data.digits()
    return with_wrong_labels(clean), clean.train


def test_labels_are_wrong_as_often_as_is_said(digits):
    whole, clean = digits
    for place, share in enumerate(WRONG):
        labels = whole.train.y[place * len(clean) : (place + 1) * len(clean)]
        assert float((labels != clean.y).float().mean()) == pytest.approx(share, abs=0.05)
        assert torch.equal(whole.train.x[place * len(clean) : (place + 1) * len(clean)], clean.x)


def test_holdings_are_disjoint_and_of_their_quality(digits):
    _, clean = digits
    names = list(QUALITIES) * 2
    parts = holdings(clean, [QUALITIES[name] for name in names], 64, seed=300)
    originals = torch.cat(parts) % len(clean)
    assert len(originals.unique()) == len(originals)
    for name, part in zip(names, parts, strict=True):
        assert len(part) == (16 if name == "few samples" else 64)
        if name != "few samples":
            assert len(clean.y[part % len(clean)].unique()) == (2 if name == "two classes" else 10)


def test_every_quality_has_its_place():
    for seed in (300, 301):
        assert set(roles_of(16, seed)) == set(QUALITIES)
        assert roles_of(6, seed).count("plain") == 2
    assert roles_of(6, 300) != roles_of(6, 301)


def test_shapley_values_are_those_of_networks_in_which_the_others_ride_free(digits):
    """All coalitions side by side against networks with free-riders, trained one by one."""
    one = make_network(SMALL, *digits, roles_of(3, 300), 300)
    losses = []
    for members in every_coalition(3):
        idle = tuple((members == 0).nonzero().flatten().tolist())
        alone = replace(one, behaviours=(Behaviour("free-rider", idle),) if idle else ())
        *_, last = simulate(alone, SMALL.rounds)
        losses.append(evaluate(alone, last.after, one.data.test.subset(torch.arange(50))).loss.double().mean())
    values = exact_shapley(one, SMALL.rounds, judge(one, SMALL))
    assert_close(values, shapley(torch.stack(losses)), rtol=1e-4, atol=1e-6)
    assert values.abs().min() > 1e-4


def test_a_sender_of_noise_is_worth_what_its_noise_does(digits):
    """Who is left out sends none: its share is the effect of its noise on coalitions, that of a free-rider 0."""
    noisy, idle = (make_network(SMALL, *digits, ["plain"] * 3, 300, case) for case in ("noise-sender", "free-rider"))
    worth = [exact_shapley(one, SMALL.rounds, judge(one, SMALL))[0] for one in (noisy, idle)]
    assert abs(worth[0]) > 1e-4
    assert_close(worth[1], torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-7)


def test_a_unique_class_is_held_by_one_participant(digits):
    whole, _ = digits
    for seed in (300, 307):
        one = make_network(SMALL, *digits, ["plain"] * 3, seed, "unique class")
        first, *others = ((whole.train.y[part] == seed % 10).sum().item() for part in one.partition)
        assert (first, others) == (32, [0, 0])
        assert [len(part) for part in one.partition] == [64, 64, 64]
        assert len(torch.cat(one.partition).unique()) == 3 * 64


def test_a_label_flipper_is_the_only_one_with_wrong_labels(digits):
    whole, clean = digits
    one = make_network(SMALL, *digits, ["plain"] * 3, 300, "label-flipper")
    wrong = [(whole.train.y[part] != clean.y[part % len(clean)]).float().mean() for part in one.partition]
    assert (wrong[0] > 0.5, *wrong[1:]) == (True, 0, 0)


def test_a_duplicator_holds_its_data_twice(digits):
    twice = make_network(SMALL, *digits, ["plain"] * 3, 300, "duplicator")
    assert torch.equal(twice.partition[0], twice.partition[1])
    assert not torch.equal(twice.partition[0], twice.partition[2])


def test_ledgers_of_a_fleet_are_those_of_its_networks(digits):
    networks = [make_network(SMALL, *digits, roles_of(3, seed), seed) for seed in SMALL.seeds]
    found = ledgers(networks, SMALL)
    for one, mine in zip(networks, found["shares, 1 hop"], strict=True):
        evaluation = influence.evaluate_on(one, one.data.test.subset(torch.arange(50)))
        slow = sum(by_shares(one, [done], evaluation).participants for done in simulate(one, SMALL.rounds))
        assert_close(mine, slow.double(), rtol=1e-3, atol=1e-6)
    for one, mine in zip(networks, found["whole-run shares"], strict=True):
        slow = contributions(one, SMALL.rounds, judge(one, SMALL))
        assert_close(mine, slow, rtol=1e-3, atol=1e-6)
    assert found["samples held"].shape == by_network(fleet(networks).initial.theta[:, 0], 2).shape


def test_a_small_study_is_printed_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "QUICK", {**QUICK, "rounds": 2, "hidden": 4, "judged": 30})
    drawn = []

    def draw_once(found, path):
        drawn.append(path.name)
        if len(found["results"]) == 3 and path.suffix == ".svg":
            draw(found, path)

    monkeypatch.setattr(command, "draw", draw_once)
    sizes = ["--players", "3", "--crowd", "4", "--first-seed", "300", "--seeds", "1"]
    assert command.main(["--quick", *sizes, "--out", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out.splitlines()[-1])
    assert told.items() <= json.loads((tmp_path / "result.json").read_text()).items()
    assert [result["part"] for result in told["results"]] == ["Shapley values", "leaving one out", "roles"]
    assert out.count("test accuracy") == 3
    assert set(told["results"][0]["paid"]) == {"truth", *told["results"][0]["found"]}
    assert told["results"][2]["rows"]["free-rider"]["Shapley values"]["mean"] == pytest.approx(0, abs=1e-6)
    for ledger in ("horizon", "whole-run shares"):
        assert told["results"][2]["rows"]["free-rider"][ledger]["mean"] == 0
    assert set(told["results"][2]["equals"]) == set(told["results"][2]["rows"]["honest"])
    from pyarrow import parquet

    points = parquet.read_table(tmp_path / "points.parquet")
    assert points.num_rows == 3 + 4
    assert {"part", "role", "truth", "horizon"} <= set(points.column_names)
    assert drawn == ["figure.png", "figure.svg"] * 3
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_each_quality_is_paid_its_mean_part():
    names = [["plain", "few samples", "plain"], ["few samples", "plain", "plain"]]
    paid = pay_by_role(names, torch.tensor([[-1.0, -1.0, -2.0], [-2.0, 0.0, -2.0]]))
    assert paid["plain"]["mean"] == pytest.approx((0.25 + 0.5 + 0 + 0.5) / 4)
    assert paid["few samples"] == pytest.approx({"mean": 0.375, "std": 0.125 * 2**0.5, "count": 2, "of": 2})
    harmful = pay_by_role(names[:1], torch.ones(1, 3))
    assert harmful["plain"] == {"mean": None, "std": None, "count": 0, "of": 2}


def test_what_is_misplaced_is_paid_to_others():
    truth, paid = torch.tensor([[-1.0, -1.0, -2.0]]), torch.tensor([[-1.0, -3.0, 5.0]])
    assert_close(misplaced(truth, paid), torch.tensor([0.5], dtype=torch.float64))
    assert_close(misplaced(truth, 3 * truth), torch.tensor([0.0], dtype=torch.float64))


def test_equals_are_compared_with_an_equal_share():
    paid = _equals(torch.tensor([[0.5, 0.25, 0.25], [torch.nan] * 3]))
    assert paid["least"] == {"mean": 0.75, "std": 0.0, "count": 1, "of": 2}  # in the other seed no one is paid
    assert paid["most"]["mean"] == 1.5


def test_a_figure_says_of_how_many_seeds_it_is():
    half, none, whole = ({"mean": 0.5, "std": 0.25, "count": c, "of": 4} for c in (3, 0, 4))
    none |= {"mean": None, "std": None}
    assert [_plus_minus(one).strip() for one in (half, none, whole)] == [
        "0.500 ± 0.250 [3]", "no one paid", "0.500 ± 0.250",
    ]  # fmt: skip
    rows = {"honest": {"shares": none, "horizon": half}}
    accuracy = {"honest": {"mean": 0.9, "std": 0.0, "count": 4, "of": 4}}
    equals = {"shares": {"least": none, "most": none}}
    result = {"nodes": 3, "rows": rows, "test_accuracy": accuracy, "seconds": 1.0, "equals": equals}
    text = "\n".join(lines(result))
    assert "no one paid" in text
    assert "[n]: of n values; in the seeds of the others no one was paid" in text
    json.loads(json.dumps(result, allow_nan=False))


def test_results_that_are_kept_are_json():
    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    for path in sorted((Path(__file__).parents[2] / "docs" / "results").rglob("*.json")):
        json.loads(path.read_text(), parse_constant=refuse)


def test_mistakes_end_with_a_line(capsys):
    assert command.main(["--quick", "--device", "warp"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_picture_has_a_known_kind(tmp_path):
    with pytest.raises(ValueError, match=r"a picture must end in .png or .svg; found"):
        save(Figure(), tmp_path / "picture.txt")
