"""Payments sum to the budget, follow help, and cost harm; Shapley values are those of all orders of arrival."""

import doctest
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice.applications.reward import payouts
from cascadice.applications.reward.payouts import PAYOUT_RULES, Terms, credit_bounds, pay, payment_bounds, shapley
from cascadice.influence.uncertainty import bounds_of_totals

BY_ROUND = torch.tensor([[-4.0, -1.0, 0.0, 2.0], [-2.0, 3.0, 0.0, 1.0], [-1.0, -3.0, 0.0, -1.0]], dtype=torch.float64)


def test_the_net_contribution_is_paid_in_proportion():
    payout = pay(BY_ROUND, 800.0)
    assert_close(payout.credit, torch.tensor([7.0, 1.0, 0.0, -2.0], dtype=torch.float64))
    assert_close(payout.payment, torch.tensor([700.0, 100.0, 0.0, 0.0], dtype=torch.float64))
    assert_close(payout.earned, torch.tensor([7.0, 4.0, 0.0, 1.0], dtype=torch.float64))
    assert_close(payout.lost, torch.tensor([0.0, 3.0, 0.0, 3.0], dtype=torch.float64))


def test_everybody_gets_the_floor_first():
    payout = pay(BY_ROUND, 800.0, floor=50.0)
    assert_close(payout.payment, torch.tensor([575.0, 125.0, 50.0, 50.0], dtype=torch.float64))


def test_clawback_forgives_or_punishes():
    assert_close(pay(BY_ROUND, 120.0, clawback=0.0).payment, torch.tensor([70.0, 40.0, 0.0, 10.0], dtype=torch.float64))
    assert_close(pay(BY_ROUND, 120.0, clawback=2.0).payment, torch.tensor([120.0, 0.0, 0.0, 0.0], dtype=torch.float64))


def test_equal_parts_go_to_everyone_who_helped_on_balance():
    payout = pay(BY_ROUND, 800.0, rule="equal", floor=50.0)
    assert_close(payout.payment, torch.tensor([350.0, 350.0, 50.0, 50.0], dtype=torch.float64))


def noisy(rounds=200, seed=0):
    """Contributions with noise that all share in a round, and noise of their own; the last has none on balance."""
    draw = torch.Generator().manual_seed(seed)
    own = torch.randn(rounds, 4, generator=draw, dtype=torch.float64) * torch.tensor([0.2, 0.5, 0.3, 0.5]).double()
    return own + torch.randn(rounds, 1, generator=draw, dtype=torch.float64) + torch.tensor([-2.0, -1.0, -1.0, 0.0])


def test_intervals_of_credit_are_those_of_sums_over_rounds():
    low, high = credit_bounds(BY_ROUND, clawback=2.0)
    wanted = bounds_of_totals((-BY_ROUND.clamp(max=0) - 2 * BY_ROUND.clamp(min=0)).numpy())
    assert low == pytest.approx(wanted.low)
    assert high == pytest.approx(wanted.high)


@pytest.mark.parametrize("rule", sorted(PAYOUT_RULES))
def test_intervals_of_payments_hold_what_many_runs_are_paid(rule):
    """Nineteen in twenty intervals hold the payment for the mean contributions; those of the budget hold themselves."""
    terms = {"budget": 100.0, "floor": 5.0, "clawback": 1.0, "rule": rule}
    mean = torch.tensor([[-2.0, -1.0, -1.0, 0.0]]).double()
    wanted, held = pay(mean, **terms).payment.numpy(), []
    for seed in range(40):
        low, high = payment_bounds(noisy(seed=seed), Terms(**terms))
        held.append((low - 1e-9 <= wanted) & (wanted <= high + 1e-9))
        assert (low >= 5).all()
    assert sum(map(sum, held)) >= 0.88 * 160
    if rule == "proportional":
        assert sum(map(sum, held)) <= 0.99 * 160


def test_a_payment_is_sure_where_credit_is_and_unknown_after_one_round():
    steady = BY_ROUND[:1].expand(5, 4)
    low, high = payment_bounds(steady, Terms(800.0))
    assert low == pytest.approx(high)
    assert low == pytest.approx(pay(steady, 800.0).payment.numpy())
    assert all(torch.tensor(ends).isnan().all() for ends in payment_bounds(BY_ROUND[:1], Terms(800.0)))
    again = [payment_bounds(BY_ROUND, Terms(800.0)) for _ in range(2)]
    assert (again[0].low == again[1].low).all()


numbers = st.floats(-10, 10, allow_subnormal=False)
tables = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=4)
)


@settings(max_examples=30)
@given(tables, st.floats(0.01, 1e6), st.floats(0, 1), st.floats(0, 3), st.sampled_from(sorted(PAYOUT_RULES)))
def test_by_every_rule_payments_sum_to_the_budget_and_none_is_below_the_floor(rows, budget, part, clawback, rule):
    contributed = torch.tensor(rows, dtype=torch.float64)
    contributed[0, 0] -= 100  # somebody helps
    floor = part * budget / contributed.shape[1]
    payment = pay(contributed, budget, floor=floor, clawback=clawback, rule=rule).payment
    assert float(payment.sum()) == pytest.approx(budget)
    assert bool((payment >= floor).all())


@settings(max_examples=30)
@given(tables, st.integers(0, 2**32), st.sampled_from(sorted(PAYOUT_RULES)))
def test_the_order_of_participants_does_not_matter(rows, seed, rule):
    contributed = torch.tensor(rows, dtype=torch.float64)
    contributed[0, 0] -= 100
    order = torch.randperm(contributed.shape[1], generator=torch.Generator().manual_seed(seed))
    permuted = pay(contributed[:, order], 10.0, rule=rule).payment
    assert_close(permuted, pay(contributed, 10.0, rule=rule).payment[order])


@settings(max_examples=30)
@given(tables)
def test_net_credit_is_additive_over_rounds(rows):
    contributed = torch.tensor(rows, dtype=torch.float64)
    contributed[:, 0] -= 100
    each = sum(pay(row[None], 1.0).credit for row in contributed)
    assert_close(pay(contributed, 1.0).credit, each)


def test_where_nobody_helped_a_floor_pays_all_alike():
    harmful = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"nobody helped, so 100 of the budget .* with a floor of 25"):
        pay(harmful, 100.0)
    assert_close(pay(harmful, 100.0, floor=25.0).payment, torch.full((4,), 25.0, dtype=torch.float64))


@pytest.mark.parametrize("budget", [0.0, -5.0, float("inf"), float("nan")])
def test_a_budget_must_be_there(budget):
    with pytest.raises(ValueError, match="the budget must be positive and finite; found"):
        pay(BY_ROUND, budget)


def test_terms_must_be_possible():
    with pytest.raises(
        ValueError, match="the floor must lie between 0 and 25, the budget divided by 4 participants; found 26"
    ):
        pay(BY_ROUND, 100.0, floor=26.0)
    with pytest.raises(ValueError, match="the clawback must be at least 0 and finite; found -1"):
        pay(BY_ROUND, 100.0, clawback=-1.0)
    with pytest.raises(ValueError, match=r"unknown payout rule 'equl'\. Did you mean 'equal'\?"):
        pay(BY_ROUND, 100.0, rule="equl")


def test_contributions_must_be_there_and_be_numbers():
    with pytest.raises(ValueError, match="at least one round and participant; found 0 and 4"):
        pay(BY_ROUND[:0], 100.0)
    with pytest.raises(ValueError, match="must be finite; participant 1's in row 0 is not"):
        pay(torch.tensor([[1.0, torch.nan]]), 100.0)


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_shapley_values_are_means_over_all_orders_of_arrival(players):
    losses = torch.randn(2**players, generator=torch.Generator().manual_seed(players), dtype=torch.float64)
    slow = torch.zeros(players, dtype=torch.float64)
    orders = list(permutations(range(players)))
    for order in orders:
        present = 0
        for j in order:
            slow[j] += (losses[present | 1 << j] - losses[present]) / len(orders)
            present |= 1 << j
    assert_close(shapley(losses), slow, rtol=1e-12, atol=1e-13)
    assert_close(shapley(losses).sum(), losses[-1] - losses[0])


def test_shapley_needs_every_coalition():
    with pytest.raises(ValueError, match=r"a loss for each of 2\^n coalitions; found 6"):
        shapley(torch.zeros(6))


def test_examples_in_docstrings():
    examples = doctest.testmod(payouts)
    assert (examples.failed, examples.attempted) == (0, 5)
