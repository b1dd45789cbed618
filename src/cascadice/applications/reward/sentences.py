"""What `cascadice reward` says: who is paid what, why, and how sure that is."""

import re
from collections.abc import Sequence

import numpy as np

from cascadice.applications.plain import Json
from cascadice.applications.reward.payouts import PAYOUT_RULES
from cascadice.applications.writer import agreed
from cascadice.engine.parts import numbered
from cascadice.influence.uncertainty import Bounds, overlapping
from cascadice.influence.whole_run_shares import POINTS
from cascadice.runs.words import missed

TERMS = ("run", "title", "budget", "floor", "clawback", "payout", "note")  # the same in all processes
GAP = ("untrained", "trained", "gap", "points")
NEGLIGIBLE = 0.01  # gaps below this part of the change need no advice


def everybody(parts: Sequence[Json]) -> Json:
    """The payments of all processes, from what each of them wrote about its own participants."""
    if any(part.get("rounds") != parts[0].get("rounds") for part in parts):
        raise ValueError("the ledgers of these processes hold different rounds. Start a new ledger with --ledger.")
    agreed(parts, *TERMS)
    rows = sorted((row for part in parts for row in part["table"]["rows"]), key=lambda row: -row[1])
    names = ("members", "payments", "credit", "earned", "lost")
    whole = {
        **parts[0],
        "table": {**parts[0]["table"], "rows": rows},
        **{name: [value for part in parts for value in part[name]] for name in names},
        "intervals": {
            name: [ends for part in parts for ends in part["intervals"][name]] for name in parts[0]["intervals"]
        },
        "seal": [part["seal"] for part in parts],
    }
    whole["others"] = len(parts[0]["members"]) + parts[0]["others"] - len(whole["members"])
    if all("contributions" in part for part in parts):
        by_round = zip(*(part["contributions"] for part in parts), strict=True)
        whole["contributions"] = [[value for own in each for value in own] for each in by_round]
    return {**whole, "findings": sentences(whole)}


def length(results: Json) -> int | None:
    """How many rounds the run had whose final models payments are for; None if they are for effects on rounds."""
    last = re.fullmatch(r"whole-run-shares, .*to the end of round (\d+)", results["note"]["kind"])
    return None if last is None else int(last[1]) + 1


def gap_in_words(untrained: float, trained: float, gap: float, points: int = POINTS) -> str:
    """What training did as a whole, and by how much contributions miss it."""
    change = trained - untrained
    off = f"{abs(gap):.4f} off" + (f" ({abs(gap / change):.1%})" if change else "")
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


def check_gap(untrained: float, trained: float, gap: float, points: int, begun: bool) -> None:
    """Refuse contributions that miss what training did by more than all of it, or have the opposite sign.

    Args:
        begun: Whether they are in a ledger already, which takes no others.
    """
    change = trained - untrained
    if abs(gap) <= abs(change):
        return
    raise ValueError(
        f"contributions must sum to about what training did to the loss, {change:+.4f}, to pay by them; with "
        f"{points} point{'s' * (points > 1)} they sum to {change + gap:+.4f}. Ask for more: --points {2 * points}"
        + (" --ledger DIR." if begun else ".")
    )


def sentences(results: Json) -> list[str]:
    """Who is paid what, and why: what `reward.json` says in words; `seal` is a list of those of several processes."""

    def names(nodes: list[int]) -> str:
        each = (numbers[k] for k in nodes)
        return ", ".join(f"participant {k}" + (f" ({injected[k]})" if k in injected else "") for k in each)

    payment, credit, earned, lost = (np.array(results[name]) for name in ("payments", "credit", "earned", "lost"))
    of_payments, of_credit = (_bounds(results["intervals"][name]) for name in ("payments", "credit"))
    nodes, rounds, others = range(len(payment)), results["rounds"], results.get("others", 0)
    numbers, among = results.get("members") or tuple(nodes), " among them" if others else ""
    injected = {row[0]: row[-1] for row in results["table"]["rows"] if row[-1]}
    span = f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    best, least = int(payment.argmax()), float(payment.min())
    unpaid = [k for k in nodes if credit[k] <= 0]
    idle = [k for k in unpaid if earned[k] == 0 == lost[k]]
    unclear = [k for k in nodes if k not in idle and of_credit.low[k] <= 0 <= of_credit.high[k]]
    return [
        f"{results['budget']:g} is shared among {len(nodes) + others} participants, "
        f"{PAYOUT_RULES[results['payout']].description}." + (f" This is about {numbered(numbers)}." if others else ""),
        f"Credit is how much a participant's updates lowered the loss, less the harm they did: credit is "
        f"positive where influence, the change of the loss, is negative "
        f"({results['note']['kind']}; {span}).",
        *([gap_in_words(**{name: results[name] for name in GAP if name in results})] if "gap" in results else []),
        f"Highest payment{among}: {payment[best]:.2f}, to {names([best])}{_overlapping(of_payments, best)}.",
        *([f"Paid {least:.2f}{_because(unpaid)} not positive: {names(unpaid)}."] if unpaid else []),
        *([f"Within noise (the 95 % interval of their credit includes 0): {names(unclear)}."] if unclear else []),
        *([f"Neither helped nor harmed: {names(idle)}."] if idle else []),
        *([f"Mean {results['tested']}."] if results["tested"] else []),
        _sealed(results["seal"]),
    ]


def _because(unpaid: list[int]) -> str:
    return " each, because their credit is" if len(unpaid) > 1 else ", because its credit is"


def _sealed(seal: str | Sequence[str]) -> str:
    kept = "A copy kept elsewhere reveals removed entries."
    if isinstance(seal, str):
        return f"Ledger seal: {seal[:16]}… (in full in reward.json). {kept}"
    return f"Each of the {len(seal)} processes has a ledger of its own, with a seal in its reward.json. {kept}"


def _bounds(ends: Sequence[Sequence[float | None]]) -> Bounds:
    return Bounds(*np.array(ends, dtype=float).T)


def _overlapping(payments: Bounds, best: int) -> str:
    """With how many others the highest payment may change places; of one round, that this is not known."""
    if len(payments.low) < 2:
        return ""
    if np.isnan(payments.low[best]):
        return "; with one round there are no intervals, so the order of payments may be noise"
    if others := overlapping(payments, best):
        return f"; its 95 % interval overlaps with {f'those of {others} others' if others > 1 else 'that of another'}"
    return ", clearly more than anyone else"
