"""From contributions to payments: a budget in, a payment for everybody out. Negative contributions helped."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Payout(NamedTuple):
    """What everybody is paid, and why: `earned` in rounds in which it helped, `lost` in those in which it harmed."""

    payment: Float[Tensor, " n"]
    credit: Float[Tensor, " n"]
    earned: Float[Tensor, " n"]
    lost: Float[Tensor, " n"]


def pay(
    contributions: Float[Tensor, "rounds n"], budget: float, *, floor: float = 0.0, clawback: float = 1.0
) -> Payout:
    """Share out the budget: the floor to everybody, the rest in proportion to the credit of those who have any.

        credit_j = Σ_t max(−c[t, j], 0) − clawback · Σ_t max(c[t, j], 0)
        payment_j = floor + (budget − n · floor) · max(credit_j, 0) / Σ_i max(credit_i, 0)

    With clawback 1 credit is the net contribution, which is additive; 0 forgives all harm; more than 1 punishes it.
    Nobody is paid less than the floor: harm costs what was earned, not what was never given. All sum to the budget.
    """
    _check_contributions(contributions)
    check_terms(contributions.shape[1], budget, floor, clawback)
    values = contributions.double().cpu()
    nodes = values.shape[1]
    earned, lost = values.clamp(max=0).sum(0).neg() + 0.0, values.clamp(min=0).sum(0)
    credit = earned - clawback * lost
    due, rest = credit.clamp(min=0), max(budget - nodes * floor, 0.0)
    if rest > 0 and not bool(due.any()):
        raise ValueError(
            f"nobody helped, so {rest:g} of the budget cannot be shared out by help. "
            f"Pay everybody alike with a floor of {budget / nodes:g}, or lower the clawback."
        )
    return Payout(floor + (rest * due / due.sum() if rest > 0 else torch.zeros_like(due)), credit, earned, lost)


def _check_contributions(contributions: Tensor) -> None:
    rounds, nodes = contributions.shape
    if not rounds or not nodes:
        raise ValueError(f"there must be at least one round and one participant to pay for; found {rounds}, {nodes}.")
    if not bool(contributions.isfinite().all()):
        t, node = (~contributions.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"contributions must be finite; that of participant {node} in row {t} is not. Leave it out.")


def check_terms(nodes: int, budget: float, floor: float, clawback: float) -> None:
    """Whether so many participants can be paid on these terms."""
    if not 0 < budget < float("inf"):
        raise ValueError(f"the budget must be positive and finite; found {budget:g}.")
    if not 0 <= floor * nodes <= budget * (1 + 1e-12):
        raise ValueError(
            f"the floor must lie between 0 and {budget / nodes:g}, the budget over {nodes} participants; "
            f"found {floor:g}."
        )
    if not 0 <= clawback < float("inf"):
        raise ValueError(f"the clawback must be at least 0 and finite; found {clawback:g}.")


def shapley(losses: Float[Tensor, " coalitions"]) -> Float[Tensor, " n"]:
    """Exact Shapley values from the loss that every coalition reaches; bit j of a coalition's number says j is in it.

        φ_j = Σ_{S ∌ j} |S|! (n − |S| − 1)! / n! · (loss(S ∪ j) − loss(S))        Σ_j φ_j = loss(all) − loss(nobody)

    Negative helped. Cost: n passes over 2^n numbers; to find those means to train 2^n times.
    """
    players = len(losses).bit_length() - 1
    if len(losses) != 2**players or players < 1:
        raise ValueError(f"there must be a loss for each of 2^n coalitions; found {len(losses)}.")
    numbers, values = torch.arange(len(losses)), losses.double().cpu()
    sizes = torch.stack([numbers >> j & 1 for j in range(players)]).sum(0).double()
    # |S|! (n − |S| − 1)! / n!, by logarithms: factorials overflow
    log_chance = torch.lgamma(sizes + 1) + torch.lgamma(players - sizes) - torch.lgamma(torch.tensor(players + 1.0))
    found = []
    for j in range(players):
        without = numbers[numbers >> j & 1 == 0]
        found.append((log_chance[without].exp() * (values[without | 1 << j] - values[without])).sum())
    return torch.stack(found)
