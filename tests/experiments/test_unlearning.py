"""The unlearning experiment: a fleet measures what its networks would alone, and every figure is written."""

import json
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from pyarrow import parquet

from cascadice import data
from cascadice.applications.forget.idea import forget
from cascadice.applications.forget.removals import forgotten_samples
from cascadice.applications.forget.traces import distance, trace
from cascadice.engine import Operator, fleet, simulate
from cascadice.influence import evaluate_on, own_data
from cascadice_experiments import study
from cascadice_experiments.unlearning import __main__ as command
from cascadice_experiments.unlearning.__main__ import DISTANCES
from cascadice_experiments.unlearning.baselines import ROLLBACK, ascended, baselines
from cascadice_experiments.unlearning.measure import measure
from cascadice_experiments.unlearning.settings import LEVELS, Setting, cases, make_network

TINY = Setting(activation="gelu", nodes=4, rounds=4, seeds=2, short=2, repairs=1, batch_size=8, first_seed=100)


@pytest.fixture(scope="module")
def points():
    return [point for case in measure(TINY) for point in case]


def test_there_is_a_point_for_each_case_level_and_seed(points):
    assert len(points) == 6 * 2 * (1 + len(LEVELS) + 4) + 2 * 3  # and three baselines of one case
    assert {(p["kind"], p["span"]) for p in points} == {
        (kind, span) for kind in ("sample", "batch", "participant") for span in ("short", "long")
    }
    for p in points:
        assert p["distance"] == pytest.approx({"as trained": 1, "replay": 0}.get(p["level"], p["distance"]), abs=1e-4)
    smooth = [p["distance"] for p in points if p["level"] == "path-integrated, 2 points"]
    assert max(smooth) < 0.1


def test_a_network_of_the_fleet_is_as_alone(points):
    network = make_network(TINY, data.digits(), 101)
    rounds = list(simulate(network, TINY.rounds))
    alone = replace(TINY, seeds=1, first_seed=101)
    for case in cases([network], rounds, alone):
        if case.kind == "sample":  # which one it is depends on who else is in the fleet
            continue
        people = {
            name: forget(network, case.rounds, case.removal, *how).participants
            for name, how in LEVELS.items()
            if name in ("replay", "first-order", "gossip")
        }
        for name in ("first-order", "gossip"):
            (found,) = [p for p in points if (p["kind"], p["span"], p["level"], p["seed"]) == (*case[:2], name, 101)]
            left = distance(people[name], rounds[-1].after, people["replay"])
            assert found["distance"] == pytest.approx(left, rel=0.02, abs=1e-3)
            members = network.data.train.subset(forgotten_samples(case.removal, [r.draw for r in rounds], 4))
            judged = trace(network, people[name], members)
            assert found["membership"] == pytest.approx(float(judged.membership.mean()), abs=0.01)
            assert found["eval_loss"] == pytest.approx(float(judged.loss.mean()), rel=1e-3)
            assert found["test_accuracy"] == pytest.approx(float(judged.accuracy.mean()), abs=0.01)


def test_everything_is_printed_and_written(points, tmp_path, monkeypatch, capsys):
    by_case = [list(group) for _, group in groupby(points, key=lambda p: (p["kind"], p["span"]))]
    monkeypatch.setattr(command, "measure", lambda setting, kind: iter(by_case))
    monkeypatch.setattr(command, "_settings", lambda args: [TINY])
    assert command.main(["--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("sample, ", "batch, ", "participant, ")) for line in said) == 6
    table = said[next(i for i, line in enumerate(said) if line.startswith("against training without it")) + 1 :]
    assert {"replay", "rollback", "gradient ascent, repaired"} <= {line[:34].strip() for line in table[:13]}
    printed, written = json.loads(said[-1]), json.loads((tmp_path / "result.json").read_text())
    assert printed["results"] == written["results"]
    assert len(written["results"]) == len(points) // TINY.seeds
    one = next(r for r in written["results"] if r["level"] == "gossip")
    each = [p["distance"] for p in points if all(p[key] == one[key] for key in ("kind", "span", "level"))]
    assert one["distance"] == pytest.approx(sum(each) / 2)
    assert f"{one['distance']:.3f}" in next(line for line in said if line.startswith(f"{one['kind']}, {one['span']}"))
    assert parquet.read_table(tmp_path / "points.parquet").num_rows == len(points)
    assert {path.name for path in tmp_path.glob("figure.*")} == {"figure.png", "figure.svg"}
    assert set(DISTANCES) <= {p["level"] for p in points}


def test_a_limit_stops_it_with_what_it_has(points, monkeypatch, capsys):
    monkeypatch.setattr(command, "measure", lambda setting, kind: iter([points[: len(points) // 6]] * 6))
    monkeypatch.setattr(command, "_settings", lambda args: [TINY, TINY])
    assert command.main(["--limit", "0"]) == 0
    assert capsys.readouterr().out.count("stopped: the time limit of 0 s has passed") == 1


def test_gradient_ascent_moves_the_participant_alone_and_no_further_than_its_ball():
    networks = [make_network(TINY, data.digits(), seed) for seed in (100, 101)]
    together = fleet(networks)
    *_, last = simulate(together, TINY.rounds)
    climbed = ascended(together, last.after, (1, 6), TINY)
    moved = (climbed.theta != last.after.theta).any(1).nonzero().flatten().tolist()
    assert moved == [1, 6]
    centre = last.after.theta[[0, 2, 3]].mean(0)
    own = evaluate_on(together, own_data(together, 300))
    assert (climbed.theta[1] - centre).norm() <= (networks[0].initial.theta[1] - centre).norm() / 3 * 1.001
    before, after = (Operator(together).losses(own, one, range(8))[1] for one in (last.after, climbed))
    assert after > before


def test_rollback_is_a_replay_of_the_second_half(points):
    network = make_network(TINY, data.digits(), 101)
    rounds = list(simulate(network, TINY.rounds))
    every = cases([network], rounds, replace(TINY, seeds=1))
    case = next(case for case in every if case[:2] == ("participant", "long"))
    late = replace(case.removal, rounds=range(2, 4))
    expected = forget(network, rounds[2:], late).participants
    found = baselines(network, case, replace(TINY, seeds=1))[ROLLBACK]
    assert torch.equal(found.theta, expected.theta)
    (point,) = [p for p in points if (p["level"], p["seed"]) == (ROLLBACK, 101)]
    assert 0.2 < point["distance"] < 0.9


def test_one_kind_alone():
    assert {(p["kind"], p["span"]) for case in measure(TINY, "batch") for p in case} == {("batch", "long")}


def test_quick_is_small_and_cuda_is_cifar(monkeypatch):
    monkeypatch.setattr(command, "find", lambda root: ("cifar10", "there"))
    parse = study.parser("unlearning", command.FLAGS).parse_args
    assert {(s.data, s.nodes) for s in command._settings(parse(["--quick"]))} == {("digits", 8)}
    full = command._settings(parse(["--device", "cuda", "--seeds", "7"]))
    assert {(s.data, s.device, s.seeds, s.data_root) for s in full} == {("cifar10", "cuda", 7, "there")}
    assert {s.activation for s in full} == {"relu", "gelu"}


def test_mistakes(capsys):
    assert command.main(["--seeds", "0"]) == 2
    assert "--seeds must be at least 1; found 0" in capsys.readouterr().err
