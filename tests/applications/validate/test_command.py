"""`cascadice validate` as its user meets it: on the folder of a run that need not be recorded."""

import json
import re
from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cascadice import files
from cascadice.applications.validate import estimates, findings, idea
from cascadice.applications.validate.estimates import ESTIMATES, how_to_compute
from cascadice.applications.validate.findings import SAVED
from cascadice.cli import main
from cascadice.files.tensors import read_tensors
from cascadice.influence import evaluate_on
from cascadice.influence.retraining import retrain
from cascadice.influence.tables import ALL, read_table
from cascadice.report.page import collect
from cascadice.runs import memory
from cascadice.runs.config import Config, build, to_json
from cascadice.runs.folder import clear
from cascadice.runs.forecast import of_retraining

TINY = Config(nodes=5, model_options=("hidden=[4]",), epochs=None, rounds=6, lr=0.2, batch_size=8)
FEW = ["--subsets", "6", "--keep", "0.6"]


@pytest.fixture
def folder(tmp_path):
    files.write_json(tmp_path / "run" / "config.json", to_json(TINY))
    return tmp_path / "run"


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: path.write_bytes(b"picture"))


@pytest.fixture
def validate(folder, capsys, one_thread):
    """Call the command on the run: exit code, what it said, what went wrong, the results if there are any."""

    def call(*arguments):
        code = main(["validate", str(folder), *arguments])
        said = capsys.readouterr()
        path = folder / "validate" / "validate.json"
        return code, said.out, said.err, json.loads(path.read_text()) if code == 0 and path.exists() else None

    return call


def test_every_estimate_beside_networks_that_were_trained_again(validate, folder):
    code, out, err, found = validate("--subsets", "48", "--keep", "0.6", "--leave-one-out")
    assert (code, err) == (0, "")
    usual = sum(kind.unasked for kind in ESTIMATES.values())
    assert out.startswith(
        "Training on all 10 subsets that keep 3 of 5 participants (0.6).\n"
        f"15 networks of 6 rounds, {usual} estimates: about 91 to 182 trainings to do.\nOne training"
    )
    network = build(TINY)
    absent = [tuple(nodes) for nodes in found["left_out"]]
    assert len(set(absent)) == len(absent) == comb(5, 3)
    updates = torch.ones(10, 5).double()
    for row, nodes in zip(updates, absent, strict=True):
        row[list(nodes)] = 0
    expected = retrain(network, 6, evaluate_on(network), updates=updates)
    torch.testing.assert_close(torch.tensor(found["retrained"]), expected.float())
    assert out.count("To compute it: cascadice ") == 1
    assert {one["name"] for one in found["estimates"]} >= {"whole-run at 0.6", "whole-run at 1", "truth, 1 hop"}
    ranked = [one["lds"]["spearman"] for one in found["estimates"]]
    assert ranked == sorted(ranked, reverse=True)
    assert [one["behind"] is None for one in found["estimates"]] == [True] + [False] * (len(ranked) - 1)
    assert len(found["leave_one_out"]) == len(found["test"]["values"]) == 5
    assert all(len(one["predicted"]) == 10 and one["trainings"] > 0 for one in found["estimates"])
    assert all(sentence in out for sentence in found["findings"])
    assert any(said.startswith("The full run's test accuracy is 0.") for said in found["findings"])
    assert (folder / "validate" / "validate.png").read_bytes().startswith(b"\x89PNG")
    rows = [line for line in out.splitlines() if line.startswith("whole-run")]
    assert all(len(line) <= 80 for line in rows)
    assert all(len(re.findall(r" \(-?\d\.\d\d to -?\d\.\d\d\) ", row)) == 2 for row in rows)  # both correlations


def test_memory_is_forecast_for_the_networks_that_are_trained_together(validate, undrawn, monkeypatch):
    forecasts, networks, keep = {}, [], ["--keep", "0.6", "--kinds", "first-order", "--leave-one-out"]
    monkeypatch.setitem(idea.TOGETHER, "cpu", 3)
    monkeypatch.setattr(memory, "check", lambda what, parts, device: forecasts.update({what: parts}))
    monkeypatch.setattr(
        idea, "retrain", lambda *args, **more: networks.append(len(more["names"])) or retrain(*args, **more)
    )
    assert validate("--subsets", "10", *keep)[0] == 0
    assert networks == [3, 3, 3, 1, 3, 2]
    assert forecasts["validation"] == of_retraining(build(TINY), 6, 355, 3)


@pytest.mark.parametrize("of", ["participants", "samples"])
@pytest.mark.parametrize("record", ["all", "1-2"])
def test_the_command_named_for_an_estimate_gives_its_scores(validate, folder, undrawn, monkeypatch, record, of):
    """On some of the test data; of 3 rounds, fewer than shares look at; every second is scored."""
    for plot in ("runs.journal.plot", "pictures.influence.plot"):
        monkeypatch.setattr(f"cascadice.{plot}", lambda *_, **__: None)
    settings, config = [], folder.parent / "config.json"
    files.write_json(config, to_json(replace(TINY, nodes=6, rounds=3, dtype="float64", record=record)))
    assert main(["run", str(config), "--out", str(folder), "--overwrite", "--quiet"]) == 0
    monkeypatch.setattr(estimates, "SCORED", 2)
    monkeypatch.setattr(findings, "advise", lambda checked, setting, *_: settings.append(setting) or [])
    assert validate("--subsets", "4", "--of", of, "--eval-samples", "20", "--quiet")[0] == 0
    scores, _ = read_tensors(folder / "validate" / SAVED, None)  # at α = 5 / 6
    for kind in filter(scores.__contains__, ESTIMATES):
        how = how_to_compute(kind, settings[0])
        assert main([*how.replace("RUN", str(folder)).split()[1:], "--quiet", "--overwrite"]) == 0, how
        run = f"{folder}-scored" if "RUN-scored" in how else str(folder)
        rows = read_table(Path(run) / ("whole-run" if "whole-run" in kind else "influence"))
        rows = rows.where((rows.sample != ALL) == (of == "samples"))
        who = rows.sample if of == "samples" else rows.source
        total = np.bincount(who, rows.value, len(scores[kind])) * (2 if "--every" in how else 1)
        np.testing.assert_allclose(scores[kind], total, rtol=1e-9, atol=1e-15, err_msg=how)


def test_its_section_of_the_page(validate, folder, undrawn):
    assert validate(*FEW, "--kinds", "first-order,truth", "--quiet")[:3] == (0, "", "")
    (section,) = collect(folder)["sections"]
    assert section["name"] == "validate"
    assert section["columns"] == ["estimate", "LDS", "95 % interval", "behind the best", "Pearson", "cost in trainings"]
    assert "LDS: rank correlation" in section["lead"]
    clear(folder)
    assert not (folder / "validate").exists()


def with_batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 10))


def test_of_a_model_with_batch_norm_whole_run_estimates_are_left_out(validate, folder, undrawn):
    config = replace(TINY, model=f"{__name__}:with_batch_norm", model_options=())
    files.write_json(folder / "config.json", to_json(config))
    code, out, error, _ = validate(*FEW, "--kinds", "whole-run")
    assert (code, out) == (2, "")
    assert "the estimate 'whole-run' does not follow changes of running statistics" in error
    code, out, _, found = validate(*FEW)
    assert {one["name"] for one in found["estimates"]} == {"first order, 1 hop", "truth, 1 hop", "shares, 4 hops"}
    assert "Whole-run estimates are left out: they do not follow changes of running statistics (BatchNorm)." in out


def test_samples(validate, folder, undrawn):
    code, out, _, found = validate(*FEW, "--of", "samples", "--kinds", "whole-run,first-order", "--eval-samples", "20")
    assert (code, found["of"], found["left_out"], found["eval_samples"]) == (0, "samples", None, 20)
    assert "6 random subsets, each with 865 of 1442 samples" in out


def test_estimates_are_taken_at_the_part_that_subsets_really_keep(validate, undrawn):
    code, out, _, found = validate("--subsets", "4", "--keep", "0.5", "--kinds", "whole-run")
    assert (code, found["keep"], found["kept"]) == (0, 0.4, "2 of 5 participants")
    assert found["estimates"][0]["name"] == "whole-run at 0.4"
    assert (
        "Training on 4 subsets that keep 2 of 5 participants (0.4).\n4 networks of 6 rounds, 1 estimate: about" in out
    )
    assert "4 random subsets, each with 2 of 5 participants" in out


def test_an_interrupted_call_goes_on(validate, folder, undrawn, monkeypatch):
    arguments = ["--subsets", "9", "--keep", "0.6", "--kinds", "first-order"]
    calls = []
    monkeypatch.setitem(idea.TOGETHER, "cpu", 4)

    def stops(*args, **more):
        calls.append(len(more["names"]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return retrain(*args, **more)

    monkeypatch.setattr(idea, "retrain", stops)
    code, _, error, _ = validate(*arguments)
    assert code == 130
    assert "stopped; what was computed is kept in" in error
    assert "The same command, without --overwrite, continues." in error
    tensors, _ = read_tensors(folder / "validate" / SAVED, None)
    assert len(tensors["subsets"]) == 4
    monkeypatch.setattr(idea, "estimate", None)  # was computed
    code, out, _, found = validate(*arguments)
    assert code == 0
    assert "about 6 to 12 trainings to do" in out
    assert calls == [4, 4, 4, 1]
    network = build(TINY)
    again = retrain(network, 6, evaluate_on(network), updates=idea.distinct_subsets(5, 0.6, 9))
    torch.testing.assert_close(torch.tensor(found["retrained"]), again.float())


def test_results_are_added_to_and_of_other_settings_refused(validate, folder, undrawn, monkeypatch):
    assert validate(*FEW, "--kinds", "first-order")[0] == 0
    calls = []
    monkeypatch.setattr(idea, "retrain", lambda *args, **more: calls.append(more["names"]) or retrain(*args, **more))
    _, _, _, found = validate("--subsets", "8", "--keep", "0.6", "--kinds", "whole-run,first-order")
    assert {one["name"] for one in found["estimates"]} == {"whole-run at 0.6", "first order, 1 hop"}
    assert [len(names) for names in calls] == [2]
    code, _, error, _ = validate("--subsets", "8", "--keep", "0.4")
    assert code == 2
    assert "holds results of other settings: keep is '3 of 5' there, '2 of 5' here. Choose another folder" in error
    assert validate("--subsets", "8", "--keep", "0.4", "--kinds", "first-order", "--overwrite")[0] == 0
    (folder / "validate" / SAVED).unlink()
    code, _, error, _ = validate("--subsets", "8", "--keep", "0.4")
    assert code == 2
    assert "validate.json already exists. Replace it with --overwrite" in error


def test_a_second_call_compares_with_what_the_first_one_kept(validate, undrawn, monkeypatch):
    arguments = ["--subsets", "8", "--keep", "0.6", "--leave-one-out", "--kinds"]
    _, _, _, first = validate(*arguments, "whole-run,first-order,whole-run-at-0.5")
    monkeypatch.setattr(idea, "retrain", None)  # nothing is trained again
    code, out, _, found = validate(*FEW, "--kinds", "truth")
    assert code == 0
    assert "4 estimates, with those of earlier calls: about" in out
    names = {one["name"] for one in found["estimates"]}
    assert names == {one["name"] for one in first["estimates"]} | {"truth, 1 hop"}
    for one in first["estimates"]:  # but for the best, which may be another now
        (same,) = (other for other in found["estimates"] if other["name"] == one["name"])
        assert {**same, "behind": None} == {**one, "behind": None}
    assert (found["retrained"], found["leave_one_out"]) == (first["retrained"], first["leave_one_out"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep", "1"], "--keep must be above 0 and below 1; found 1."),
        (["--keep", "-0.2"], "--keep must be above 0 and below 1; found -0.2."),
        (["--keep", "0.05"], "each subset must keep some and leave some out; the fraction 0.05 of 5 keeps none."),
        (["--keep", "0.99"], "the fraction 0.99 of 5 keeps all of them. Keep a fraction from 0.2 to 0.8."),
        (["--subsets", "3"], "--subsets must be at least 4; found 3."),
        (["--eval-samples", "0"], "--eval-samples must be at least 1; found 0."),
        (["--eval-samples", "9999"], "--eval-samples must be at most 355, the number of test samples; found 9999."),
        (["--of", "sample"], "unknown thing to leave out 'sample'. Did you mean 'samples'?"),
        (["--kinds", "truth,truth"], "at least one estimate to check, each once; found truth, truth."),
        (["--kinds", "truht"], "unknown estimate 'truht'. Did you mean 'truth'?"),
        (["--of", "samples", "--kinds", "truth"], "the estimate 'truth' scores participants only."),
        (["--of", "samples", "--leave-one-out"], "samples are too many to leave each of 1442 out in turn."),
    ],
)
def test_mistakes(validate, folder, arguments, said):
    code, out, error, _ = validate(*arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (folder / "validate").exists()


def test_a_run_with_a_rule_is_refused(validate, folder):
    files.write_json(folder / "config.json", to_json(replace(TINY, rule="influence")))
    code, _, error, _ = validate(*FEW)
    assert code == 2
    assert "networks trained again would average by the given W, not by the rule 'influence'" in error


def test_a_run_that_diverges_fails(validate, folder, undrawn):
    files.write_json(folder / "config.json", to_json(replace(TINY, lr=0.2, behaviours=("sign-flipper:0:1e30",))))
    code, _, error, _ = validate(*FEW, "--kinds", "first-order")
    assert code == 1
    assert "became NaN or infinite in round" in error
