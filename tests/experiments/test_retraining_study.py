"""The retraining study: a small one runs, and its page says what its results say."""

import json
import re
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from cascadice.applications.reward.payouts import shapley
from cascadice.influence.agreement import agreement
from cascadice.influence.by_class import ByClass
from cascadice.influence.retraining import random_subsets, without_each
from cascadice_experiments.retraining import __main__ as command
from cascadice_experiments.retraining import (
    adam_epsilon,
    cnn_learning_rate,
    contest,
    measure,
    missing,
    pairs,
    repeatability,
    roughness,
    sums,
)
from cascadice_experiments.retraining.settings import CASES, QUICK, load, make_networks, shifted
from cascadice_experiments.retraining.table import cells, lines, paired, read, spread
from cascadice_experiments.retraining.text import CONTEXT, LETTERS, domains

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = read(DOCS / "results" / "retraining")
(DIGITS,) = read(DOCS / "results" / "retraining" / "digits")
FRESH = read(DOCS / "results" / "retraining" / "laws")


def test_a_small_study_runs(capsys, tmp_path):
    line = ["--quick", "--rounds", "6", "--subsets", "4", "--seeds", "2", "--out", str(tmp_path)]
    assert command.main(line) == 0
    check_that_what_was_measured_is_kept(json.loads((tmp_path / "mlp.json").read_text()))
    out = capsys.readouterr().out
    assert "mlp (test accuracy" in out
    row = next(line for line in out.splitlines() if line.startswith("| whole-run at 0.9"))
    assert row.count("±") == 7


def check_that_what_was_measured_is_kept(result):
    """From what is in the file, rows can be computed again without training."""
    assert (result["settings"]["rounds"], result["settings"]["seeds"]) == (6, [0, 1])
    assert set(result["versions"]) == {"cascadice", "torch", "python"}
    assert result["device"].startswith("cpu")
    assert set(result["rows"][0]) == {"condition", "estimate", "seed", "spearman", "pearson"}
    kept = {(one["condition"], one["seed"]): one for one in result["retrained"]}
    scores = {(one["estimate"], one["seed"]): torch.tensor(one["participants"]).double() for one in result["scores"]}
    classes = {(one["estimate"], one["seed"]): one["by_class"] for one in result["scores"] if "by_class" in one}
    checked = [row for row in result["rows"] if not row["condition"].startswith("samples")]
    checked = [row for row in checked if row["estimate"] not in (sums.EXACT, sums.BEST)]
    assert len(checked) == 2 * 4 * len({one["estimate"] for one in result["scores"]})
    assert {estimate for estimate, _ in classes} == {"whole-run at 0.8, by class", "whole-run at 0.5, by class"}
    for row in checked:
        one, own = kept[row["condition"], row["seed"]], scores[row["estimate"], row["seed"]]
        found = torch.tensor(one["found"]).double()
        subsets = without_each(len(own)) if one["subsets"] is None else random_subsets(len(own), **one["subsets"])
        predicted = subsets @ own
        if (row["estimate"], row["seed"]) in classes:
            at, *parts = classes[row["estimate"], row["seed"]].values()
            predicted = ByClass(at, *(torch.tensor(part).double() for part in parts)).predicted(subsets)
        agreed = agreement(found[-len(subsets) :], predicted)
        assert agreed.spearman == pytest.approx(row["spearman"], abs=1e-6)


def test_sums_predict_what_is_a_sum_and_no_more():
    draw = torch.Generator().manual_seed(0)
    scores, drawn = torch.rand(8, generator=draw, dtype=torch.float64), {"keep": 0.5, "count": 20, "seed": 1}
    subsets = random_subsets(8, **drawn)
    value = {"a sum": lambda kept: -kept @ scores, "who is there counts": lambda kept: (kept @ scores - 2).abs()}
    for what, f in value.items():
        alone = [float(f(torch.ones(8).double())), *f(without_each(8)).tolist()]
        kept = [
            {"condition": "leave one out", "seed": 0, "subsets": None, "found": alone},
            {"condition": "participants 0.5", "seed": 0, "subsets": drawn, "found": f(subsets).tolist()},
        ]
        exact, best = sums.sums(kept, nodes=8)
        assert (exact[1], best[1]) == (sums.EXACT, sums.BEST)
        assert (exact[3].spearman > 0.999) == (best[3].spearman > 0.999) == (what == "a sum")


SMALL = {**QUICK, "nodes": 4, "rounds": 4, "subsets": 4, "participants": (0.5,), "samples": (0.5,), "points": 0,
         "by_class": (0.5,), "together": 3}  # fmt: skip


def test_what_is_missing_is_measured_while_there_is_time_and_goes_on_where_it_stopped(capsys, tmp_path, monkeypatch):
    plan = [replace(CASES["mlp"], **{**SMALL, "seeds": (seed,)}) for seed in (0, 1)]
    monkeypatch.setattr(missing, "PLAN", plan)
    monkeypatch.setattr(missing, "find", lambda root: ("digits", None))
    clock, line = Clock(), ["--minutes", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(missing, "monotonic", clock)
    clock.ends = 5  # the time is over after so many looks at the clock, in the middle of the first case
    assert missing.main(line) == 0
    assert "not started, the time is over" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.json"))
    kept = {path: path.read_text() for path in tmp_path.rglob("parts/*/*.json")}
    assert len(kept) == 4
    clock.ends, clock.looks = 10**6, 0
    assert missing.main(line) == 0
    out = capsys.readouterr().out
    assert out.count("measured earlier") == 4
    assert "mlp (test accuracy" in out
    both = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [one["settings"]["seeds"] for one in both] == [[0], [1]]
    assert not list(tmp_path.rglob("parts/*/*"))
    plain = measure.measure(plan[0], "digits", None, "cpu", lambda text: None)
    assert (both[0]["rows"], both[0]["retrained"]) == (plain["rows"], plain["retrained"])
    assert missing.main(line) == 0
    assert "mlp, seed 1: measured earlier" in capsys.readouterr().out
    assert missing.is_there(tmp_path, plan[0])
    assert not missing.is_there(tmp_path, replace(plan[0], subsets=5))


class Clock:
    """A clock that jumps an hour ahead after so many looks."""

    looks, ends = 0, 0

    def __call__(self):
        self.looks += 1
        return 3600.0 * (self.looks > self.ends)


def test_the_plan_has_every_file_once():
    paths = [missing._path(Path(), case) for case in missing.PLAN]
    assert len(set(paths)) == len(paths) >= 22


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result["case"])
def test_the_page_shows_the_results(result):
    page = (DOCS / "retraining.md").read_text().splitlines()
    title, *table = lines(result)
    missing = [line for line in table if line not in page]
    assert missing == []
    assert any(title.partition("(")[2].rstrip(")") in line for line in page if line.startswith("## "))


def test_paired_differences_on_the_page_are_those_of_the_results():
    sections = re.split(r"^## ", (DOCS / "retraining.md").read_text().replace("\u2212", "-"), flags=re.M)
    quoted = [(text, found) for text in sections for found in re.findall(PAIRED, text)]
    assert len(quoted) >= 19
    gaps = [(result, set(_gaps(result))) for result in (*RESULTS, DIGITS, *FRESH)]
    for text, found in quoted:
        assert any(found in known for result, known in gaps if _is_about(result, text))


PARTS = ("exact Shapley", *(f"joining {others}" for others in (0, 1, 3, 5, 7)))  # what the page shows of digits
PAIRED = r"([+-]\d\.\d\d)[^()+;]*?, (?:95 % interval )?([+-]\d\.\d\d) to ([+-]\d\.\d\d)"


def _is_about(result, text):
    some = None if result is not DIGITS else PARTS
    return any(line in text for line in list(lines(result, some))[3:])


def _gaps(result):
    conditions, rows = cells(result)
    for condition, first, second in product(conditions, rows, rows):
        yield tuple(f"{value:+.2f}" for value in paired(result, condition, first, second))


def test_a_paired_difference():
    rows = [{"condition": "c", "estimate": e, "seed": s, "spearman": v} for e, s, v in
            (("a", 0, 0.5), ("a", 1, 0.7), ("b", 1, 0.4), ("b", 0, 0.4), ("b", 2, 0.9))]  # fmt: skip
    gap, low, high = paired({"rows": rows}, "c", "a", "b")
    assert gap == pytest.approx(0.2)  # of seeds 0 and 1, which both have
    assert (low, high) == pytest.approx((0.2 - 12.706 * 0.1, 0.2 + 12.706 * 0.1), rel=1e-3)


def test_paired_differences_are_shown_and_unknown_estimates_are_named(capsys):
    show = ["--show", str(DOCS / "results" / "retraining"), "--paired"]
    assert command.main([*show, "whole-run at 0.8", "first order, 1 hop"]) == 0
    assert "mlp, participants 0.8: +0.91, +0.69 to +1.13" in capsys.readouterr().out.splitlines()
    assert command.main([*show, "whole-run", "first order, 1 hop"]) == 2
    assert "whole-run at 1" in capsys.readouterr().err


def test_paired_differences_need_results(capsys, monkeypatch):
    monkeypatch.setattr(command.measure, "measure", None)  # nothing is to be measured
    assert command.main(["--paired", "whole-run at 0.8", "first order, 1 hop"]) == 2
    assert capsys.readouterr().err == (
        "--paired compares results that were kept; found no --show. Add --show and their folder.\n"
    )


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
    _, *table = lines(DIGITS, only=PARTS)
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


@pytest.mark.parametrize(
    "folder", sorted((DOCS / "results" / "retraining" / "adam-epsilon").iterdir()), ids=lambda f: f.name
)
def test_the_page_shows_what_a_larger_epsilon_does(folder):
    page, show = (
        (DOCS / "retraining.md").read_text().splitlines(),
        repeatability if "again" in folder.name else adam_epsilon,
    )
    shown = [line for line in show.lines(read(folder)) if line.startswith("| ")]
    assert len(shown) >= 3
    assert [line for line in shown if line not in page] == []


def test_a_larger_epsilon_is_tried(capsys, tmp_path, monkeypatch):
    few = {"rounds": 6, "subsets": 4, "nodes": 4, "tests": 32}
    monkeypatch.setattr(adam_epsilon, "DIGITS", replace(adam_epsilon.DIGITS, **few))
    assert adam_epsilon.main(["--epsilon", "1e-8,1e-3", "--seeds", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" |")[0] for line in printed.splitlines()[2:4]] == ["| 1e-08, 0.003", "| 0.001, 0.003"]
    assert adam_epsilon.main(["--show", str(tmp_path)]) == 0
    assert printed.startswith(capsys.readouterr().out)
    first, second = (torch.tensor(result["retrained"][0]["found"]) for result in read(tmp_path))
    assert not torch.allclose(first, second)  # the rate is the same, so ε reached the optimizer

    again = [
        "--results",
        str(tmp_path),
        "--case",
        "adam with ε = 0.001",
        "--participants",
        "",
        "--out",
        str(tmp_path / "a"),
    ]
    assert repeatability.main(again) == 0
    (repeated,) = read(tmp_path / "a")
    (row,) = [row for row in repeated["rows"] if row["condition"] == "samples 0.5"]
    (kept,) = [one["found"] for one in read(tmp_path)[0]["retrained"] if one["condition"] == "samples 0.5"]
    assert row["spearman"] > 0.9  # so few steps hardly amplify a change of one part in a million
    assert row["found"] != kept
    assert torch.allclose(torch.tensor(row["found"]), torch.tensor(kept), rtol=1e-3)


def test_the_page_shows_what_a_lower_learning_rate_does():
    page = (DOCS / "retraining.md").read_text().splitlines()
    shown = list(cnn_learning_rate.lines(read(DOCS / "results" / "retraining" / "cnn-learning-rate")))
    assert shown[0] == "| learning rate | 0.5, 200 rounds | 0.25, 300 rounds | 0.25 above 0.5, seed by seed |"
    assert [line for line in shown if line not in page] == []


def test_learning_rates_are_compared(capsys, tmp_path, monkeypatch):
    few = {
        "rounds": 4,
        "subsets": 3,
        "nodes": 4,
        "tests": 32,
        "every": 2,
        "model": "mlp",
        "options": (("hidden", (4,)),),
    }
    plan = [replace(case, **few) for case in cnn_learning_rate.PLAN if case.seeds == (10,)]
    monkeypatch.setattr(cnn_learning_rate, "PLAN", plan)
    monkeypatch.setattr(missing, "find", lambda root: ("digits", None))
    assert cnn_learning_rate.main(["--out", str(tmp_path)]) == 0
    assert cnn_learning_rate.main(["--show", str(tmp_path)]) == 0
    rows = [
        line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| participants 0.75")
    ]
    assert [row[0] for row in rows[-4:]] == [
        "| participants 0.75, α = 1",
        "| participants 0.75, α = 0.75",
        "| participants 0.75, α = 0.5",
        "| participants 0.75, one-hop truth",
    ]
    first, second = (result["accuracy"] for result in read(tmp_path))
    assert len(first) == len(second) == 1
    losses = [torch.tensor(result["retrained"][0]["found"]) for result in read(tmp_path)]
    assert not torch.allclose(*losses)  # the rates differ


def test_exact_interplay_is_the_second_difference_of_retrained_networks():
    losses = {(): 5.0, (0,): 7.0, (1,): 6.0, (2,): 5.5, (0, 1): 11.0, (0, 2): 7.0, (1, 2): 6.5}

    def retrained(network, rounds, evaluation, updates):
        return torch.tensor([losses[tuple((row == 0).nonzero().flatten().tolist())] for row in updates]).double()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pairs, "retrain", retrained)
        found = pairs.exact_interplay(SimpleNamespace(nodes=3), 1, None)
    # leaving out 1 raises the loss by 1, without 0 by 4: its effect, negative where it helps, goes from -1 to -4
    assert_close(found, torch.tensor([[0.0, -3.0, 0.5], [-3.0, 0.0, 0.0], [0.5, 0.0, 0.0]]).double())


def test_the_page_says_how_far_pairs_can_be_trusted():
    page = " ".join((DOCS / "influence.md").read_text().split())
    for data in ("dirichlet", "iid"):
        result = json.loads((DOCS / "results" / "retraining" / "pairs" / f"{data}.json").read_text())
        assert f"{statistics.mean(result['accuracy']):.2f}" in page
        for each in result["rows"].values():
            signs = [100 * one["signs"] for one in each]
            assert spread([one["spearman"] for one in each]) in page
            assert f"{statistics.mean(signs):.0f} ± {statistics.stdev(signs):.0f} %" in page


def test_interplay_is_compared_with_retraining(tmp_path, capsys):
    assert pairs.main(["--seeds", "1", "--rounds", "4", "--out", str(tmp_path)]) == 0
    assert "| 0.5 | " in capsys.readouterr().out
    assert set(json.loads((tmp_path / "pairs.json").read_text())["rows"]) == {"1.0", "0.5"}
