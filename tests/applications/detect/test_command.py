"""`cascadice detect` over a small recorded run: what it finds, says and refuses."""

import json
import re
from dataclasses import replace

import pytest
import torch

from cascadice import topology
from cascadice.applications.detect.signals import SIGNALS, Signal
from cascadice.cli import main
from cascadice.report.page.sections import build_section
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
    assert dict(zip(found["table"]["columns"], found["table"]["rows"][0], strict=True))["injected"] == "sign-flipper"
    assert all(sentence.endswith(".") for sentence in found["findings"])
    assert len(found["votes"]) == len(found["rounds"]) == 30
    assert {len(found["deviation"][name]) for name in SIGNALS} == {8}
    assert len(found["deviation"]) == 4


def test_finds_the_lasting_attacker_first(found):
    node, flagged, heard, since, told, because = found["table"]["rows"][0]
    assert (node, flagged, heard, told) == (3, 7, 7, "sign-flipper")
    assert since < 15
    assert because == "it harms more than the others, and its updates lead away from lower loss"
    assert found["findings"][0].startswith("Participant 3 is flagged by 7 of its 7 receivers, first in round ")


def test_a_new_signal_is_one_entry(recorded, tmp_path, monkeypatch):
    def spoilt(received):
        return 1e6 * (torch.arange(8.0) == 6)[:, None].expand(8, 8) + torch.arange(8.0)[:, None]

    monkeypatch.setitem(SIGNALS, "spoilt", Signal(spoilt, "it is spoilt", "it is fresh"))
    assert main(["detect", str(recorded), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    results = json.loads((tmp_path / "out" / "detect.json").read_text())
    assert list(results["deviation"])[-1] == "spoilt"
    row = next(row for row in results["table"]["rows"] if row[0] == 6)
    assert row[1] > 0
    assert row[-1].startswith("it is spoilt")


def test_says_what_it_missed(found):
    verdict = next(sentence for sentence in found["findings"] if sentence.startswith("Injected"))
    assert "5 (flip-labels)" in verdict
    assert "Missed: 5; no one was wrongly flagged." in verdict


def test_prints_its_findings(recorded, tmp_path, capsys):
    assert (
        main(["detect", str(recorded), "--out", str(tmp_path / "there"), "--own-samples", "20", "--memory", "8"]) == 0
    )
    printed = capsys.readouterr().out
    assert "Participant 3 is flagged by " in printed
    assert "on 20 of its own samples in each of 30 rounds" in printed
    assert f"detect.json, detect.png in {tmp_path / 'there'}" in printed
    assert json.loads((tmp_path / "there" / "detect.json").read_text())["memory"] == 8


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("skewed") / "run"
    changes = {"partition": "dirichlet", "alpha": 0.2, "behaviours": (), "corruptions": ()}
    run(replace(CONFIG, nodes=16, topology="exponential", rounds=40, **changes), folder, quiet=True)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], r"False-alarm rate: about 1 % per link and check; honest-looking participants' long-run scores differ by "
             r"up to \d\.\d\d, more than the usual 0\.5, and that is allowed for\."),
        (["--allowance", "0.5"], r"more than 1 % per link and check, because honest-looking .* beyond the allowance of "
                                 r"0\.5\. Leave out --allowance, or use --unlike, to keep the rate\."),
        (["--unlike"], r"about 1 % per link and check, by the spread of each receiver's own neighbours \(--unlike\)"),
    ],
)  # fmt: skip
def test_says_whether_the_rate_is_kept_where_data_differ(skewed, options, said, tmp_path):
    assert main(["detect", str(skewed), "--out", str(tmp_path / "out"), "--quiet", *options]) == 0
    result = json.loads((tmp_path / "out" / "detect.json").read_text())
    assert re.search(said, result["findings"][-1])
    assert max(result["spread"].values()) > 0.5


def test_points_to_unlike_when_somebody_unexpected_is_flagged(skewed, recorded, tmp_path, capsys):
    line = "Honest participants can stand out too, with very different data or much smaller batches; --unlike allows"
    for name, folder, options, printed in (
        ("a stranger", skewed, ["--allowance", "0", "--rate", "0.5"], True),
        ("asked for", skewed, ["--allowance", "0", "--rate", "0.5", "--unlike"], False),
        ("injected alone", recorded, [], False),
    ):
        assert main(["detect", str(folder), "--out", str(tmp_path / name), *options]) == 0
        assert (line in " ".join(capsys.readouterr().out.split())) == printed, name


def test_where_two_are_heard_nobody_can_tell(tmp_path):
    folder = tmp_path / "ring"
    run(replace(CONFIG, topology="ring", rounds=2, behaviours=(), corruptions=()), folder, quiet=True)
    assert main(["detect", str(folder), "--quiet"]) == 0
    result = json.loads((folder / "detect" / "detect.json").read_text())
    assert result["findings"][0].startswith("No participant can judge: each has fewer than three neighbours, too few")
    assert len(result["findings"]) == 1  # nobody was missed, and there is no false-alarm rate
    section = build_section(result, folder / "detect")
    assert (section["charts"], section["picture"]) == ([], None)
    assert result["votes"][0] == [None] * 8


def test_where_some_hear_too_few_it_says_who_can_tell(tmp_path):
    W, folder = torch.zeros(8, 8, dtype=torch.float64), tmp_path / "run"
    W[:6, :6], W[3, 6:], W[6:, 3] = 1, 1, 1
    topology.write_csv((W + torch.eye(8)) / (W + torch.eye(8)).sum(1, keepdim=True), tmp_path / "W.csv")
    run(replace(CONFIG, mixing=str(tmp_path / "W.csv"), corruptions=()), folder, quiet=True)
    assert main(["detect", str(folder), "--quiet"]) == 0
    result = json.loads((folder / "detect" / "detect.json").read_text())
    assert result["findings"][0].startswith("Only 6 of 8 participants can judge: 6, 7 have fewer than three neigh")
    told = "Participant 3 is flagged by 5 of its 5 receivers that can judge"
    assert result["findings"][1].startswith(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "2"], "rate must be a probability from 0.0001 to 0.5; found 2.0."),
        (["--allowance", "-1"], "allowance must be at least 0 and finite; found -1.0."),
        (["--memory", "0"], "memory must be at least one round; found 0.0."),
        (["--own-samples", "500"], "--own-samples must be in 1..180, the fewest that a participant holds; found 500."),
        (["--samples", "0"], "--own-samples must be in 1..180"),
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
    assert "already exists. Replace it with --overwrite" in capsys.readouterr().err


def test_refuses_a_folder_without_rounds(tmp_path, capsys):
    run(replace(CONFIG, rounds=1, record="none"), tmp_path / "run", quiet=True)
    assert main(["detect", str(tmp_path / "run")]) == 2
    assert "has no recorded rounds" in capsys.readouterr().err
