"""`cascadice reward` as its user meets it: payments, a ledger that grows, and mistakes in one line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cascadice import influence
from cascadice.applications.reward.audit import audit
from cascadice.applications.reward.contributions import Entry, by_shares
from cascadice.applications.reward.findings import sentences
from cascadice.applications.reward.ledger import CHAIN, by_round, enter, read_ledger, totals
from cascadice.cli import main
from cascadice.files import write_json
from cascadice.influence.whole_run_shares import share_out, whole_run_shares
from cascadice.runs.recording import open_recording

PREDECESSOR = Path(__file__).parents[2] / "predecessor" / "run-0.1.0"
SHARES = ["--kind", "shares"]
RUN = ["--nodes", "4", "--model-options", "hidden=[8]", "--per-node", "64", "--batch-size", "32", "--lr", "0.2"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recorded run of four with a free-rider, number 2."""
    folder = tmp_path_factory.mktemp("reward") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        arguments = ["run", *RUN, "--rounds", "6", "--behaviours", "free-rider:2", "--record", "all", "--quiet"]
        assert main([*arguments, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Without the pictures, which take longer than the rest."""
    monkeypatch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: write_json(path, {}))
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)


@pytest.fixture
def reward(recorded, tmp_path, capsys):
    """Call the command on that run, with a ledger and results in a folder of this test's own."""

    def call(*arguments, run=recorded):
        places = ["--ledger", str(tmp_path / "ledger"), "--out", str(tmp_path / "out"), "--eval-samples", "40"]
        code = main(["reward", str(run), "--budget", "1000", *places, *arguments])
        return code, *capsys.readouterr()

    return call


def results_in(folder):
    return json.loads((folder / "reward.json").read_text())


def test_shares_out_the_budget_and_says_why(reward, tmp_path, recorded):
    code, out, err = reward(*SHARES, "--hops", "2")
    assert (code, err) == (0, "")
    results = results_in(tmp_path / "out")
    assert {"command", "version", "run", "title", "findings", "table", "figure"} <= set(results)
    assert sum(results["payments"]) == pytest.approx(1000)
    assert results["payments"][2] == 0
    assert results["rounds"] == [0, 1, 2, 3, 4]  # the last has only one round to look at
    assert results["table"]["columns"][:2] == ["participant", "payment"]
    assert [row[1] for row in results["table"]["rows"]] == sorted(
        (row[1] for row in results["table"]["rows"]), reverse=True
    )
    assert "Neither helped nor harmed: participant 2 (free-rider)." in results["findings"]
    low, high = np.array(results["intervals"]["payments"]).T
    assert ((low <= results["payments"]) & (np.array(results["payments"]) <= high)).all()
    assert [row[2] for row in results["table"]["rows"]][-1] == "0.00 to 0.00"
    (highest,) = (text for text in results["findings"] if text.startswith("Highest payment"))
    others = int((high >= low[np.argmax(results["payments"])]).sum()) - 1
    assert highest.endswith(f"those of {others} others.") if others > 1 else highest.endswith((" another.", " else."))
    assert all(sentence in out for sentence in results["findings"])
    table = [line.split()[:2] for line in out.partition("participant   payment")[2].splitlines()[1:5]]
    assert table == [[str(row[0]), f"{row[1]:.2f}"] for row in results["table"]["rows"]]
    assert "test accuracy" in out
    assert (tmp_path / "out" / "reward.png").stat().st_size > 10_000
    ledger = read_ledger(tmp_path / "ledger")
    assert ledger.note["run"] == results["run"]
    assert ledger.seal == results["seal"]
    run = open_recording(recorded)
    evaluation, rounds = (
        influence.evaluate_on(run.network, run.network.data.test.subset(torch.arange(40))),
        list(run.load_rounds()),
    )
    slow = torch.stack([by_shares(run.network, rounds[t : t + 2], evaluation).participants for t in range(5)])
    torch.testing.assert_close(torch.tensor(results["contributions"], dtype=torch.float64), slow)
    net = -torch.tensor(totals(ledger, "participant")["value"]).clamp(max=0)
    torch.testing.assert_close(torch.tensor(results["payments"], dtype=torch.float64), 1000 * net / net.sum())


def test_pays_by_whole_run_shares_unless_told_otherwise(reward, tmp_path, recorded, undrawn):
    """The ledger holds the shares round by round, and the console says what they sum to."""
    code, out, err = reward("--samples")
    assert (code, err) == (0, "")
    results, ledger = results_in(tmp_path / "out"), read_ledger(tmp_path / "ledger")
    assert ledger.note["kind"] == "whole-run-shares, 3 points, to the end of round 5"
    network = open_recording(recorded).network
    evaluation = influence.evaluate_on(network, network.data.test.subset(torch.arange(40)))
    played = whole_run_shares(network, 6, evaluation)  # as trained, not as recorded
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(by_round(ledger), played.by_round, **close)
    samples = totals(ledger, "sample")
    each = played.by_sample(len(network.data.train))[samples["sample"]]
    torch.testing.assert_close(torch.tensor(samples["value"]), each, **close)
    assert sum(results["payments"]) == pytest.approx(1000)
    assert results["payments"][2] == 0
    assert results["trained"] == pytest.approx(played.value, rel=1e-5)
    assert results["gap"] == pytest.approx(played.gap, abs=1e-5)
    total = sum(map(sum, results["contributions"]))
    assert total - results["gap"] == pytest.approx(results["trained"] - results["untrained"])
    assert f"from {results['untrained']:.4f} to {results['trained']:.4f}. Shares sum to {total:+.4f}" in out


def test_contributions_that_do_not_add_up_are_called_so_or_refused(reward, tmp_path, undrawn, monkeypatch):
    """They are refused before they are in a ledger, which would take none with more points."""

    def off_by(part):
        return lambda parts, trained, untrained: make(parts, trained, untrained, part)

    def make(parts, trained, untrained, part):
        run = share_out(parts, trained, untrained)
        scale = (1 + part) * (trained - untrained) / float(run.by_round.sum())
        return replace(run, by_round=scale * run.by_round)

    monkeypatch.setattr("cascadice.runs.sweeps.share_out", off_by(-1.2))
    code, _, err = reward()
    assert code == 2
    assert "contributions must sum to about what training did to the loss, -0." in err
    assert "; with 3 points they sum to +0." in err
    assert "Ask for more: --points 6. If that brings the sum no closer, training is too rough for shares" in err
    assert not (tmp_path / "ledger" / CHAIN).exists()
    monkeypatch.setattr("cascadice.runs.sweeps.share_out", off_by(0.5))
    code, out, err = reward()
    assert (code, err) == (0, "")
    assert "by 50 %: do not read them as parts of a whole. The 95 % intervals of shares, and of payments" in out
    assert "Use more points, in a new ledger: --points 6 --ledger DIR --overwrite." in out
    content = read_ledger(tmp_path / "ledger")
    enter(tmp_path / "ledger", content.note, [Entry(0, torch.full((4,), 9.0))])  # as an earlier version may have
    code, _, err = reward("--overwrite")
    assert code == 2
    assert "Ask for more: --points 6 --ledger DIR. If that" in err


def test_a_run_that_was_not_recorded_is_played_again(reward, tmp_path, undrawn):
    assert main(["run", *RUN, "--rounds", "2", "--quiet", "--out", str(tmp_path / "bare")]) == 0
    assert reward("--quiet", run=tmp_path / "bare")[0] == 0
    code, _, err = reward("--quiet", *SHARES, "--overwrite", "--ledger", str(tmp_path / "other"), run=tmp_path / "bare")
    assert (code, "has no recorded rounds" in err) == (2, True)


def test_a_whole_run_is_played_again_where_rounds_are_missing(reward, recorded, tmp_path, undrawn):
    assert reward()[0] == 0
    complete = results_in(tmp_path / "out")
    run = tmp_path / "gaps"
    shutil.copytree(recorded, run)
    for t in (0, 3):
        next((run / "rounds").glob(f"*{t}.safetensors")).unlink()
    assert reward("--ledger", str(tmp_path / "again"), "--overwrite", run=run)[0] == 0
    played = results_in(tmp_path / "out")
    assert played["rounds"] == complete["rounds"] == [0, 1, 2, 3, 4, 5]
    assert played["payments"] == pytest.approx(complete["payments"], rel=1e-3)
    assert played["gap"] == pytest.approx(complete["gap"], abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rule": "influence"},
            "chose W during the run, so every round must be recorded",
        ),
        ({"lr": 0.1}, "cannot be trained again: its settings give other batches or learning rates for round 5"),
    ],
)
def test_a_whole_run_that_cannot_be_played_again_is_refused(reward, recorded, tmp_path, change, message):
    run = tmp_path / "gaps"
    shutil.copytree(recorded, run)
    next((run / "rounds").glob("*3.safetensors")).unlink()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | change))
    (run / "checksums.jsonl").unlink()  # which would notice it first, as the fingerprint would
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(
        json.dumps({k: v for k, v in manifest.items() if k not in ("fingerprint", "format")})
    )
    code, out, err = reward(run=run)
    assert (code, out, message in err, err.count("\n")) == (2, "", True, 1)
    assert not (tmp_path / "ledger").exists()


def test_a_recorded_rule_need_not_be_played(reward, tmp_path, undrawn, monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    run = tmp_path / "ruled"
    arguments = ["run", *RUN, "--rounds", "4", "--rule", "influence", "--record", "all", "--quiet", "--out", str(run)]
    assert main(arguments) == 0
    assert reward(run=run)[0] == 0
    results = results_in(tmp_path / "out")
    recording = open_recording(run)
    evaluation = influence.evaluate_on(recording.network, recording.network.data.test.subset(torch.arange(40)))
    whole = whole_run_shares(recording.network, list(recording.load_rounds()), evaluation, samples=False)
    torch.testing.assert_close(torch.tensor(results["contributions"], dtype=torch.float64), whole.by_round)
    assert results["gap"] == pytest.approx(whole.gap, abs=1e-6)


def test_a_ledger_goes_on_in_its_own_kind(reward, tmp_path, undrawn):
    assert reward("--kind", "horizon")[0] == 0
    assert reward("--overwrite")[0] == 0
    assert read_ledger(tmp_path / "ledger").note["kind"] == "horizon, to the end of round 5"
    code, _, err = reward("--overwrite", "--kind", "whole-run-shares")
    assert code == 2
    assert "is the ledger of other settings: its kind is 'horizon, to the end of round 5', not 'whole-run-sh" in err


def test_a_ledger_of_the_predecessor_is_read_and_continued(tmp_path, capsys, undrawn):
    """Recorded by version 0.1.0, whose header names settings at their defaults."""
    run = tmp_path / "run"
    shutil.copytree(PREDECESSOR, run)
    before = json.loads((run / "reward" / "reward.json").read_text())
    assert main(["reward", str(run), "--budget", "100", "--overwrite"]) == 0
    assert "entered round" not in capsys.readouterr().out
    assert results_in(run / "reward")["payments"] == before["payments"]
    assert results_in(run / "reward")["seal"] == before["seal"]
    *kept, last = (run / "ledger" / CHAIN).read_text().splitlines()
    (run / "ledger" / CHAIN).write_text("\n".join(kept) + "\n")
    (run / "ledger" / "part-00000002.parquet").unlink()
    assert main(["reward", str(run), "--budget", "100", "--overwrite"]) == 0
    assert "entered round 2, 1/1" in capsys.readouterr().out
    lines = (run / "ledger" / CHAIN).read_text().splitlines()
    assert lines[:-1] == kept
    assert json.loads(lines[-1])["round"] == json.loads(last)["round"] == 2
    assert results_in(run / "reward")["payments"] == pytest.approx(before["payments"], rel=1e-4)
    assert (
        main(
            [
                "reward",
                str(run),
                "--budget",
                "100",
                "--overwrite",
                "--ledger",
                str(tmp_path / "new"),
                "--kind",
                "shares",
            ]
        )
        == 0
    )
    again, expected = (torch.tensor(results["contributions"]) for results in (results_in(run / "reward"), before))
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-7)


def test_what_is_missing_is_appended_and_nothing_else(reward, tmp_path, undrawn):
    assert reward(*SHARES, "--hops", "1", "--every", "3")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "ledger").glob("part-*")}
    assert sorted(before) == ["part-00000000.parquet", "part-00000003.parquet"]
    code, _, err = reward(*SHARES, "--hops", "1")
    assert code == 2
    assert "reward.json already exists" in err
    code, out, _ = reward(*SHARES, "--hops", "1", "--overwrite")
    assert code == 0
    assert "4/4" in out
    ledger = read_ledger(tmp_path / "ledger")
    assert [line.round for line in ledger.chain] == [0, 3, 1, 2, 4, 5]
    assert all((tmp_path / "ledger" / name).read_bytes() == content for name, content in before.items())
    assert "entered round" not in reward(*SHARES, "--hops", "1", "--overwrite")[1]


def test_a_truncated_part_is_named_and_entered_again(reward, tmp_path, undrawn):
    assert reward(*SHARES, "--hops", "1", "--quiet")[:2] == (0, "")
    before = results_in(tmp_path / "out")["contributions"]
    path = tmp_path / "ledger" / "part-00000003.parquet"
    path.write_bytes(path.read_bytes()[:50])
    code, out, _ = reward(*SHARES, "--hops", "1", "--overwrite")
    assert code == 0
    assert "part-00000003.parquet is truncated: 50 of" in out
    assert results_in(tmp_path / "out")["contributions"] == before


def test_the_horizon_with_samples_floor_and_clawback(reward, tmp_path, undrawn):
    assert reward("--kind", "horizon", "--samples", "--floor", "100", "--clawback", "0.5")[0] == 0
    results = results_in(tmp_path / "out")
    assert results["payments"][2] == 100
    assert results["note"]["kind"] == "horizon, to the end of round 5"
    assert len(results["rounds"]) == 6
    samples = results["samples"]
    by_node = [sum(v for k, v in zip(samples["participant"], samples["value"], strict=True) if k == n) for n in (0, 1)]
    for node, value in enumerate(by_node):
        assert value == pytest.approx(sum(row[node] for row in results["contributions"]), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "the budget must be positive and finite; found 0"),
        (["--budget", "-3"], "the budget must be positive and finite; found -3"),
        (["--floor", "400"], "the floor must lie between 0 and 250, the budget divided by 4 participants; found 400"),
        (["--clawback", "-1"], "the clawback must be at least 0"),
        (["--kind", "share"], "unknown kind 'share'. Did you mean 'shares'?"),
        (["--payout", "equl"], "unknown payout rule 'equl'. Did you mean 'equal'?"),
        (["--every", "0"], "--every must be at least 1; found 0"),
        (
            ["--kind", "horizon", "--hops", "2"],
            "--hops is for shares; contributions are scored by horizon. Use --kind s",
        ),
        (["--every", "2"], "--every is for shares; contributions are scored by whole-run-shares. Use --kind shares."),
        ([*SHARES, "--points", "2"], "--points is for whole-run-shares; contributions are scored by shares. Use"),
        (["--eval-samples", "100000"], "--eval-samples must be at most"),
        ([*SHARES, "--hops", "7"], "7 hops need 7 consecutive recorded rounds"),
    ],
)
def test_mistakes_are_told_in_a_line(reward, tmp_path, arguments, message):
    code, out, err = reward(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "ledger").exists()


def test_a_ledger_of_another_run_or_of_other_settings_is_refused(reward, recorded, tmp_path, undrawn):
    assert reward(*SHARES, "--hops", "1")[0] == 0
    kept = (tmp_path / "out" / "reward.json").read_bytes()
    code, _, err = reward(*SHARES, "--hops", "2", "--overwrite")
    assert code == 2
    assert "is the ledger of other settings: its kind is 'shares, 1 hop', not 'shares, 2 hops'" in err
    other = tmp_path / "other"
    other.mkdir()
    (other / "rounds").symlink_to(recorded / "rounds")
    config = json.loads((recorded / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"seed": 1}))
    code, _, err = reward(*SHARES, "--hops", "1", "--overwrite", run=other)
    assert code == 2
    assert "is the ledger of another run" in err
    assert (tmp_path / "out" / "reward.json").read_bytes() == kept


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (["--kind", "horizon"], r"effects up to round 5, but the run is recorded up to round 7 by now"),
        (["--points", "2"], r"the models after 6 rounds, but the run now has 8"),
    ],
)
def test_payments_of_a_run_that_went_on_are_paid_again_as_advised(recorded, tmp_path, capsys, undrawn, kind, said):
    run = shutil.copytree(recorded, tmp_path / "run")
    pay = ["reward", str(run), "--budget", "10", "--eval-samples", "40", *kind, "--quiet"]
    assert main(pay) == 0
    assert main(["run", "--resume", "--out", str(run), "--rounds", "8", "--quiet"]) == 0
    assert main(["check", str(run), "--quiet"]) == 1
    assert f"it is about {said}. Repeat the command with --overwrite --ledger DIR" in capsys.readouterr().err
    assert main([*pay, "--overwrite", "--ledger", str(tmp_path / "new")]) == 0
    assert main(["check", str(run), "--quiet"]) == 0


def test_payments_for_rounds_say_that_the_run_went_on(recorded, tmp_path, undrawn):
    run = shutil.copytree(recorded, tmp_path / "run")
    pay = ["reward", str(run), "--budget", "10", "--eval-samples", "40", *SHARES, "--hops", "2", "--quiet"]
    assert main(pay) == 0
    (checked,) = audit(results_in(run / "reward"), run / "reward")
    assert main(["run", "--resume", "--out", str(run), "--rounds", "8", "--quiet"]) == 0
    later = "The run went on: rounds after 4 are not paid for. Repeat the command with --overwrite."
    assert audit(results_in(run / "reward"), run / "reward") == [checked, later]
    assert main([*pay, "--overwrite"]) == 0
    assert len(audit(results_in(run / "reward"), run / "reward")) == 1


def test_results_lie_in_the_runs_folder_unless_said_otherwise(recorded, capsys, undrawn):
    assert main(["reward", str(recorded), "--budget", "10", "--kind", "horizon", "--eval-samples", "20"]) == 0
    assert {path.name for path in (recorded / "reward").iterdir()} == {"reward.json", "reward.png"}
    assert read_ledger(recorded / "ledger").rounds == [0, 1, 2, 3, 4, 5]
    assert capsys.readouterr().out


def test_a_ledger_is_not_started_among_other_files(reward, recorded, tmp_path):
    (tmp_path / "note.txt").touch()
    for path, reason in ((recorded, "holds other files"), (tmp_path / "note.txt", "is a file")):
        before = sorted(recorded.iterdir())
        code, _, err = reward("--ledger", str(path))
        assert (code, reason in err, err.count("\n")) == (2, True, 1)
        assert sorted(recorded.iterdir()) == before


@pytest.mark.parametrize(("gap", "warned"), [(0.2, True), (0.0001, False)])
def test_what_intervals_of_payments_leave_out_is_said_where_there_is_a_gap_to_close(gap, warned):
    payments, ends = [60.0, 40.0], {name: [[50.0, 70.0], [30.0, 50.0]] for name in ("payments", "credit")}
    results = {
        "payments": payments, "credit": [0.6, 0.4], "earned": [0.6, 0.4], "lost": [0.0, 0.0], "intervals": ends,
        "rounds": [0, 1], "seal": "0" * 64, "table": {"rows": [[0, ""], [1, ""]]}, "payout": "proportional",
        "budget": 100.0, "note": {"kind": "whole-run-shares"}, "tested": "", "untrained": 2.0, "trained": 1.0,
        "gap": gap, "points": 4,
    }  # fmt: skip
    (said,) = (text for text in sentences(results) if text.startswith("Training took"))
    assert f"Shares sum to {gap - 1:+.4f}; training changed the loss by -1.0000." in said
    assert ("a whole. The 95 % intervals of shares, and of payments made from them, show only how" in said) == warned
    more = "Use more points, in a new ledger: --points 8 --ledger DIR --overwrite. If that brings the sum no closer"
    assert (f"they do not include this error, which may be larger for a single participant. {more}" in said) == warned
