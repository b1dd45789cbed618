"""`cascadice detect` over a small recorded run: what it finds, says and refuses; and the study behind its page."""

import json
import math
from dataclasses import replace

import pytest
import torch
from cascadice_experiments import anomalies
from cascadice_experiments.anomalies import Plan, Setting, auroc, measure, name_of, sides, summary
from pyarrow import parquet

from cascadice import data, topology
from cascadice.applications.detect.idea import SIGNS
from cascadice.applications.detect.picture import draw, draw_study
from cascadice.cli import main
from cascadice.runs.config import Config
from cascadice.runs.train import run

CONFIG = Config(
    nodes=8, topology="complete", model_options=("hidden=[16]",), lr=0.1, epochs=None, rounds=30, record="all",
    behaviours=("sign-flipper:3",), corruptions=("flip-labels:5@0-2",),
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    run(CONFIG, folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def found(recorded):
    assert main(["detect", str(recorded), "--quiet"]) == 0
    return json.loads((recorded / "detect" / "detect.json").read_text())


def test_writes_what_the_report_reads(found, recorded):
    assert found["command"] == "detect"
    assert found["run"]
    assert found["title"]
    assert (recorded / "detect" / found["figure"]).read_bytes().startswith(b"\x89PNG")
    assert all(len(row) == len(found["table"]["columns"]) for row in found["table"]["rows"])
    assert dict(zip(found["table"]["columns"], found["table"]["rows"][0], strict=True))["told to"] == "sign-flipper"
    assert all(sentence.endswith(".") for sentence in found["findings"])
    assert len(found["votes"]) == len(found["rounds"]) == 30
    assert {len(found["deviation"][sign]) for sign in SIGNS} == {8}
    assert len(found["deviation"]) == 4


def test_finds_the_lasting_attacker_first(found):
    node, flagged, heard, since, told, because = found["table"]["rows"][0]
    assert (node, flagged, heard, told) == (3, 7, 7, "sign-flipper")
    assert since < 15
    assert because == "it harms more than the others, and its updates lead away from lower loss"
    assert found["findings"][0].startswith("Participant 3 is unlike the others: 7 of the 7 that hear it flag it")


def test_says_what_it_missed(found):
    verdict = next(sentence for sentence in found["findings"] if sentence.startswith("Told to misbehave"))
    assert "5 (flip-labels)" in verdict
    assert "missed 5" in verdict


def test_prints_its_findings(recorded, tmp_path, capsys):
    assert main(["detect", str(recorded), "--out", str(tmp_path / "there"), "--samples", "20", "--memory", "8"]) == 0
    printed = capsys.readouterr().out
    assert "Participant 3 is unlike the others" in printed
    assert "by 20 of its own samples in each of 30 rounds" in printed
    assert "detect.json, detect.png" in printed
    assert json.loads((tmp_path / "there" / "detect.json").read_text())["memory"] == 8


def test_where_two_are_heard_nobody_can_tell(tmp_path):
    folder = tmp_path / "ring"
    run(replace(CONFIG, topology="ring", rounds=2, behaviours=(), corruptions=()), folder, quiet=True)
    assert main(["detect", str(folder), "--quiet"]) == 0
    result = json.loads((folder / "detect" / "detect.json").read_text())
    assert result["findings"][0].startswith("Nobody can tell here: everybody hears fewer than three others, too few")
    assert len(result["findings"]) == 2, "and on which terms"
    assert result["votes"][0] == [None] * 8


def test_where_some_hear_too_few_it_says_who_can_tell(tmp_path):
    W, folder = torch.zeros(8, 8, dtype=torch.float64), tmp_path / "run"
    W[:6, :6], W[3, 6:], W[6:, 3] = 1, 1, 1
    topology.write_csv((W + torch.eye(8)) / (W + torch.eye(8)).sum(1, keepdim=True), tmp_path / "W.csv")
    run(replace(CONFIG, mixing=str(tmp_path / "W.csv"), corruptions=()), folder, quiet=True)
    assert main(["detect", str(folder), "--quiet"]) == 0
    result = json.loads((folder / "detect" / "detect.json").read_text())
    assert result["findings"][0].startswith("Only 6 of 8 can tell: 6, 7 hear fewer than three others, too few")
    told = "Participant 3 is unlike the others: 5 of the 5 that hear it and can tell flag it"
    assert result["findings"][1].startswith(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "2"], "rate must be a probability from 0.0001 to 0.5; found 2.0."),
        (["--allowance", "-1"], "allowance must be at least 0 and finite; found -1.0."),
        (["--memory", "0"], "memory must be at least one round; found 0.0."),
        (["--samples", "500"], "--samples must be in 1..180, the least that a participant holds; found 500."),
        (["--samples", "0"], "--samples must be in 1..180"),
    ],
)
def test_refuses_what_makes_no_sense_in_one_line(recorded, arguments, message, capsys):
    assert main(["detect", str(recorded), "--out", str(recorded / "never"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (recorded / "never").exists()


def test_does_not_replace_unasked(found, recorded, capsys):
    assert main(["detect", str(recorded)]) == 2
    assert "is there already. Replace it with --overwrite" in capsys.readouterr().err


def test_refuses_a_folder_without_rounds(tmp_path, capsys):
    run(replace(CONFIG, rounds=1, record="none"), tmp_path / "run", quiet=True)
    assert main(["detect", str(tmp_path / "run")]) == 2
    assert "has no recorded rounds" in capsys.readouterr().err


def test_a_picture_must_be_png_or_svg(found, tmp_path):
    draw(found, tmp_path / "found.svg")
    assert (tmp_path / "found.svg").read_text().startswith("<?xml")
    with pytest.raises(ValueError, match=r"a picture must end in \.png or \.svg; found 'found.pdf'"):
        draw(found, "found.pdf")


# the study

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


def test_one_batch_is_judged_in_its_round_alone(digits):
    huge = Setting("noise", 32, 0.1, strength=1e6, once=True)
    rows = measure(huge, SMALL, digits, {})
    assert (rows["delay"] <= 2).all(), "one round was looked at"
    assert summary("once", huge, rows)["auroc"]["size"]["mean"] == 1


def test_distance_shows_what_the_other_signs_do_not(digits):
    """One batch of noisy features: most of what it adds to an update is at right angles to everybody's gradients."""
    plan = replace(SMALL, nodes=16, epochs=6.0, seeds=4, places=4)
    rows = measure(Setting("noise", 32, 0.1, once=True), plan, digits, {})
    others = torch.stack([rows[sign] for sign in SIGNS if sign != "distance"]).amax(0)
    assert auroc(rows["detector"], rows["attacks"]) > auroc(others, rows["attacks"]) + 0.03


def test_seeds_start_where_they_are_asked_to():
    attack, later = Setting("flip-labels", 32, 0.1), replace(SMALL, first_seed=5)
    assert sides(Setting("", 32, 0.1), later) == [((5, -1), (6, -1))]
    assert [[seed for seed, _ in side] for side in sides(attack, later)] == [[5, 5], [6, 6]]
    assert sides(attack, replace(SMALL, seeds=3))[2] == sides(attack, replace(SMALL, first_seed=2))[0], "same places"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--seeds", "0"], "--seeds must be at least 1; found 0."),
        (["--first-seed", "-1"], "--first-seed must be at least 0; found -1."),
        (["--places", "33"], "--places must be in 1..32, the participants; found 33."),
    ],
)
def test_the_study_refuses_what_makes_no_sense(asked, message, capsys):
    assert anomalies.main(asked) == 2
    assert capsys.readouterr().err == f"{message}\n"


def test_honest_networks_have_no_attacker_and_all_seeds_at_once(digits):
    honest, judges = Setting("", 32, 0.1), {}
    assert sides(honest, SMALL) == [((0, -1), (1, -1))]
    found = summary("honest", honest, measure(honest, SMALL, digits, judges))
    assert "auroc" not in found
    assert found["points"] == 2 * 8 * 3
    assert found["false_alarms"]["0.7"]["mean"] < 0.1
    assert list(judges) == [("iid", (0, 1))]


def test_settings_are_the_papers_nine_and_more():
    assert [name_of(s) for s in anomalies.NINE] == [
        "flip-128-0.1", "flip-64-0.1", "flip-16-0.1", "flip-128-0.01", "flip-64-0.01", "flip-16-0.01",
        "noise-128-0.1", "noise-64-0.01", "noise-16-0.1",
    ]  # fmt: skip
    assert len(anomalies.SETTINGS) == 9 + 12 + 9 + 10
    assert set(anomalies.FEW) <= set(anomalies.SETTINGS)
    assert len({place for _, place in sides(anomalies.NINE[0], Plan())[0]}) == 8


def test_the_study_prints_and_writes_setting_by_setting(tmp_path, monkeypatch, capsys, digits):
    monkeypatch.setattr(anomalies, "find", lambda root: ("digits", None))
    monkeypatch.setattr(
        anomalies, "QUICK", {"nodes": 8, "hidden": (8,), "epochs": 2.0, "seeds": 1, "places": 1, "samples": 16}
    )
    tiny = {"flip": Setting("flip-labels", 32, 0.1), "honest": Setting("", 32, 0.1), "late": Setting("", 32, 0.1)}
    monkeypatch.setattr(anomalies, "SETTINGS", tiny)
    assert anomalies.main(["flip", "honest", "--quick", "--json", "--first-seed", "3", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:-1]] == ["flip", "honest"]
    assert len(json.loads(lines[-1])["results"]) == 2
    assert lines[1].split("(least)")[1].split()[:6] == ["influence", "direction", "norm", "Krum", "own", "cos"]
    written = json.loads((tmp_path / "result.json").read_text())
    assert (written["plan"]["nodes"], written["plan"]["first_seed"]) == (8, 3)
    assert list(written["results"][0]["auroc"]) == ["detector", *anomalies.SCORES]
    assert set(parquet.read_table(tmp_path / "flip.parquet")["seed"].to_pylist()) == {3}
    assert {path.name for path in tmp_path.iterdir()} == {
        "result.json", "flip.parquet", "honest.parquet", "anomalies.png", "anomalies.svg",
    }  # fmt: skip
    assert anomalies.main(["flip", "late", "--quick", "--limit", "0"]) == 0
    assert "stopped before flip: the limit of 0 s is spent." in capsys.readouterr().out


def test_an_attack_that_breaks_the_network_does_not_stop_the_study(monkeypatch, capsys):
    monkeypatch.setattr(anomalies, "find", lambda root: ("digits", None))
    tiny = {"nodes": 8, "hidden": (8,), "epochs": 2.0, "seeds": 1, "places": 1, "samples": 16}
    monkeypatch.setattr(anomalies, "QUICK", tiny)
    wild = {"wild": Setting("noise-sender", 32, 0.1, strength=1e75), "calm": Setting("", 32, 0.1)}
    monkeypatch.setattr(anomalies, "SETTINGS", wild)
    assert anomalies.main(["wild", "calm", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "wild: the loss of participant" in printed
    assert printed.splitlines()[-1].startswith("calm")


def test_data_that_are_unlike_are_still_enough_for_every_batch():
    images = data.digits()
    for seed in range(3):
        unlike = anomalies.base(Setting("", 32, 0.1, partition="dirichlet"), replace(SMALL, nodes=16), images, seed)
        assert min(map(len, unlike.partition)) >= len(images.train) // 16 // 2


def test_an_unknown_setting_is_a_mistake_in_one_line(capsys):
    assert anomalies.main(["flip-129-0.1"]) == 2
    assert "unknown setting 'flip-129-0.1'. Did you mean 'flip-128-0.1'?" in capsys.readouterr().err


def test_a_study_without_attacks_draws_an_empty_picture(tmp_path):
    draw_study([], tmp_path / "none.png")
    assert (tmp_path / "none.png").exists()


def test_the_study_can_be_of_cnns(digits):
    net = anomalies.base(Setting("", 32, 0.1), replace(SMALL, model="cnn"), digits, seed=0)
    assert any(isinstance(layer, torch.nn.Conv2d) for layer in net.learner.training.modules())
