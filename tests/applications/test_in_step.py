"""Applications of several processes: each uses its own data and its neighbours' messages; the results are one's."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runs.distributed.worlds import CONFIG as LONGER
from runs.distributed.worlds import LOCK, fit_for_threads, together, trained
from torch.utils._pytree import tree_flatten

from cascadice import files
from cascadice.applications import writer
from cascadice.applications.choose.charts import charts as choose_charts
from cascadice.applications.choose.findings import run as choose
from cascadice.applications.detect.charts import charts as detect_charts
from cascadice.applications.detect.findings import run as detect
from cascadice.applications.detect.idea import MAJORITY
from cascadice.applications.forget.findings import run as forget
from cascadice.applications.reward.audit import audit
from cascadice.applications.reward.charts import charts as reward_charts
from cascadice.applications.reward.findings import run as reward
from cascadice.applications.reward.ledger import read_ledger
from cascadice.applications.reward.payouts import pay
from cascadice.cli import _parser, main
from cascadice.engine import Operator
from cascadice.report.checking import check_processes
from cascadice.report.page.sections import read_sections
from cascadice.runs import store, train
from cascadice.runs.distributed.processes import ONE_PROCESS, folder_name

assert fit_for_threads  # a fixture
OWN = ([0, 1, 2], [3, 4])
CONFIG = replace(LONGER, rounds=4, eval_every=4, checkpoint_every=4, optimizer="momentum")
COMMANDS = {"choose": choose, "detect": detect, "reward": reward, "forget": forget}


PRINTED: dict[Path, list[str]] = {}
write = writer.Writer.write


def fresh(own, *arguments):
    """Write anew: forget what was printed about this folder before."""
    PRINTED.pop(own.folder, None)
    return write(own, *arguments)


def of_all(home, name):
    """What process 0 printed, and what the page shows of all processes."""
    folders = [home / "two" / folder_name(rank) for rank in (0, 1)]
    notes = []
    run = files.read_json(folders[0] / name / f"{name}.json")["run"]
    (section,) = (one for one in read_sections(folders, run, notes) if one["name"] == name)
    assert notes == []
    return PRINTED[folders[0] / name], section


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fit_for_threads):
    home = tmp_path_factory.mktemp("runs")
    train.run(CONFIG, home / "one", quiet=True)
    trained(home / "two", CONFIG)
    here = threading.local()

    @contextmanager
    def joined(interface, timeout):
        yield here.world

    def push_rows(*given):
        with LOCK:  # torch has one dual number for all threads
            return pushed(*given)

    pushed = Operator.push_rows
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Operator, "push_rows", push_rows)
        patched.setattr(writer, "joined", joined)
        patched.setattr(writer.Writer, "write", fresh)
        patched.setattr("cascadice.pictures.charts.plot", lambda *_: None)  # takes as long as the rest, and no threads
        patched.setattr(writer.Writer, "print", lambda own, *lines: PRINTED.setdefault(own.folder, []).extend(lines))

        def asked(command, *flags, folder=None):
            """The results of one process, and of two."""

            def work(world):
                here.world = world
                name = "one" if world.alone else "two"
                COMMANDS[command](_parser().parse_args([command, str(home / name), "--quiet", *flags]))

            work(ONE_PROCESS)
            _, errors = together(2, work)
            assert errors == [None, None], errors
            places = [home / "one", *(home / "two" / folder_name(rank) for rank in (0, 1))]
            return [files.read_json(place / (folder or command) / f"{folder or command}.json") for place in places]

        yield home, asked


def test_how_to_keep_the_rate_of_false_alarms_can_be_done(runs):
    home, asked = runs
    results, *of_two = asked("detect", "--allowance", "0")
    printed, section = of_all(home, "detect")
    for row, expected in zip(sorted(section["rows"]), sorted(results["table"]["rows"]), strict=True):
        assert row[:5] == expected[:5]
    assert section["flagged"] == [k for k, share in enumerate(results["votes"][-1]) if share >= MAJORITY]
    assert section["charts"] == detect_charts(results)
    assert printed[:-1] == section["findings"]
    assert printed[-2].endswith("Votes are counted over all receivers; no participant alone can see them.")
    one, *parts = (each["findings"][-1] for each in (results, *of_two))
    assert "allowance of 0. Leave out --allowance, or use --unlike, to keep the rate." in one
    assert all("allowance of 0. Use a larger --allowance, or --unlike, to keep the rate." in part for part in parts)
    assert "rate: more than" in one
    largest = max(max(part["spread"].values()) for part in of_two)
    assert "rate: possibly more than 1 % per link and check, because" in printed[-2]
    assert f"differ by up to {largest:.2f} among the receivers of one process" in printed[-2]


@pytest.mark.parametrize("kind", ["whole-run-shares", "shares", "horizon"])
def test_payments_are_those_of_one_process(runs, kind):
    home, asked = runs
    ledgers = {"whole-run-shares": ("--points=1",), "shares": ("--hops=2",), "horizon": ("--samples",)}[kind]
    flags = ["--budget=100", f"--kind={kind}", "--eval-samples=50", "--floor=2", "--overwrite", *ledgers]
    (home / kind).mkdir()
    flags.append(f"--ledger={home / kind / 'ledger'}")
    one, *parts = asked("reward", *flags)
    paid = dict(row[:2] for row in one["table"]["rows"])
    for rank, (part, own) in enumerate(zip(parts, OWN, strict=True)):
        assert {row[0]: row[1] for row in part["table"]["rows"]} == pytest.approx({k: paid[k] for k in own}, abs=1e-6)
        np.testing.assert_allclose(np.array(part["contributions"]), np.array(one["contributions"])[:, own], atol=1e-10)
        assert [chart["traces"][0]["y"] for chart in reward_charts(part)[:2]] == [own, own]
        for name, values in one["intervals"].items():
            np.testing.assert_allclose(part["intervals"][name], np.array(values)[own], rtol=1e-6, atol=1e-8)
        assert set(read_ledger(part["ledger"]).rows["participant"].tolist()) == set(own)
        assert "Computed again" in audit(part, home / "two" / folder_name(rank) / "reward")[0]
    assert sum(row[1] for part in parts for row in part["table"]["rows"]) == pytest.approx(100, abs=1e-4)
    (printed, section), count = of_all(home, "reward"), len(one["findings"]) - 1  # the last is about the ledger
    assert printed[:count] == one["findings"][:count] == section["findings"][:count]
    assert [row[0] for row in section["rows"]] == [row[0] for row in one["table"]["rows"]]
    assert section["charts"][0]["traces"][0]["y"] == [0, 1, 2, 3, 4]
    assert section["charts"][1]["traces"][0]["x"] == reward_charts(one)[1]["traces"][0]["x"]
    if kind == "whole-run-shares":
        again = asked("reward", *flags)  # from complete ledgers
        assert [part["gap"] for part in (*parts, *again)] == pytest.approx([one["gap"]] * 5, abs=1e-10)
        assert all("Highest payment among them" in part["findings"][3] for part in parts)
        changed = parts[0] | {"others_weight": 2 * parts[0]["others_weight"]}
        with pytest.raises(ValueError, match="it pays participant"):
            audit(changed, home / "two" / folder_name(0) / "reward")
        a_forged_weight_is_noticed(home / "two" / folder_name(0), parts[0])


def a_forged_weight_is_noticed(run, part):
    """Payments as if other processes' participants had earned half as much: they follow from the ledger."""
    path, weight = run / "reward" / "reward.json", part["others_weight"] / 2
    terms = {name: part[name] for name in ("budget", "floor", "clawback", "payout")}
    terms |= {"rule": terms.pop("payout"), "others": part["others"], "total": lambda own: [own[0] + weight]}
    payments = pay(torch.tensor(part["contributions"]), **terms).payment.tolist()
    paid = dict(zip(part["members"], payments, strict=True))
    rows = [[row[0], paid[row[0]], *row[2:]] for row in part["table"]["rows"]]
    forged = part | {"others_weight": weight, "payments": payments, "table": {**part["table"], "rows": rows}}
    files.write_json(path, forged)
    audit(forged, path.parent)  # nothing is wrong with it alone
    try:
        (problem,) = check_processes([run, run.with_name(folder_name(1))]).problems
        assert "participants 0–2 were paid as if all weights added up to" in problem
        notes = []
        shown = read_sections([run, run.with_name(folder_name(1))], part["run"], notes)
        assert "reward" not in [section["name"] for section in shown]
        assert "participants 0–2 were paid as if all weights added up to" in notes[0]
        with pytest.raises(ValueError, match=r"its credit does not follow from the ledger"):
            audit(part | {"credit": [2 * credit for credit in part["credit"]]}, path.parent)
    finally:
        files.write_json(path, part)
    assert check_processes([run, run.with_name(folder_name(1))]).problems == []


def test_whom_to_keep_by_contribution_is_what_one_process_says(runs):
    one, *parts = runs[1]("choose", "--by=contribution", "--on=1", folder="contribution")
    rows = {row[0]: row[1:] for row in one["table"]["rows"]}
    for part, own in zip(parts, OWN, strict=True):
        assert sorted(row[0] for row in part["table"]["rows"]) == own
        assert choose_charts(part)[0]["traces"][0]["y"] == own
        for k, *numbers, advice, injected in part["table"]["rows"]:
            assert numbers == pytest.approx(rows[k][:3], abs=1e-10)
            assert [advice, injected] == rows[k][3:]
        assert part["findings"][0] == f"This is about participants {own[0]}–{own[-1]}."
    printed, section = of_all(runs[0], "contribution")
    assert printed[: len(one["findings"])] == one["findings"] == section["findings"]
    assert section["charts"][0]["traces"][0]["x"] == choose_charts(one)[0]["traces"][0]["x"]


def test_whom_to_hear_by_what_is_heard_is_what_one_process_says(runs):
    one, *parts = runs[1]("choose", "--heard")
    for part in parts:
        for name in ("cosines", "influence_between", "influence_given", "influence_taken", "mixing"):
            np.testing.assert_allclose(np.array(part[name]), np.array(one[name]), rtol=0, atol=1e-10)
        for kind in ("intervals", "half_widths"):
            for name, values in one[kind].items():
                np.testing.assert_allclose(np.array(part[kind][name]), np.array(values), rtol=1e-6, atol=1e-10)
        assert part["groups"] == one["groups"]
        assert part["advice"] == one["advice"]
    printed, section = of_all(runs[0], "choose")
    assert printed[: len(section["findings"])] == section["findings"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--participant=3", "--repair=1"),
        ("--participant=3", "--level=first-order", "--check"),
        ("--participant=1", "--level=gossip", "--rounds=1-2"),
        ("--participant=1,4", "--level=path-integrated"),
    ],
)
def test_what_is_forgotten_is_what_one_process_forgets(runs, flags):
    one, *parts = runs[1]("forget", *flags, "--overwrite")
    models = [
        store.load_checkpoint(runs[0] / name / "forget" / "models").participants
        for name in ("one", *(f"two/{folder_name(rank)}" for rank in (0, 1)))
    ]
    assert models[0].state
    for whole, *of_two in zip(*(tree_flatten(model)[0] for model in models), strict=True):
        torch.testing.assert_close(torch.cat(of_two), whole, rtol=0, atol=1e-10)
    for part, own in zip(parts, OWN, strict=True):
        assert part["members"] == own
        np.testing.assert_allclose(part["change"], one["change"], atol=1e-10)
        assert part["forgotten"]["updates"] == one["forgotten"]["updates"]
        assert part["distance"] == pytest.approx(one["distance"], abs=1e-10)
        assert [row[:3] for row in part["table"]["rows"]] == [row[:3] for row in one["table"]["rows"]]
    _, section = of_all(runs[0], "forget")
    assert section["findings"][:-1] == parts[0]["findings"]
    assert len(section["charts"][0]["traces"][0]["y"]) == 5


def test_samples_are_forgotten_where_they_were_used(runs):
    drawn = store.load_draw(runs[0] / "one", 2).batch
    sample = int(drawn[4].flatten()[0])
    one, *parts = runs[1]("forget", f"--samples={sample}", "--overwrite")
    assert [part["forgotten"]["uses"] for part in parts] == [one["forgotten"]["uses"]] * 2
    assert [part["forgotten"]["distinct_samples"] for part in parts] == [1, 1]


def test_commands_that_train_many_networks_are_refused(monkeypatch, runs, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert main(["validate", str(runs[0] / "two")]) == 2
    assert "validate trains many networks, each in one process" in capsys.readouterr().err
