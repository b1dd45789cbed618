"""Whether the payments in `reward.json` are what the ledger gives: they are computed again, not believed."""

from pathlib import Path

import numpy as np
import torch

from cascadice.applications.plain import Json
from cascadice.applications.reward.ledger import Ledger, by_round, read_ledger
from cascadice.applications.reward.payouts import pay
from cascadice.runs.folder import CHAIN

TERMS = ("budget", "floor", "clawback", "payout", "payments", "rounds", "seal", "ledger")
TOLERANCE = 1e-5  # of the budget; the table has six digits after the point


def audit(results: Json, folder: Path) -> list[str]:
    """Compute the payments again from the ledger and compare; what was checked, in words.

    Raises:
        ValueError: If the payments, or the table, are not what the ledger gives; or if the ledger was altered.

    Example:
        >>> audit(read_json(folder / "reward.json"), folder)  # doctest: +SKIP
        ['Computed again from the ledger: these are the payments that its 120 rounds give.']
    """
    if missing := [name for name in TERMS if name not in results]:
        return [f"Not computed again: reward.json does not say {', '.join(missing)}."]
    noted = Path(str(results["ledger"]))
    own = folder.parent / noted.name  # of this run, which may be a copy: the note is of where the ledger was then
    place = next((place for place in (own, noted) if (place / CHAIN).exists()), None)
    if place is None:
        return [f"Not computed again: there is no ledger in {noted}."]
    ledger = read_ledger(place)
    if ledger.note.get("run") != results.get("run"):
        raise ValueError(f"the ledger in {place} belongs to another run.")
    entered = _entered(ledger, str(results["seal"]))
    if entered is None:
        return [f"Not computed again: rounds were entered again into {place} since."]
    if ledger.problems.keys() & set(entered) or entered != sorted(results["rounds"]):
        wrong = next(iter(ledger.problems.values()), "its rounds are not those that were paid for")
        raise ValueError(f"the ledger in {place} does not support the payments: {wrong}.")
    paid_for = by_round(ledger)[[ledger.rounds.index(t) for t in entered]]
    _compare(results, paid_for, np.unique(ledger.rows["participant"]).tolist())
    return [f"Computed again from the ledger: these are the payments that its {len(entered)} rounds give."]


def _entered(ledger: Ledger, seal: str) -> list[int] | None:
    """The rounds entered when the ledger had this seal; None if one of them was entered again since."""
    seals = [line.seal for line in ledger.chain]
    if seal not in seals:
        raise ValueError(f"the ledger in {ledger.folder} never had the seal {seal[:12]}… that the payments name.")
    until = seals.index(seal) + 1
    then, since = ({line.round for line in part} for part in (ledger.chain[:until], ledger.chain[until:]))
    return None if then & since else sorted(then)


def _compare(results: Json, contributions: torch.Tensor, nodes: list[int]) -> None:
    names = ("budget", "floor", "clawback")
    # of one process among several: how many more were paid, and the sum of their weights, which the others told
    elsewhere = {"others": 0, "others_weight": 0.0, **results}
    if not all(isinstance(elsewhere[name], (int, float)) for name in (*names, "others", "others_weight")):
        raise ValueError(f"{', '.join(names)} must be numbers.")
    budget, floor, clawback = (float(results[name]) for name in names)
    more: Json = {"others": int(elsewhere["others"]), "total": lambda own: [own[0] + float(elsewhere["others_weight"])]}
    terms: Json = {"floor": floor, "clawback": clawback, "rule": str(results["payout"])}
    payments = pay(contributions, budget, **terms, **more).payment.tolist()
    rows, noted = {row[0]: row[1] for row in results["table"]["rows"]}, dict(enumerate(results["payments"]))
    for place, (node, payment) in enumerate(zip(nodes, payments, strict=True)):
        for paid in (noted.get(place), rows.get(node)):
            if not isinstance(paid, (int, float)) or abs(paid - payment) > TOLERANCE * budget + 1e-6:
                raise ValueError(f"it pays participant {node} {paid}; by the ledger it is {payment:.6g}.")
    if len(payments) != len(results["payments"]) or len(payments) != len(rows):
        raise ValueError(f"it pays {len(results['payments'])} participants; the ledger has {len(payments)}.")
