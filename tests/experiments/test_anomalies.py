"""The anomalies study in small: its points, its summary and its command."""

import json
import math
import re
import statistics
from dataclasses import replace

import pytest
import torch
from pyarrow import parquet

from cascadice import data
from cascadice.applications.detect.signals import SIGNALS
from cascadice_experiments import data_sets
from cascadice_experiments.anomalies import __main__ as command
from cascadice_experiments.anomalies.ablation import lines
from cascadice_experiments.anomalies.measure import SCORES, measure, summary
from cascadice_experiments.anomalies.picture import draw
from cascadice_experiments.anomalies.settings import (
    FEW,
    NINE,
    SETTINGS,
    Plan,
    Setting,
    fleets_of,
    honest_network,
    name_of,
    on_digits,
    rounds_of,
)
from cascadice_experiments.roc import auroc

SMALL = Plan(nodes=8, per_node=None, hidden=(16,), epochs=12.0, seeds=2, places=2, samples=32)


@pytest.fixture(scope="module")
def digits():
    return data.digits()


def slow_auroc(values, positive):
    pairs = [
        (v, w)
        for v, p in zip(values, positive, strict=True)
        if p
        for w, q in zip(values, positive, strict=True)
        if not q
    ]
    return sum((v > w) + (v == w) / 2 for v, w in pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(4))
def test_auroc_counts_pairs(seed):
    draws = torch.Generator().manual_seed(seed)
    values, positive = torch.randint(6, (30,), generator=draws).float(), torch.rand(30, generator=draws) < 0.3
    assert auroc(values, positive) == pytest.approx(slow_auroc(values.tolist(), positive.tolist()))
    assert math.isnan(auroc(values, torch.zeros(30, dtype=torch.bool)))


def test_points_are_the_links_of_honest_receivers(digits):
    rows = measure(Setting("sign-flipper", 32, 0.1), SMALL, digits, {})
    assert len(rows["seed"]) == 4 * 7 * 3  # two seeds, two places; seven honest receivers with three neighbours
    assert int(rows["attacks"].sum()) == 4 * 3
    assert (rows["receiver"] != rows["attacker"]).all()
    assert {*zip(rows["seed"].tolist(), rows["attacker"].tolist(), strict=True)} == {(0, 0), (0, 4), (1, 1), (1, 5)}
    found = summary("signs", Setting("sign-flipper", 32, 0.1), rows)
    assert found["networks"] == 4
    assert found["auroc"]["detector"]["least"] > 0.95
    assert found["flagged"]["0.5"]["mean"] > 0.8
    assert found["flagged"]["1"]["mean"] <= found["flagged"]["0.5"]["mean"], "more is allowed for"
    assert found["delay"] < 60
    assert 0.5 < found["accuracy"]["mean"] < 1


def test_the_ablation_has_a_row_for_each_signal_left_out_and_alone(digits):
    setting = SETTINGS["noise-16-0.1"]
    rows = measure(setting, replace(SMALL, epochs=2.0), digits, {})
    found = summary("noise-16-0.1", setting, rows)
    ablation, seeds = found["ablation"], rows["seed"].unique().tolist()
    assert list(ablation)[:5] == ["all four", *(f"without {name}" for name in SIGNALS)]
    assert list(ablation)[5:] == [f"{name} alone" for name in SCORES]
    assert statistics.fmean(ablation["all four"]["auroc"]) == pytest.approx(found["auroc"]["detector"]["mean"])
    assert ablation["all four"]["flagged"] == pytest.approx(found["flagged"]["0.5"]["mean"])
    assert statistics.fmean(ablation["distance alone"]["auroc"]) == pytest.approx(found["auroc"]["distance"]["mean"])
    others = [name for name in SIGNALS if name != "size"]
    for seed, area in zip(seeds, ablation["without size"]["auroc"], strict=True):
        one = rows["seed"] == seed
        assert area == pytest.approx(auroc(torch.stack([rows[n][one] for n in others]).amax(0), rows["attacks"][one]))
    printed = lines([found])
    assert printed[2].strip() == "the paper's nine"
    assert [row[:30].strip() for row in printed[3:]][:2] == ["all four", "without influence"]
    assert len(printed) == 3 + len(ablation)


def test_one_batch_is_judged_in_its_round_alone(digits):
    huge = Setting("noise", 32, 0.1, strength=1e6, once=True)
    rows = measure(huge, SMALL, digits, {})
    assert (rows["delay"] <= 2).all(), "only one round was scored"
    assert summary("once", huge, rows)["auroc"]["size"]["mean"] == 1


def test_distance_shows_what_the_other_signals_do_not(digits):
    """One batch of noisy features: most of what it adds to an update is at right angles to everybody's gradients."""
    plan = replace(SMALL, nodes=16, epochs=6.0, seeds=4, places=4)
    rows = measure(Setting("noise", 32, 0.1, once=True), plan, digits, {})
    others = torch.stack([rows[name] for name in SIGNALS if name != "distance"]).amax(0)
    assert auroc(rows["detector"], rows["attacks"]) > auroc(others, rows["attacks"]) + 0.03


def test_seeds_start_where_they_are_asked_to():
    attack, later = Setting("flip-labels", 32, 0.1), replace(SMALL, first_seed=5)
    assert fleets_of(Setting("", 32, 0.1), later) == [((5, -1), (6, -1))]
    assert [[seed for seed, _ in networks] for networks in fleets_of(attack, later)] == [[5, 5], [6, 6]]
    assert fleets_of(attack, replace(SMALL, seeds=3))[2] == fleets_of(attack, replace(SMALL, first_seed=2))[0], (
        "same places"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1; found 0."),
        (["--first-seed", "-1"], "--first-seed must be at least 0; found -1."),
        (["--places", "33"], "--places must be in 1..32, the number of participants; found 33."),
    ],
)
def test_the_study_refuses_what_makes_no_sense(asked, message, capsys):
    assert command.main(asked) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_honest_networks_have_no_attacker_and_all_seeds_at_once(digits):
    honest, evaluations = Setting("", 32, 0.1), {}
    assert fleets_of(honest, SMALL) == [((0, -1), (1, -1))]
    found = summary("honest", honest, measure(honest, SMALL, digits, evaluations))
    assert "auroc" not in found
    assert found["points"] == 2 * 8 * 3
    assert found["false_alarms"]["0.7"]["mean"] < 0.1
    assert list(evaluations) == [("iid", (0, 1))]


def test_settings_are_the_papers_nine_and_more():
    assert [name_of(s) for s in NINE] == [
        "flip-128-0.1", "flip-64-0.1", "flip-16-0.1", "flip-128-0.01", "flip-64-0.01", "flip-16-0.01",
        "noise-128-0.1", "noise-64-0.01", "noise-16-0.1",
    ]  # fmt: skip
    assert len(SETTINGS) == 9 + 12 + 9 + 10 + 5
    assert set(FEW) <= set(SETTINGS)
    assert len({place for _, place in fleets_of(NINE[0], Plan())[0]}) == 8


@pytest.mark.slow
def test_the_study_prints_and_writes_setting_by_setting(tmp_path, monkeypatch, capsys, digits):
    monkeypatch.setattr(data_sets, "find", lambda root: ("digits", None))
    monkeypatch.setattr(
        command, "QUICK", {"nodes": 8, "hidden": (8,), "epochs": 2.0, "seeds": 1, "places": 1, "samples": 16}
    )
    tiny = {"flip": Setting("flip-labels", 32, 0.1), "honest": Setting("", 32, 0.1), "late": Setting("", 32, 0.1)}
    monkeypatch.setattr(command, "SETTINGS", tiny)
    assert command.main(["flip", "honest", "--quick", "--json", "--first-seed", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:4]] == ["flip", "honest"]
    assert "AUROC: mean (worst seed), flagged, false alarms at allowance 0.5" in printed
    assert len(json.loads(printed[-1])["results"]) == 2
    assert printed[1].split("(least)")[1].split()[:6] == ["influence", "direction", "norm", "Krum", "own", "cos"]
    written = json.loads((tmp_path / "result.json").read_text())
    assert (written["settings"]["nodes"], written["settings"]["first_seed"]) == (8, 3)
    assert list(written["results"][0]["auroc"]) == ["detector", *SCORES]
    points = parquet.read_table(tmp_path / "points.parquet")
    assert set(zip(points["setting"].to_pylist(), points["seed"].to_pylist(), strict=True)) == {
        ("flip", 3),
        ("honest", 3),
    }
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "points.parquet", "figure.png", "figure.svg"}
    assert command.main(["flip", "late", "--quick", "--limit", "0"]) == 0
    assert "stopped before flip: the time limit of 0 s has passed." in capsys.readouterr().out


def test_on_digits_batches_are_the_same_share_of_what_everyone_holds():
    plan, chosen = on_digits(Plan(), {"flip-128-0.1": SETTINGS["flip-128-0.1"], "flip-16-0.1": SETTINGS["flip-16-0.1"]})
    assert [one.batch_size for one in chosen.values()] == [16, 2]
    assert (plan.per_node, plan.hidden, plan.epochs) == (None, (32,), 20)
    assert rounds_of(chosen["flip-128-0.1"], plan, 1437 // 32) == 40


def test_an_attack_that_breaks_the_network_does_not_stop_the_study(monkeypatch, capsys):
    monkeypatch.setattr(data_sets, "find", lambda root: ("digits", None))
    tiny = {"nodes": 8, "hidden": (8,), "epochs": 2.0, "seeds": 1, "places": 1, "samples": 16}
    monkeypatch.setattr(command, "QUICK", tiny)
    wild = {"wild": Setting("noise-sender", 32, 0.1, strength=1e75), "calm": Setting("", 32, 0.1)}
    monkeypatch.setattr(command, "SETTINGS", wild)
    assert command.main(["wild", "calm", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"wild: participant \d+ sent parameters of norm", printed)
    assert printed.splitlines()[3].startswith("calm")


def test_data_that_are_unlike_are_still_enough_for_every_batch():
    images = data.digits()
    for seed in range(3):
        unlike = honest_network(Setting("", 32, 0.1, partition="dirichlet"), replace(SMALL, nodes=16), images, seed)
        assert min(map(len, unlike.partition)) >= len(images.train) // 16 // 2


def test_an_unknown_setting_is_a_mistake_in_one_line(capsys):
    assert command.main(["flip-129-0.1"]) == 2
    assert "unknown setting 'flip-129-0.1'. Did you mean 'flip-128-0.1'?" in capsys.readouterr().err


def test_a_study_without_attacks_draws_an_empty_picture(tmp_path):
    draw([], tmp_path / "none.png")
    assert (tmp_path / "none.png").exists()


def test_the_study_can_be_of_cnns(digits):
    net = honest_network(Setting("", 32, 0.1), replace(SMALL, model="cnn"), digits, seed=0)
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in net.learner.training.modules())
