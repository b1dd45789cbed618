"""A ledger sealed with a key cannot be changed, or forged as a whole, without it; payments are computed again."""

import json
import shutil
from functools import partial

import pytest
import torch

from cascadice.applications.reward.audit import audit
from cascadice.applications.reward.contributions import Entry
from cascadice.applications.reward.ledger import CHAIN, by_round, enter, read_ledger
from cascadice.applications.reward.payouts import pay
from cascadice.applications.reward.seals import check_sealed, read_key, signature

KEY, OTHER = b"0123456789abcdef", b"fedcba9876543210"
NOTE = {"run": "abc", "kind": "shares, 1 hop"}
ENTRIES = [Entry(t, torch.tensor([-3.0, -1.0, 2.0]) * (t + 1)) for t in range(3)]


@pytest.fixture
def ledger(tmp_path):
    enter(tmp_path / "ledger", NOTE, ENTRIES[:2], partial(signature, KEY))
    return tmp_path / "ledger"


def test_what_is_sealed_is_recognised_by_its_key_alone(ledger):
    check_sealed(read_ledger(ledger), KEY)
    with pytest.raises(ValueError, match=r"line 2 of .*chain.jsonl was entered with another key, or altered"):
        check_sealed(read_ledger(ledger), OTHER)
    with pytest.raises(ValueError, match=r"is sealed with a key. Name the file of the key with --seal"):
        check_sealed(read_ledger(ledger), None)


def test_a_forged_ledger_is_refused_though_its_chain_is_whole(ledger, tmp_path):
    forged = [Entry(t, torch.tensor([9.0, -9.0, 2.0])) for t in range(2)]
    enter(tmp_path / "forged", NOTE, forged)
    shutil.rmtree(ledger)
    (tmp_path / "forged").rename(ledger)
    assert read_ledger(ledger).problems == {}
    with pytest.raises(ValueError, match=r"line 2 of .* was entered without a key"):
        check_sealed(read_ledger(ledger), KEY)


def test_lines_that_are_added_without_the_key_are_noticed(ledger):
    enter(ledger, NOTE, ENTRIES[2:])
    with pytest.raises(ValueError, match=r"line 4 of .* was entered without a key: it is not sealed with this one"):
        check_sealed(read_ledger(ledger), KEY)


def test_an_altered_signature_is_noticed(ledger):
    lines = (ledger / CHAIN).read_text().splitlines()
    for wrong in ("0" * 64, 7):
        last = {**json.loads(lines[-1]), "hmac": wrong}
        (ledger / CHAIN).write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        with pytest.raises(ValueError, match=r"line 3 of .*(or altered|lines were altered)"):
            check_sealed(read_ledger(ledger), KEY)


def test_keys_are_long_and_kept_elsewhere(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert read_key(str(tmp_path / "key"), tmp_path / "run") == KEY
    assert read_key(None) is None
    (tmp_path / "short").write_bytes(b"secret\n")
    with pytest.raises(ValueError, match=r"must have at least 16 bytes; found 6. Make one with: openssl rand -hex 32"):
        read_key(str(tmp_path / "short"))
    (tmp_path / "run" / "key").write_bytes(KEY)
    with pytest.raises(ValueError, match=r"lies in .*run, the folder that it protects. Keep it elsewhere"):
        read_key(str(tmp_path / "run" / "key"), tmp_path / "run")


@pytest.fixture
def paid(ledger):
    """What `cascadice reward` writes, as far as payments go."""
    read = read_ledger(ledger)
    payments = pay(by_round(read), 100.0).payment.tolist()
    return {
        "run": "abc", "budget": 100.0, "floor": 0.0, "clawback": 1.0, "payout": "proportional", "ledger": str(ledger),
        "seal": read.seal, "rounds": read.rounds, "payments": payments,
        "table": {"rows": [[node, round(payment, 6)] for node, payment in enumerate(payments)]},
    }  # fmt: skip


def test_payments_are_computed_again(paid, ledger):
    said = ["Computed again from the ledger: these are the payments that its 2 rounds give."]
    assert audit(paid, ledger.parent / "reward") == said
    enter(ledger, NOTE, ENTRIES[2:], partial(signature, KEY))
    assert audit(paid, ledger.parent / "reward") == said  # of the rounds that were paid for
    enter(ledger, NOTE, ENTRIES[:1], partial(signature, KEY))
    with pytest.raises(ValueError, match=r"cannot be computed again: rounds were entered again into .* Pay again"):
        audit(paid, ledger.parent / "reward")
    shutil.rmtree(ledger)
    with pytest.raises(ValueError, match=r"cannot be computed again: there is no ledger in .* Pay again"):
        audit(paid, ledger.parent / "reward")
    with pytest.raises(ValueError, match="it does not say budget, floor"):
        audit({"run": "abc"}, ledger.parent / "reward")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"payments": [70.0, 30.0, 0.0]}, r"it pays participant 0 70.0; by the ledger it is 75"),
        ({"table": {"rows": [[0, 75.0], [1, 15.0], [2, 10.0]]}}, r"it pays participant 1 15.0; by the ledger it is 25"),
        ({"payments": [75.0, 25.0, 0.0, 9.0]}, r"it pays 4 participants; the ledger has 3"),
        ({"budget": "all"}, r"must be numbers"),
        ({"rounds": [0]}, r"does not support the payments: its rounds are not those that were paid for"),
        ({"seal": "0" * 64}, r"never had the seal 000000000000… that the payments name"),
        ({"run": "xyz"}, r"belongs to another run"),
        ({"payments": [float("nan"), 25.0, 0.0]}, r"it pays participant 0 nan; by the ledger it is 75"),
        ({"others_weight": -6.0}, r"others and others_weight must be numbers from 0 on; found 0 and -6.0"),
        ({"others": 1, "others_weight": 1.0}, r"other processes pay 1 more participants; this run has one process"),
    ],
)
def test_edited_payments_are_refused(paid, ledger, changes, said):
    with pytest.raises(ValueError, match=said):
        audit({**paid, **changes}, ledger.parent / "reward")


def test_a_copy_of_a_run_is_audited_by_its_own_ledger(paid, ledger, tmp_path):
    copy = shutil.copytree(ledger.parent, tmp_path / "copy")
    chain = copy / ledger.name / CHAIN
    chain.write_text("".join(chain.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="never had the seal"):
        audit(paid, copy / "reward")
    audit(paid, ledger.parent / "reward")
