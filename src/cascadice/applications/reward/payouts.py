"""From contributions to payments: share a budget among participants. Negative contributions helped."""

from collections.abc import Callable, Mapping, Sequence
from math import lgamma
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import seeds
from cascadice.influence.uncertainty import NORMAL, Bounds, bounds_of_totals, half_width
from cascadice.names import lookup

DRAWS = 1000  # random draws of everybody's credit, for the intervals of payments


class PayoutRule(NamedTuple):
    """Turns credit into non-negative weights; payments above the floor are proportional to them.

    `weights` works entry by entry, because a process knows only the credit of its own participants.
    """

    weights: Callable[[Float[Tensor, " n"]], Float[Tensor, " n"]]
    description: str


PAYOUT_RULES: Mapping[str, PayoutRule] = {
    "proportional": PayoutRule(lambda credit: credit.clamp(min=0), "in proportion to positive credit"),
    "equal": PayoutRule(lambda credit: (credit > 0).to(credit), "the same to everyone with positive credit"),
}


class Payout(NamedTuple):
    """What everyone is paid, and why.

    Attributes:
        payment: In the budget's unit; sums to the budget.
        credit: What counts for payment, in units of the loss: `earned` less the clawback on `lost`.
        earned, lost: How much each lowered, or raised, the loss, summed over the rounds in which it did.
    """

    payment: Float[Tensor, " n"]
    credit: Float[Tensor, " n"]
    earned: Float[Tensor, " n"]
    lost: Float[Tensor, " n"]


Total = Callable[[Sequence[float]], Sequence[float]]
"""Sums of weights in this process -> sums over all processes."""


def itself(sums: Sequence[float]) -> Sequence[float]:
    """The total if this process has all participants."""
    return sums


class Terms(NamedTuple):
    """The terms on which a budget is shared.

    Attributes:
        floor: The least that everyone is paid.
        clawback: How much harm costs, per unit of help: 1 pays by the net contribution, which is additive over rounds;
            0 forgives all harm; more than 1 punishes it.
        rule: A name in `PAYOUT_RULES`.
        others: How many participants of other processes share the budget.
        total: Adds up sums of weights over processes.
    """

    budget: float
    floor: float = 0.0
    clawback: float = 1.0
    rule: str = "proportional"
    others: int = 0
    total: Total = itself

    def weigh(self, credit: Float[Tensor, "*draws n"]) -> tuple[float, Tensor, Tensor]:
        """The budget above the floors, everyone's weight by this credit, and the sum of all weights."""
        weights, people = PAYOUT_RULES[self.rule].weights(credit), credit.shape[-1] + self.others
        everybody = torch.tensor(self.total(weights.sum(-1).reshape(-1).tolist()), dtype=torch.float64)
        return max(self.budget - people * self.floor, 0.0), weights, everybody.view(*credit.shape[:-1], 1)


def pay(
    contributions: Float[Tensor, "rounds n"], budget: float, *, floor: float = 0.0, clawback: float = 1.0,
    rule: str = "proportional", others: int = 0, total: Total = itself,
) -> Payout:  # fmt: skip
    """Share a budget: the floor for everyone, the rest by a payout rule.

        credit_j = Σ_t max(−c[t, j], 0) − clawback · Σ_t max(c[t, j], 0)
        payment_j = floor + (budget − n · floor) · w_j / Σ_i w_i,      w = rule(credit)

    Harm reduces what was earned, never the floor.

    Args:
        contributions: The influence of everyone in each round; negative helped.
        budget: What is shared.
        floor: This and the following arguments are explained at `Terms`.

    Returns:
        What everyone is paid, and why.

    Raises:
        ValueError: If nobody helped, contributions are not finite, or the terms cannot be met.

    Example:
        >>> pay(torch.tensor([[-3.0, -1.0, 2.0]]), 100.0).payment
        tensor([75., 25.,  0.], dtype=torch.float64)
    """
    nodes, values = contributions.shape[1], contributions.double().cpu()
    if not values.numel():
        raise ValueError(
            f"contributions must cover at least one round and participant; found {len(values)} and {nodes}."
        )
    if len(wrong := (~values.isfinite()).nonzero()):
        t, node = wrong[0].tolist()
        raise ValueError(f"contributions must be finite; participant {node}'s in row {t} is not. Leave that row out.")
    people = nodes + others
    check_terms(people, budget, floor, clawback, rule)
    earned, lost = values.clamp(max=0).sum(0).neg() + 0.0, values.clamp(min=0).sum(0)
    credit = earned - clawback * lost
    rest, weights, everybody = Terms(budget, floor, clawback, rule, others, total).weigh(credit)
    if rest > 0 and not everybody:
        remedy = f"Pay everyone the same with a floor of {budget / people:g}, or lower the clawback."
        raise ValueError(f"nobody helped, so {rest:g} of the budget cannot be paid for help. {remedy}")
    above = rest * weights / everybody if rest > 0 else torch.zeros_like(weights)
    return Payout(floor + above, credit, earned, lost)


def credit_bounds(contributions: Float[Tensor, "rounds n"], clawback: float = 1.0) -> Bounds:
    """The 95 % intervals of everyone's credit, from how much it varies between rounds; NaN with one round.

    Args:
        contributions: The influence of everyone in each round; negative helped.
        clawback: How much harm costs, per unit of help.

    Returns:
        The ends of the interval of each credit.

    Example:
        >>> credit_bounds(torch.tensor([[-1.0, 0.5], [-1.2, -0.5], [-1.1, 0.2]])).low.round(1)
        array([ 2.6, -4. ])
    """
    return bounds_of_totals(_credit_by_round(contributions, clawback).numpy())


def payment_bounds(contributions: Float[Tensor, "rounds n"], terms: Terms) -> Bounds:
    """The 95 % intervals of payments, from how much everyone's credit varies between rounds; NaN with one round.

    They do not include by how much whole-run shares miss what training changed.

        credit* = credit + t / 1.96 · √(R / (R − 1)) · Σ_t ε_t (credit_t − credit / R),      ε_t ~ N(0, 1)

    A higher payment leaves less for the others, so the credits of all are drawn together, 1,000 times, each as widely
    as its own interval (`credit_bounds`), and every draw is paid out. The interval holds 95 % of these payments. The
    draws are seeded. Cost: 1,000 × R × n multiplications.

    Args:
        contributions: The influence of everyone in each round; negative helped.
        terms: The terms on which the budget is shared.

    Returns:
        The ends of the interval of each payment.

    Example:
        >>> low, high = payment_bounds(torch.tensor([[-3.0, -1.0], [-3.1, -0.8], [-2.9, -1.1]]), Terms(100.0))
        >>> bool(low[0] < 75.6 < high[0] < 85)
        True
    """
    by_round = _credit_by_round(contributions, terms.clawback)
    rounds, nodes = by_round.shape
    if rounds < 2:
        return Bounds(np.full(nodes, np.nan), np.full(nodes, np.nan))
    noise = torch.randn(DRAWS, rounds, generator=seeds.generator(0, "payments"), dtype=torch.float64)
    scale = half_width(rounds) / NORMAL / (rounds - 1) ** 0.5
    drawn = by_round.sum(0) + scale * noise @ (by_round - by_round.mean(0))
    rest, weights, everybody = terms.weigh(drawn)
    payments = terms.floor + rest * torch.where(everybody > 0, weights / everybody, 0.0)
    low, high = payments.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), 0).numpy()
    return Bounds(low, high)


def _credit_by_round(contributions: Float[Tensor, "rounds n"], clawback: float) -> Float[Tensor, "rounds n"]:
    values = contributions.double().cpu()
    return -values.clamp(max=0) - clawback * values.clamp(min=0)


def check_terms(nodes: int, budget: float, floor: float, clawback: float, rule: str = "proportional") -> None:
    """Raise ValueError unless `nodes` participants can be paid on these terms."""
    lookup(PAYOUT_RULES, rule, "payout rule")
    if not 0 < budget < float("inf"):
        raise ValueError(f"the budget must be positive and finite; found {budget:g}.")
    if not 0 <= floor * nodes <= budget * (1 + 1e-12):
        most = f"{budget / nodes:g}, the budget divided by {nodes} participants"
        raise ValueError(f"the floor must lie between 0 and {most}; found {floor:g}.")
    if not 0 <= clawback < float("inf"):
        raise ValueError(f"the clawback must be at least 0 and finite; found {clawback:g}.")


def shapley(losses: Float[Tensor, " coalitions"]) -> Float[Tensor, " n"]:
    """Exact Shapley values from the loss that every coalition reaches. Negative helped.

        φ_j = Σ_{S ∌ j} |S|! (n − |S| − 1)! / n! · (loss(S ∪ j) − loss(S))        Σ_j φ_j = loss(all) − loss(nobody)

    Cost: n passes over 2^n numbers; measuring the losses takes 2^n trainings.

    Args:
        losses: One for each of the 2^n coalitions; participant j belongs to number c if bit j of c is set.

    Returns:
        The value of each participant.

    Example:
        >>> shapley(torch.tensor([3.0, 2.0, 2.0, 1.0])).round(decimals=6)
        tensor([-1., -1.], dtype=torch.float64)
    """
    players = len(losses).bit_length() - 1
    if len(losses) != 2**players or players < 1:
        raise ValueError(f"there must be a loss for each of 2^n coalitions; found {len(losses)}.")
    coalitions, values = torch.arange(len(losses)), losses.double().cpu()
    sizes = torch.stack([coalitions >> j & 1 for j in range(players)]).sum(0).double()
    # |S|! (n − |S| − 1)! / n!, by logarithms: factorials overflow
    log_chance = torch.lgamma(sizes + 1) + torch.lgamma(players - sizes) - lgamma(players + 1)
    shares = []
    for j in range(players):
        without = coalitions[coalitions >> j & 1 == 0]
        shares.append((log_chance[without].exp() * (values[without | 1 << j] - values[without])).sum())
    return torch.stack(shares)
