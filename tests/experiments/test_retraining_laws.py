"""By which law the loss of a class rises: laws are tried on kept results, and on networks trained for it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from cascadice.influence.by_class import ByClass
from cascadice.influence.retraining import random_subsets
from cascadice_experiments.retraining import laws, missing
from cascadice_experiments.retraining.settings import QUICK
from cascadice_experiments.retraining.table import lines as table_of
from cascadice_experiments.retraining.table import read

DOCS = Path(__file__).parents[2] / "docs"
FRESH = DOCS / "results" / "retraining" / "laws"
CHOSEN_ON = range(5)


def scores(rise):
    """One class, whose loss rises by this fraction for each of four participants that is left out."""
    losses, slopes = torch.full((1, 4), 0.5).double(), torch.full((1, 4), -2 * rise).double()
    return ByClass(1.0, torch.ones(1).double(), losses, slopes)


@pytest.mark.parametrize(
    ("power", "law"),
    [
        (1.0, lambda x: 1 + x),
        (0.5, lambda x: (1 + x / 2) ** 2),
        (0.0, lambda x: torch.tensor(x).exp().item()),
        (-1.0, lambda x: 1 / (1 - x)),
        (-2.0, lambda x: (1 - 2 * x) ** -0.5),
    ],
)
def test_each_power_is_the_law_it_says(power, law):
    left = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 1]]).double()
    expected = [2.0, 2 * law(0.1), 2 * law(0.2)]
    assert_close(laws.by_power(scores(0.1), left, power), torch.tensor(expected).double())


@pytest.mark.parametrize("rise", [0.1, 0.3, 2.0])  # also where a straight line takes over
def test_the_reciprocal_is_what_influence_by_class_predicts(rise):
    subsets = random_subsets(4, 0.5, 6)
    assert_close(laws.by_power(scores(rise), subsets, -1.0), scores(rise).predicted(subsets))


def test_rows_by_class_are_computed_again_and_others_kept():
    kept = json.loads((FRESH / "mlp-from-seed-10.json").read_text())
    wrong = [{**row, "spearman": -1.0, "pearson": -1.0} for row in kept["rows"]]
    again = laws.rewritten({**kept, "rows": wrong})["rows"]
    for row, now in zip(kept["rows"], again, strict=True):
        by_class = row["estimate"].endswith("by class")
        assert now["spearman"] == pytest.approx(row["spearman"] if by_class else -1.0, abs=1e-6)


def test_results_are_rewritten_in_place(capsys, tmp_path):
    kept = json.loads((FRESH / "mlp-from-seed-10.json").read_text())
    (tmp_path / "mlp.json").write_text(json.dumps({**kept, "rows": kept["rows"][:1]}))
    older = {name: kept[name] for name in ("case", "accuracy", "rows", "costs")} | {"case": "without its classes"}
    (tmp_path / "older.json").write_text(json.dumps(older))
    assert laws.main(["--show", str(tmp_path), "--rewrite"]) == 0
    assert "without its classes" not in capsys.readouterr().out
    assert json.loads((tmp_path / "older.json").read_text()) == older
    assert len(json.loads((tmp_path / "mlp.json").read_text())["rows"]) == 1


def test_rewriting_needs_results(capsys):
    assert laws.main(["--rewrite"]) == 2
    assert "found no --show" in capsys.readouterr().err


def test_the_page_shows_the_laws_on_seeds_that_had_no_part_in_the_choice():
    results = read(FRESH)
    page = (DOCS / "retraining.md").read_text().splitlines()
    assert [line for line in laws.lines(results) if line not in page] == []
    for result in results:
        seeds = {row["seed"] for row in result["rows"]}
        assert len(seeds) == 5
        assert not seeds & set(CHOSEN_ON)
    (cnn,) = (result for result in results if result["settings"]["model"] == "cnn")
    title, *table = table_of(cnn)
    assert [line for line in table if line not in page] == []
    assert f"## A smaller CNN, with influence by class ({title.partition('(')[2]}" in page


def test_every_alpha_is_shown_the_one_nearest_to_what_is_kept_first():
    (result,) = (one for one in read(FRESH) if one["case"] == "dirichlet 0.1")
    shown = [line.split(" | ")[0].partition(": ")[2] for line in list(laws.lines([result]))[2:]]
    assert shown == [
        f"{condition}, α = {at}"
        for condition, alphas in {
            "leave one out": (0.8, 0.5),
            "participants 0.8": (0.8, 0.5),
            "participants 0.5": (0.5, 0.8),
        }.items()
        for at in alphas
    ]


def test_the_page_shows_how_far_predicted_losses_are_off():
    page = (DOCS / "retraining.md").read_text().splitlines()
    head, _, *rows = laws.sizes(read(FRESH))
    assert head in page
    assert len([row for row in rows if row in page]) == 6
    (result,) = (one for one in read(FRESH) if one["case"] == "dirichlet 0.1")
    half = laws.tried(result)["participants 0.5, α = 0.5"]
    mean = sum(float(one.losses.mean()) for one in half) / len(half)
    assert f"| {mean:.2f} ± " in next(row for row in rows if "dirichlet 0.1: participants 0.5, α = 0.5" in row)


@pytest.mark.parametrize("flags", [["--first-seed", "0"], ["--case", "cnn"]])
def test_a_selection_of_nothing_is_refused_in_one_line(flags, capsys, tmp_path):
    assert laws.main([*flags, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nothing is selected: no case")
    assert "the cases are: 8 participants, dirichlet 0.1; 8 participants; " in said
    assert said.endswith("; their first seeds: 10, 11, 12, 13, 14.\n")
    assert said.count("\n") == 1


def test_new_networks_are_trained_and_every_law_tried(capsys, tmp_path, monkeypatch):
    few = {**QUICK, "rounds": 4, "nodes": 4, "subsets": 4, "seeds": (10,), "participants": (0.5,), "by_class": (0.5,)}
    monkeypatch.setattr(laws, "FRESH", (replace(laws.FRESH[0], **few),))
    monkeypatch.setattr(missing, "find", lambda root: ("digits", None))
    assert laws.main(["--out", str(tmp_path)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "dirichlet 0.1: participants 0.5, α = 0.5" in line]
    assert [row.count("|") for row in rows] == [len(laws.POWERS) + 4, 8]  # Spearman, and the sizes of losses
    assert laws.main(["--out", str(tmp_path)]) == 0
    assert "seed 10: measured earlier" in capsys.readouterr().out
