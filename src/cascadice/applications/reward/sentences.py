"""The sentences of `cascadice reward`: who is paid what, why, and how certain that is."""

from collections.abc import Iterator

import numpy as np

from cascadice.applications.plain import Json
from cascadice.applications.reward.payouts import PAYOUT_RULES
from cascadice.engine.parts import numbered
from cascadice.influence.uncertainty import Bounds, overlapping
from cascadice.influence.whole_run_shares import POINTS
from cascadice.runs.words import missed

GAP = ("untrained", "trained", "gap", "points")
NEGLIGIBLE = 0.01  # gaps below this fraction of the change need no advice


def gap_in_words(untrained: float, trained: float, gap: float, points: int = POINTS) -> str:
    """What training did to the loss, and by how much contributions miss it."""
    change = trained - untrained
    off = f"{abs(gap):.4f} off" + (f" ({100 * abs(gap / change):.1f} %)" if change else "")
    sums = (
        f"Training took the mean loss of the final models from {untrained:.4f} to {trained:.4f}. Contributions sum to "
        f"{change + gap:+.4f}, which is {off}. "
    )
    if missed(change + gap, change):
        more = f"--points {2 * points} --ledger DIR --overwrite"
        return f"{sums}That is a large part of it: payments may change with more points, in a new ledger: {more}."
    if abs(gap) < NEGLIGIBLE * abs(change):
        return sums.rstrip()
    return f"{sums}With smooth activations, more --points close that gap."


def sentences(results: Json) -> Iterator[str]:
    """Who is paid what, and why, from `reward.json`; of several processes, `seal` is a list."""

    def names(nodes: list[int]) -> str:
        each = (numbers[k] for k in nodes)
        return ", ".join(f"participant {k}" + (f" ({injected[k]})" if k in injected else "") for k in each)

    payment, credit, earned, lost = (np.array(results[name]) for name in ("payments", "credit", "earned", "lost"))
    ends = results["intervals"]
    of_payments, of_credit = (Bounds(*np.array(ends[name], dtype=float).T) for name in ("payments", "credit"))
    nodes, rounds, others, seal = range(len(payment)), results["rounds"], results.get("others", 0), results["seal"]
    numbers = results.get("members") or tuple(nodes)
    injected = {row[0]: row[-1] for row in results["table"]["rows"] if row[-1]}
    about = f" This is about {numbered(numbers)}." if others else ""
    rule = PAYOUT_RULES[results["payout"]].description
    yield f"{results['budget']:g} is shared among {len(nodes) + others} participants, {rule}.{about}"
    span = f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    yield (
        "Credit is how much a participant's updates lowered the loss, less the harm they did: credit is positive where "
        f"influence, the change of the loss, is negative ({results['note']['kind']}; {span})."
    )
    if "gap" in results:
        yield gap_in_words(**{name: results[name] for name in GAP if name in results})
    best, unpaid = int(payment.argmax()), [k for k in nodes if credit[k] <= 0]
    highest = f"Highest payment{' among them' * bool(others)}: {payment[best]:.2f}, to {names([best])}"
    yield f"{highest}{_overlapping(of_payments, best)}."
    if unpaid:
        because = " each, because their credit is" if len(unpaid) > 1 else ", because its credit is"
        yield f"Paid {payment.min():.2f}{because} not positive: {names(unpaid)}."
    idle = [k for k in unpaid if earned[k] == 0 == lost[k]]
    if unclear := [k for k in nodes if k not in idle and of_credit.low[k] <= 0 <= of_credit.high[k]]:
        yield f"Within noise (the 95 % interval of their credit includes 0): {names(unclear)}."
    if idle:
        yield f"Neither helped nor harmed: {names(idle)}."
    if results["tested"]:
        yield f"Mean {results['tested']}."
    sealed = f"Ledger seal: {seal[:16]}… (in full in reward.json)."
    if not isinstance(seal, str):
        sealed = f"Each of the {len(seal)} processes has a ledger of its own, with a seal in its reward.json."
    yield f"{sealed} A copy kept elsewhere reveals removed entries."


def _overlapping(payments: Bounds, best: int) -> str:
    """With how many others the highest payment may change places; with one round, that this is unknown."""
    if len(payments.low) < 2:
        return ""
    if np.isnan(payments.low[best]):
        return "; with one round there are no intervals, so the order of payments may be noise"
    if others := overlapping(payments, best):
        return f"; its 95 % interval overlaps with {f'those of {others} others' if others > 1 else 'that of another'}"
    return ", clearly more than anyone else"
