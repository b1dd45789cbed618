"""The study of ledgers: its game is what it says, its parts hang together, and a small one runs."""

import json
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from torch.testing import assert_close

from cascadice import data, influence
from cascadice.applications.reward.contributions import by_shares
from cascadice.engine import Behaviour, evaluate, simulate
from cascadice.engine.fleets import by_network, fleet
from cascadice_experiments.drawing import save
from cascadice_experiments.incentives import __main__ as command
from cascadice_experiments.incentives.coalitions import coalitions, retrain
from cascadice_experiments.incentives.measure import ledgers, pay_by_role
from cascadice_experiments.incentives.picture import draw
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


def test_a_coalition_is_a_network_in_which_the_others_ride_free(digits):
    """The fleet of all coalitions against networks with free-riders, trained one by one."""
    one = make_network(SMALL, *digits, roles_of(3, 300), 300)
    found = retrain(one, coalitions(3), SMALL)
    for number in range(8):
        idle = tuple(j for j in range(3) if not number >> j & 1)
        alone = replace(one, behaviours=(Behaviour("free-rider", idle),) if idle else ())
        *_, last = simulate(alone, SMALL.rounds)
        judged = evaluate(alone, last.after, one.data.test.subset(torch.arange(50)))
        assert_close(found.loss[number], judged.loss.double().mean(), rtol=1e-5, atol=1e-6)
        assert_close(found.accuracy[number], judged.accuracy.double().mean())


def test_only_members_send_noise(digits):
    one = make_network(SMALL, *digits, ["plain"] * 3, 300, "noise-sender")
    quiet = make_network(SMALL, *digits, ["plain"] * 3, 300, "free-rider")
    noisy, without = retrain(one, coalitions(3), SMALL), retrain(quiet, coalitions(3), SMALL)
    absent = [number for number in range(8) if not number & 1]
    assert_close(noisy.loss[absent], without.loss[absent])
    assert not torch.isclose(noisy.loss[1::2], without.loss[1::2]).any()


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
    assert json.loads((tmp_path / "result.json").read_text()) == told
    assert [result["part"] for result in told["results"]] == ["Shapley values", "leaving one out", "cheats"]
    assert out.count("test accuracy") == 3
    assert set(told["results"][0]["paid"]) == {"truth", *told["results"][0]["found"]}
    assert told["results"][2]["rows"]["free-rider"]["Shapley values"]["mean"] == pytest.approx(0, abs=1e-6)
    assert told["results"][2]["rows"]["free-rider"]["horizon"]["mean"] == 0
    from pyarrow import parquet

    points = parquet.read_table(tmp_path / "points.parquet")
    assert points.num_rows == 3 + 4
    assert {"part", "role", "truth", "horizon"} <= set(points.column_names)
    assert drawn == ["incentives.png", "incentives.svg"] * 3
    assert (tmp_path / "incentives.svg").stat().st_size > 10_000


def test_each_quality_is_paid_its_mean_part():
    names = [["plain", "few samples", "plain"], ["few samples", "plain", "plain"]]
    paid = pay_by_role(names, torch.tensor([[-1.0, -1.0, -2.0], [-2.0, 0.0, -2.0]]))
    assert paid["plain"]["mean"] == pytest.approx((0.25 + 0.5 + 0 + 0.5) / 4)
    assert paid["few samples"] == pytest.approx({"mean": 0.375, "std": 0.125 * 2**0.5})
    harmful = pay_by_role(names[:1], torch.ones(1, 3))
    assert harmful["plain"]["mean"] != harmful["plain"]["mean"]


def test_mistakes_end_with_a_line(capsys):
    assert command.main(["--quick", "--device", "warp"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_picture_has_a_known_kind(tmp_path):
    with pytest.raises(ValueError, match=r"a picture must end in .png or .svg; found"):
        save(Figure(), tmp_path / "picture.txt")
