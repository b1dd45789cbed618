"""The retraining study: a small one runs, and its page says what its results say."""

import json
from pathlib import Path

import pytest
import torch

from cascadice.applications.reward.payouts import shapley
from cascadice_experiments.retraining import __main__ as command
from cascadice_experiments.retraining import contest, roughness
from cascadice_experiments.retraining.settings import CASES, load, make_networks, shifted
from cascadice_experiments.retraining.table import lines, read
from cascadice_experiments.retraining.text import CONTEXT, LETTERS, domains

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = read(DOCS / "results" / "retraining")


def test_a_small_study_runs(capsys):
    assert command.main(["--quick", "--rounds", "6", "--subsets", "4", "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert "mlp (test accuracy" in out
    row = next(line for line in out.splitlines() if line.startswith("| whole-run at 0.9"))
    assert row.count("±") == 6


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result["case"])
def test_the_page_shows_the_results(result):
    page = (DOCS / "retraining.md").read_text().splitlines()
    title, *table = lines(result)
    missing = [line for line in table if line not in page]
    assert missing == []
    assert any(title.partition("(")[2].rstrip(")") in line for line in page if line.startswith("## "))


def test_all_results_are_of_five_seeds():
    seeds = {result["case"]: len(result["accuracy"]) for result in RESULTS}
    assert len(seeds) >= 11
    assert set(seeds.values()) == {5}


def test_seeds_measured_apart_are_put_together(tmp_path):
    for seed, cost in ((1, 4.0), (0, 2.0)):
        row = {"condition": "leave one out", "estimate": "truth", "seed": seed, "spearman": seed / 2}
        part = {"case": "mlp", "accuracy": [seed / 10], "rows": [row], "costs": {"truth": cost}}
        (tmp_path / f"{seed}.json").write_text(json.dumps(part))
    (result,) = read(tmp_path)
    assert result["accuracy"] == [0.0, 0.1]
    assert [row["seed"] for row in result["rows"]] == [0, 1]
    assert result["costs"] == {"truth": 3.0}


def test_the_page_shows_shapleys_parts():
    page = (DOCS / "retraining.md").read_text().splitlines()
    result = json.loads((DOCS / "results" / "retraining" / "digits" / "contest.json").read_text())
    _, *table = lines(result, only=("exact Shapley", *(f"joining {others}" for others in (0, 1, 3, 5, 7))))
    shown = [line for line in table if line in page]
    assert len(shown) >= 8


def test_shapleys_parts_average_to_the_value():
    game = torch.rand(2**4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = torch.stack(list(contest.joining(game, 4)))
    torch.testing.assert_close(parts.mean(0), shapley(game))


def test_less_and_less_of_a_participant(capsys, tmp_path):
    line = ["--quick", "--case", "mlp", "--rounds", "5", "--participants", "0,3", "--out", str(tmp_path)]
    assert roughness.main(line) == 0
    assert "| participant 3 | " in capsys.readouterr().out
    losses = json.loads((tmp_path / "roughness.json").read_text())["loss"]
    assert losses["0"][0] == losses["3"][0]  # all of everybody
    assert losses["0"][4] != losses["3"][4]  # nothing of one


def test_a_small_contest_runs(capsys):
    assert command.main(["--quick", "--case", "contest", "--rounds", "12", "--seeds", "1", "--subsets", "4"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert {"| whole-run at 1", "| FedSV, 1 round in 12", "| TracInCP, 1 round in 4"} <= {
        r[: r.index(" |", 2)] for r in rows
    }


def test_shifted_images_hold_the_same_pixels():
    images = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    moved = shifted(images, seed=1, by=2)
    assert moved.shape == images.shape
    assert set(moved.flatten().tolist()) <= {0.0, *images.flatten().tolist()}
    assert not torch.equal(moved, images)


def test_results_are_shown(capsys):
    assert command.main(["--show", str(DOCS / "results" / "retraining")]) == 0
    assert "| whole-run shares |" in capsys.readouterr().out


def test_text_of_several_kinds():
    data, (held,) = domains(8)
    assert len(held) == 8
    assert sorted(i for part in held for i in part.tolist()) == list(range(len(data.train)))
    assert data.train.x.shape[1] == CONTEXT
    assert int(data.train.x.max()) < LETTERS
    assert (data.train.x[:, 1:] == data.train.y[:, :-1]).all()


def test_seeds_have_data_of_their_own():
    case = CASES["mlp"]
    small = type(case)(**{**case.__dict__, "nodes": 4, "batch": 8, "seeds": (0, 1), "options": (("hidden", (4,)),)})
    whole, held = load(small, "digits", None)
    one, other = make_networks(small, whole, held, "cpu")
    assert one.data.train.mean is whole.train.mean
    sizes = [sum(map(len, own)) for own in held]
    assert sizes == [len(whole.train) // 2] * 2
    assert int(min(part.min() for part in other.partition)) >= sizes[0]
