"""What `cascadice reward` says: who is paid what, why, and how sure that is."""

import argparse
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cascadice.applications.reward.ledger import Ledger
from cascadice.applications.reward.payouts import PAYOUT_RULES, Payout
from cascadice.influence.uncertainty import Bounds, overlapping
from cascadice.runs.recording import Recording


class Paid(NamedTuple):
    """What participants in the ledger are paid, how sure that is, and the weight of those whom other processes pay."""

    payout: Payout
    payments: Bounds
    credit: Bounds
    others_weight: float


def gap_in_words(untrained: float, trained: float, gap: float) -> str:
    """What training did as a whole, and by how much contributions miss it."""
    change = trained - untrained
    off = f"{abs(gap):.4f} off" + (f" ({abs(gap / change):.1%})" if change else "")
    return (
        f"Training took the mean loss of the final models from {untrained:.4f} to {trained:.4f}. Contributions sum to "
        f"{change + gap:+.4f}, which is {off}; more --points and smooth activations come nearer."
    )


def sentences(
    recording: Recording, ledger: Ledger, paid: Paid, injected: Mapping[int, str], args: argparse.Namespace
) -> list[str]:
    """Who is paid what, and why."""

    def names(nodes: list[int]) -> str:
        each = (numbers[k] for k in nodes)
        return ", ".join(f"participant {k}" + (f" ({injected[k]})" if k in injected else "") for k in each)

    network, payout = recording.network, paid.payout
    nodes, rounds = range(len(payout.payment)), ledger.rounds
    numbers = network.members or tuple(nodes)
    span = f"{len(rounds)} rounds, {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"
    best, least = int(payout.payment.argmax()), float(payout.payment.min())
    unpaid = [k for k in nodes if payout.credit[k] <= 0]
    idle = [k for k in unpaid if payout.earned[k] == 0 == payout.lost[k]]
    unclear = [k for k in nodes if k not in idle and paid.credit.low[k] <= 0 <= paid.credit.high[k]]
    return [
        f"{args.budget:g} is shared among {network.whole} participants, {PAYOUT_RULES[args.payout].description}."
        + (f" {len(nodes)} of them are paid by this process." if network.members else ""),
        f"Credit is how much a participant's updates lowered the loss, less the harm they did ({ledger.note['kind']}; "
        f"{span}).",
        f"Highest payment: {payout.payment[best]:.2f}, to {names([best])}{_overlapping(paid.payments, best)}.",
        *([f"Paid {least:.2f} each, because their credit is not positive: {names(unpaid)}."] if unpaid else []),
        *([f"Within noise (the 95 % interval of their credit includes 0): {names(unclear)}."] if unclear else []),
        *([f"Neither helped nor harmed: {names(idle)}."] if idle else []),
        *([f"Mean {quality}."] if (quality := recording.final_test_metrics()) else []),
        f"Ledger seal: {ledger.seal[:16]}… (in full in reward.json). A copy kept elsewhere reveals removed entries.",
    ]


def _overlapping(payments: Bounds, best: int) -> str:
    """With how many others the highest payment may change places; of one round, that this is not known."""
    if len(payments.low) < 2:
        return ""
    if np.isnan(payments.low[best]):
        return "; with one round there are no intervals, so the order of payments may be noise"
    if others := overlapping(payments, best):
        return f"; its 95 % interval overlaps with {f'those of {others} others' if others > 1 else 'that of another'}"
    return ", clearly more than anyone else"
