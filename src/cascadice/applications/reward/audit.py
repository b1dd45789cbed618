"""Check that the payments in `reward.json` follow from the ledger, by computing them again."""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from cascadice.applications.plain import Json
from cascadice.applications.reward.ledger import Ledger, by_round, read_ledger
from cascadice.applications.reward.payouts import PAYOUT_RULES, pay
from cascadice.engine.parts import numbered
from cascadice.runs import store
from cascadice.runs.folder import CHAIN, read_manifest

REQUIRED = ("budget", "floor", "clawback", "payments", "rounds", "seal", "ledger")
FIRST_RULE = "proportional"  # the only rule of version 0.1.0, which did not save its name
PAY_AGAIN = "Pay again, with cascadice reward --overwrite."
REDO = "--overwrite --ledger DIR, where DIR is a new folder"  # one ledger is for one length of the run
TOLERANCE = 1e-5  # of the budget; the table has six digits after the point


def audit(results: Json, folder: Path) -> list[str]:
    """Compute the payments again from the ledger and compare; return sentences about what was checked.

    ValueError if they do not follow from the ledger, or if terms or the ledger are missing or were altered.
    """
    ledger = ledger_of(results, folder)
    if ledger.note.get("run") != results.get("run"):
        raise ValueError(f"the ledger in {ledger.folder} belongs to another run.")
    entered = _entered(ledger, str(results["seal"]))
    if ledger.problems.keys() & set(entered) or entered != sorted(results["rounds"]):
        wrong = next(iter(ledger.problems.values()), "its rounds are not those that were paid for")
        raise ValueError(f"the ledger in {ledger.folder} does not support the payments: {wrong}.")
    paid_for = by_round(ledger)[[ledger.rounds.index(t) for t in entered]]
    _compare(results, paid_for, np.unique(ledger.rows["participant"]).tolist(), folder.parent)
    again = f"Computed again from the ledger: these are the payments that its {len(entered)} rounds give."
    return [again, *_later(ledger.note.get("kind", ""), entered, folder.parent)]


def _later(kind: str, paid: list[int], run: Path) -> list[str]:
    """Say that later rounds are not paid for, if there are any; ValueError if they change what was paid for."""
    last = max(store.saved_rounds(run), default=-1)
    if (end := re.fullmatch(r"horizon, to the end of round (\d+)", kind)) and int(end[1]) < last:
        raise ValueError(
            f"it is about effects up to round {end[1]}, but the run is recorded up to round {last} by now. Repeat the "
            f"command with {REDO}."
        )
    if (hops := re.fullmatch(r"shares, (\d+) hops?", kind)) and len(paid) > 1:
        following = paid[-1] + paid[-1] - paid[-2]  # the next round to pay for, if only every N-th is
        if following + int(hops[1]) - 1 <= last:
            return [f"The run went on: rounds after {paid[-1]} are not paid for. Repeat the command with --overwrite."]
    return []


def ledger_of(results: Json, folder: Path) -> Ledger:
    """The ledger from which payments in a folder were computed; ValueError if it is not named or not there."""
    if missing := [name for name in REQUIRED if name not in results]:
        raise ValueError(f"the payments cannot be computed again: it does not say {', '.join(missing)}. {PAY_AGAIN}")
    named = Path(str(results["ledger"]))
    beside = folder.parent / named.name  # first, because this run may be a copy of the one that was paid for
    found = next((place for place in (beside, named) if (place / CHAIN).exists()), None)
    if found is None:
        raise ValueError(f"the payments cannot be computed again: there is no ledger in {named}. {PAY_AGAIN}")
    return read_ledger(found)


def _entered(ledger: Ledger, seal: str) -> list[int]:
    """The rounds entered when the ledger had this seal; ValueError if one of them was entered again since."""
    seals = [line.seal for line in ledger.chain]
    if seal not in seals:
        raise ValueError(f"the ledger in {ledger.folder} never had the seal {seal[:12]}… that the payments name.")
    until = seals.index(seal) + 1
    then, since = ({line.round for line in part} for part in (ledger.chain[:until], ledger.chain[until:]))
    if then & since:
        again = f"rounds were entered again into {ledger.folder} since"
        raise ValueError(f"the payments cannot be computed again: {again}. {PAY_AGAIN}")
    return sorted(then)


def _compare(results: Json, contributions: torch.Tensor, nodes: list[int], run: Path) -> None:
    """ValueError unless credit, payments and table are those that the terms give for these contributions."""
    names = ("budget", "floor", "clawback")
    if not all(isinstance(results[name], (int, float)) for name in names):
        raise ValueError(f"{', '.join(names)} must be numbers.")
    budget, floor, clawback = (float(results[name]) for name in names)
    others, weight = _others(results, run)
    rule = str(results.get("payout", FIRST_RULE))
    payout = pay(
        contributions, budget, floor=floor, clawback=clawback, rule=rule, others=others,
        total=lambda own: [own[0] + weight],
    )  # fmt: skip
    payments, listed = payout.payment.tolist(), results["payments"]
    if "credit" in results and not _close(results["credit"], payout.credit):
        raise ValueError("its credit does not follow from the ledger.")
    rows = {row[0]: row[1] for row in results["table"]["rows"]}
    for node, payment, of_list in zip_longest(nodes, payments, listed[: len(nodes)]):
        for paid in (of_list, rows.get(node)):
            if not isinstance(paid, (int, float)) or not abs(paid - payment) <= TOLERANCE * budget + 1e-6:
                raise ValueError(f"it pays participant {node} {paid}; by the ledger it is {payment:.6g}.")
    if not len(payments) == len(listed) == len(rows):
        raise ValueError(f"it pays {len(listed)} participants; the ledger has {len(payments)}.")


def _close(found: object, expected: torch.Tensor) -> bool:
    """Whether a list from a file holds these numbers."""
    with suppress(ValueError, TypeError, RuntimeError):
        values = torch.tensor(found, dtype=torch.float64)
        return values.shape == expected.shape and torch.allclose(values, expected, rtol=TOLERANCE, atol=1e-12)
    return False


def check_weights(parts: Sequence[Json]) -> None:
    """Raise ValueError if processes did not share the budget by the same weights; their `credit` was audited."""
    weights = [PAYOUT_RULES[part["payout"]].weights(torch.tensor(part["credit"]).double()).sum() for part in parts]
    together = len(parts[0]["members"]) + parts[0]["others"] == sum(len(part["members"]) for part in parts)
    everybody = float(sum(weights) if together else weights[0] + parts[0]["others_weight"])
    for part, own in zip(parts, weights, strict=True):
        if not abs(float(own) + part["others_weight"] - everybody) <= TOLERANCE * everybody + 1e-12:
            raise ValueError(
                f"{numbered(part['members'])} were paid as if all weights added up to "
                f"{float(own) + part['others_weight']:.6g}; by the credit of all processes it is {everybody:.6g}. "
                f"{PAY_AGAIN}"
            )


def _others(results: Json, run: Path) -> tuple[int, float]:
    """How many participants other processes pay, and the sum of their weights, as those processes reported it."""
    count, weight = results.get("others", 0), results.get("others_weight", 0.0)
    if not (isinstance(count, int) and isinstance(weight, (int, float)) and count >= 0 and 0 <= weight < float("inf")):
        raise ValueError(f"others and others_weight must be numbers from 0 on; found {count!r} and {weight!r}.")
    if (count or weight) and "process" not in read_manifest(run):
        raise ValueError(f"it says that other processes pay {count} more participants; this run has one process.")
    return count, float(weight)
