"""`cascadice check` looks at everything in a run and says what is wrong with it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from cascadice.applications.forget.findings import audit, models_digest
from cascadice.applications.reward.contributions import Entry
from cascadice.applications.reward.ledger import enter, read_ledger
from cascadice.applications.reward.seals import TERMS_SEAL, read_key
from cascadice.cli import main
from cascadice.files import checksums, keep_checksums, locks, remove, write_json
from cascadice.report.page import collect

PREDECESSOR = Path(__file__).parents[1] / "predecessor" / "run-0.1.0"
KEY = "0123456789abcdef0123456789abcdef\n"
RUN = ["--nodes", "3", "--model-options", "hidden=[4]", "--per-node", "64", "--rounds", "3", "--record", "all"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with a table, a sealed ledger and a record of forgetting; and the key."""
    home = tmp_path_factory.mktemp("check")
    (home / "key").write_text(KEY)
    run = str(home / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        patch.setattr("cascadice.pictures.influence.plot", lambda *_, **__: None)
        patch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: write_json(path, {}))
        assert main(["run", *RUN, "--out", run, "--quiet"]) == 0
        assert main(["influence", run, "--eval-samples", "20", "--quiet"]) == 0
        pay = ["--budget", "100", "--kind", "shares", "--hops", "1", "--eval-samples", "20"]
        assert main(["reward", run, *pay, "--seal", str(home / "key"), "--quiet"]) == 0
        assert main(["forget", run, "--participant", "1", "--quiet"]) == 0
    return home


@pytest.fixture
def check(whole, tmp_path, capsys):
    """Call the command on a copy of that run after a change to it."""
    run = shutil.copytree(whole / "run", tmp_path / "run")

    def call(change=lambda run: None, *arguments):
        change(run)
        return main(["check", str(run), *arguments]), *capsys.readouterr()

    return call


def test_nothing_is_wrong_with_a_run(check, whole):
    code, out, err = check(lambda run: None, "--seal", str(whole / "key"))
    assert (code, err) == (0, "")
    parts = {line.split()[0]: line for line in out.splitlines()[1:-1]}
    assert list(parts) == ["settings", "data", "training", "rounds", "influence", "ledger", "reward", "forget"]
    assert all(line.rstrip().endswith("ok") for line in parts.values())
    assert "chain, seal" in parts["ledger"]
    assert "computed again" in parts["reward"]
    assert out.endswith("nothing is wrong\n")
    assert "sealed: give --seal to verify" in check()[1]


def other_key(run):
    lines = (run / "ledger" / "chain.jsonl").read_text().splitlines()
    unsealed = [{name: value for name, value in json.loads(line).items() if name != "hmac"} for line in lines]
    (run / "ledger" / "chain.jsonl").write_text("\n".join(json.dumps(line, sort_keys=True) for line in unsealed) + "\n")


def of_another_run(name):
    """Let a file, which its line in the list agrees with, say that it belongs to another run."""
    return lambda run: write_json(run / name, json.loads((run / name).read_text()) | {"run": "cafe"})


ATTACKS = {
    "influence.json belongs to another run": of_another_run("influence/influence.json"),
    "forget.json belongs to another run": of_another_run("forget/forget.json"),
    "config.json is damaged": lambda run: (run / "config.json").write_text((run / "config.json").read_text() + " "),
    "manifest.json is damaged": lambda run: (run / "manifest.json").write_text("{}"),
    "checkpoint.safetensors is missing": lambda run: (run / "checkpoint.safetensors").unlink(),
    "metrics.parquet is damaged": lambda run: (run / "metrics.parquet").write_bytes(b"PAR1"),
    "000001.safetensors is missing": lambda run: (run / "rounds" / "000001.safetensors").unlink(),
    "000009.safetensors is not listed": lambda run: shutil.copy(
        run / "rounds" / "000001.safetensors", run / "rounds" / "000009.safetensors"
    ),
    "part-00000000.parquet is damaged": lambda run: (run / "influence" / "part-00000000.parquet").write_bytes(b"PAR1"),
    "part-00000002.parquet was altered": lambda run: shutil.copy(
        run / "ledger" / "part-00000001.parquet", run / "ledger" / "part-00000002.parquet"
    ),
    "was entered without a key": other_key,
    "checksums.jsonl is missing": lambda run: (run / checksums.LIST).unlink(),
    "neither influence.json nor chain.jsonl": lambda run: (run / "ledger" / "chain.jsonl").unlink(),
    "holds other models": lambda run: shutil.copy(
        run / "checkpoint.safetensors", run / "forget" / "models" / "checkpoint.safetensors"
    ),
}


def without_ledger(run):
    shutil.rmtree(run / "ledger")
    shutil.rmtree(run / "reward")


def forged_outside(run):
    """A ledger outside the run that pays participant 1 alone, and payments that follow from it."""
    note, forged = read_ledger(run / "ledger").note, run.parent / "forged"
    rounds = read_ledger(run / "ledger").rounds
    enter(forged, note, [Entry(t, torch.tensor([1.0, -9.0, 1.0])) for t in rounds])
    rows = [[1, 100.0], [0, 0.0], [2, 0.0]]
    return {
        "ledger": str(forged),
        "seal": read_ledger(forged).seal,
        "payments": [0.0, 100.0, 0.0],
        "credit": [-1.0 * len(rounds), 9.0 * len(rounds), -1.0 * len(rounds)],
        "table": {"rows": rows},
    }


def of_payments(change):
    """Change the payments as `change` says, and list all files anew."""

    def forge(run):
        path = run / "reward" / "reward.json"
        write_json(path, change(run, json.loads(path.read_text())))
        (run / checksums.LIST).unlink()
        keep_checksums(run, (path for path in run.rglob("*") if path.is_file()))

    return forge


def doubled(run, results):
    """Twice what the ledger gives, which follows from a negative weight of others."""
    earned = sum(max(credit, 0.0) for credit in results["credit"])
    rows = [[node, 2 * payment, *rest] for node, payment, *rest in results["table"]["rows"]]
    payments = [2 * payment for payment in results["payments"]]
    return results | {"others_weight": -earned / 2, "payments": payments, "table": {"rows": rows}}


def other_budget(run, results):
    """Ten times the budget, and payments that follow from it and the sealed ledger."""
    rows = [[node, 10 * payment, *rest] for node, payment, *rest in results["table"]["rows"]]
    payments = [10 * payment for payment in results["payments"]]
    return results | {"budget": 1000.0, "payments": payments, "table": {"rows": rows}}


def without_terms_seal(results):
    """As the payments of sealed ledgers were before terms were sealed too."""
    return {name: value for name, value in results.items() if name != TERMS_SEAL}


def lost_ledger(run, results):
    shutil.rmtree(run / "ledger")
    return results | {"ledger": "nowhere/ledger"}


FORGERIES = {
    "it does not say clawback": of_payments(lambda run, results: {k: v for k, v in results.items() if k != "clawback"}),
    "others and others_weight must be numbers from 0 on": of_payments(doubled),
    "forged/chain.jsonl was entered without a key": of_payments(lambda run, results: results | forged_outside(run)),
    "there is no ledger in": of_payments(lost_ledger),
    "payout) were sealed with another key, or altered": of_payments(other_budget),
    "payout) were not sealed": of_payments(lambda run, results: without_terms_seal(other_budget(run, results))),
    "has no ledger whose seal the key could verify": without_ledger,
}


def test_what_the_system_said_about_a_file_is_one_sentence(check):
    def loop(run):
        shutil.rmtree(run / "rounds")
        (run / "rounds").symlink_to(run / "rounds")

    code, _, err = check(loop)
    assert code == 1
    assert "/rounds/000000.safetensors: Too many levels of symbolic links" in err
    assert "Errno" not in err


@pytest.mark.parametrize("said", FORGERIES)
def test_who_lacks_the_key_cannot_forge_payments(check, whole, said):
    code, _, err = check(FORGERIES[said], "--seal", str(whole / "key"))
    assert code == 1
    assert said in err


def test_payments_from_before_terms_were_sealed_are_shown_and_paid_again(check, whole, tmp_path):
    change = of_payments(lambda run, results: without_terms_seal(results))
    assert check(change)[0] == 0
    code, _, err = check(lambda run: None, "--seal", str(whole / "key"))
    assert code == 1
    assert "Pay again with --overwrite and --seal." in err
    assert "reward" in [section["name"] for section in collect(tmp_path / "run")["sections"]]
    pay = ["--budget", "100", "--kind", "shares", "--hops", "1", "--eval-samples", "20", "--overwrite", "--quiet"]
    assert main(["reward", str(tmp_path / "run"), *pay, "--seal", str(whole / "key")]) == 0
    assert check(lambda run: None, "--seal", str(whole / "key"))[0] == 0


def test_a_sealed_ledger_outside_the_run_is_verified(check, whole, tmp_path):
    def move(run):
        shutil.move(run / "ledger", tmp_path / "mine")
        of_payments(lambda run, results: results | {"ledger": str(tmp_path / "mine")})(run)

    code, out, err = check(move, "--seal", str(whole / "key"))
    assert (code, err) == (0, "")
    assert "computed again, seal" in next(line for line in out.splitlines() if line.startswith("reward"))


def test_payments_that_cannot_be_computed_again_are_not_shown(whole, tmp_path):
    run = shutil.copytree(whole / "run", tmp_path / "run")
    FORGERIES["it does not say clawback"](run)
    data = collect(run)
    assert "reward" not in [section["name"] for section in data["sections"]]
    assert "The results in reward are not shown: the payments cannot be computed again" in data["notes"][0]


def test_pipes_do_not_end_the_check(check):
    def pipes(run):
        for name in ("metrics.parquet", "rounds/000001.safetensors"):
            (run / name).unlink()
            os.mkfifo(run / name)
        (run / "rounds" / "000002.safetensors").unlink()

    code, _, err = check(pipes)
    assert code == 1
    for said in (
        "metrics.parquet must be a file",
        "000001.safetensors must be a file",
        "000002.safetensors is missing",
    ):
        assert said in err


def test_a_run_that_trains_meanwhile_is_no_problem(check, monkeypatch):
    """While files are compared, one is removed and another one written."""
    compare, done = checksums.problem, []

    def meanwhile(listing, path):
        if not done:
            done.append(path)
            remove(listing.folder / "rounds" / "000000.safetensors")
            write_json(listing.folder / "later" / "note.json", {})
        return compare(listing, path)

    monkeypatch.setattr(checksums, "problem", meanwhile)
    code, out, err = check()
    assert (code, err) == (0, ""), out


def test_a_folder_that_is_being_removed_is_no_problem_but_damage_is(check, whole, tmp_path, monkeypatch):
    """A ledger goes file by file, while its writer holds the lock; a damaged round stays damaged."""

    def half_removed(run):
        (run / "ledger" / "part-00000001.parquet").unlink()
        (run / "rounds" / "000001.safetensors").unlink()

    def gone(seconds):
        for name in ("ledger", "reward"):
            remove(tmp_path / "run" / name)

    monkeypatch.setattr("cascadice.report.checking.sleep", gone)
    with locks.locked(tmp_path / "run"):
        code, _, err = check(half_removed)
    assert code == 1
    assert "rounds/000001.safetensors is missing" in err
    assert "ledger" not in err


@pytest.mark.parametrize("said", ATTACKS)
def test_what_is_wrong_is_said(check, whole, said):
    code, out, err = check(ATTACKS[said], "--seal", str(whole / "key"))
    assert code == 1
    assert said in err
    assert all(line.startswith("wrong: ") for line in err.splitlines())
    assert out.splitlines()[-1] == f"{len(err.splitlines())} wrong"


def test_a_forger_who_mends_the_list_is_found_out(check):
    def forge(run):
        (run / checksums.LIST).unlink()
        results = json.loads((run / "reward" / "reward.json").read_text())
        results["payments"][0] += 10
        (run / "reward" / "reward.json").write_text(json.dumps(results))
        keep_checksums(run, (path for path in run.rglob("*") if path.is_file()))

    code, _, err = check(forge)
    assert code == 1
    assert err.startswith("wrong: ")
    assert "reward.json: it pays participant 0" in err


def test_a_run_of_the_predecessor_has_no_checksums_and_is_read(tmp_path, capsys):
    run = shutil.copytree(PREDECESSOR, tmp_path / "run")
    assert main(["check", str(run)]) == 0
    assert "This run has no checksums" in capsys.readouterr().out
    content = bytearray((run / "rounds" / "000003.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "rounds" / "000003.safetensors").write_bytes(content)
    assert main(["check", str(run), "--quiet"]) == 1
    assert "000003.safetensors is damaged: its checksum is wrong" in capsys.readouterr().err


def test_a_folder_without_a_run_is_a_mistake(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert "holds no run: config.json does not exist" in capsys.readouterr().err


def test_a_record_of_forgetting_is_about_its_models(tmp_path):
    (tmp_path / "models.bin").write_bytes(b"theta")
    record = {"models": "models.bin", "models_digest": models_digest(tmp_path / "models.bin")}
    assert audit(record, tmp_path) == ["Checked: models.bin holds the models that this record is about."]
    assert audit({"models": "models.bin"}, tmp_path)[0].startswith("Not checked")
    with pytest.raises(ValueError, match=r"the models that it is about, ../models.bin, are missing"):
        audit({**record, "models": "../models.bin"}, tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ValueError, match=r"the models that it is about, circle, are missing"):
        audit({**record, "models": "circle"}, tmp_path)
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        read_key(str(tmp_path / "circle"), tmp_path / "run")
    (tmp_path / "models.bin").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"models.bin holds other models: its digest is"):
        audit(record, tmp_path)


def test_results_that_are_missing_are_named_on_the_page(whole, tmp_path):
    run = shutil.copytree(whole / "run", tmp_path / "run")
    assert collect(run)["notes"] == []
    (run / "influence" / "influence.json").unlink()
    shutil.rmtree(run / "reward")  # as a whole: nobody misses it
    assert collect(run)["notes"] == ["influence/influence.json is missing: what it held is not shown."]
