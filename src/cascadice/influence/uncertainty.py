"""95 % intervals of totals over rounds, from their variation between rounds.

    total ± t · s · √R        s: standard deviation over the R rounds, t: Student's, R − 1 degrees of freedom

Rounds differ by their batches and by the progress of training. The latter is not noise, so the interval is rather too
wide than too narrow. It does not cover another test set or another network, nor the error of a quadrature: whole-run
shares may miss what training changed by more than this interval.

A sample's interval has the same form, over the n rounds that used it. Some rounds are noisier than others, which is
estimated from the scores of all samples of its participant. As the number of uses is random too, their variance among
these samples is added:

    total ± √(t² a² Σ_s b_s² + 1.96² Var(n) m²)        a: the sample's own spread, b_s: the noise of round s,
                                                       m: the sample's mean score per use

docs/report.md shows how often intervals contain the mean over seeds.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cascadice.influence.noise import noise

Array = np.ndarray
NORMAL = 1.96  # standard deviations from the mean of a normal distribution to the ends of its 95 % interval
MOST_DECIMALS = 12  # that are printed
FEW = (12.706, 4.303, 3.182, 2.776)  # Student's t at 97.5 %, of 1 to 4 degrees of freedom


class Bounds(NamedTuple):
    """The ends of 95 % intervals; NaN if there is only one round."""

    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


def half_width(rounds: int, scored: int | None = None) -> float:
    """Half the width of the 95 % interval of a total over `rounds`, in standard deviations of one round.

    Args:
        rounds: The number of rounds in the total.
        scored: The number of rounds behind the standard deviation; defaults to `rounds`.

    Returns:
        t · √rounds, or NaN if there are fewer than two rounds.

    Example:
        >>> round(half_width(100), 1)
        19.8
    """
    freedom = (rounds if scored is None else scored) - 1
    if freedom < 1:
        return float("nan")
    t = FEW[freedom - 1] if freedom <= len(FEW) else NORMAL + 2.37 / freedom + 2.82 / freedom**2  # Cornish and Fisher
    return float(t * np.sqrt(rounds))


def bounds_of_totals(updates: Float[Array, "rounds n"]) -> Bounds:
    """The 95 % interval of each participant's influence, summed over rounds.

    Args:
        updates: The influence of each participant's update in each round.

    Returns:
        The interval of each total.

    Example:
        >>> bounds_of_totals(np.array([[-1.0, 0.5], [-1.2, -0.5], [-1.1, 0.2]])).high.round(1)
        array([-2.6,  4. ])
    """
    total = updates.sum(0)
    half = half_width(len(updates)) * (updates.std(0, ddof=1) if len(updates) > 1 else np.ones_like(total))
    return Bounds(total - half, total + half)


def bounds_of_sums(
    values: Float[Array, " rows"], group: Int[Array, " rows"], rounds: Int[Array, " rows"], owner: Int[Array, " groups"]
) -> Bounds:
    """The 95 % interval of the sum of each group of rows, from how much its rows differ.

    Args:
        values: For example the influence of each sample in each round that used it.
        group: The group of each row, numbered from 0.
        rounds: The round of each row, numbered from 0.
        owner: The participant of each group; the noise of rounds and the variance of uses are estimated for each.

    Returns:
        The interval of each sum; NaN for sums of one row.

    Example:
        >>> values, group, rounds = np.array([-1.0, -1.2, 0.5, -1.1]), np.array([0, 0, 1, 0]), np.array([0, 1, 1, 2])
        >>> bounds_of_sums(values, group, rounds, np.array([0, 1])).high.round(1)
        array([-2.6,  nan])
    """
    total, half, row_owner = np.bincount(group, values), np.full(len(owner), np.nan), owner[group]
    for one in np.unique(row_owner):
        rows = np.flatnonzero(row_owner == one)
        own, index, count = np.unique(group[rows], return_inverse=True, return_counts=True)
        when = np.unique(rounds[rows], return_inverse=True)[1]
        fitted = noise(values[rows], index, when)
        quantile = np.array([half_width(n) / max(n, 1) ** 0.5 for n in range(count.max() + 1)])[count]
        drawn, uses = np.bincount(index, fitted.by_round[when]), count.var(ddof=1) if len(count) > 1 else 0.0
        half[own] = np.sqrt(quantile**2 * drawn * fitted.spread**2 + NORMAL**2 * uses * fitted.mean**2)
    return Bounds(total - half, total + half)


def overlapping(bounds: Bounds, place: int) -> int:
    """How many other intervals overlap with this one, so that their order is uncertain.

    Args:
        bounds: The intervals.
        place: The index of one of them.

    Returns:
        The number of other intervals that overlap with it.

    Example:
        >>> overlapping(Bounds(np.array([1.0, 2.5, 4.0]), np.array([3.0, 3.5, 5.0])), 0)
        1
    """
    overlaps = (bounds.low <= bounds.high[place]) & (bounds.high >= bounds.low[place])
    return int(overlaps.sum()) - 1


def signs(totals: Float[Array, " n"], bounds: Bounds) -> Int[Array, " n"]:
    """−1 if a total clearly helped, 1 if it clearly harmed, 0 if its interval includes 0.

    Args:
        totals: The totals.
        bounds: Their intervals; without one (NaN), the sign of the total itself counts.

    Returns:
        The sign of each total.

    Example:
        >>> signs(np.array([-3.3, 0.2]), Bounds(np.array([-3.8, -2.0]), np.array([-2.8, 2.4])))
        array([-1,  0])
    """
    noise = (bounds.low <= 0) & (bounds.high >= 0)
    return np.where(noise | ~np.isfinite(totals), 0, np.sign(totals)).astype(int)


def decimals(*values: Any) -> int:
    """How many decimals to print, so that the largest number has three digits; at least 4.

    Example:
        >>> decimals([-0.25, 0.1]), decimals(0.000123, float("nan"))
        (4, 6)
    """
    sizes = np.abs(np.concatenate([np.ravel(np.asarray(each, dtype=float)) for each in values]))
    largest = sizes[np.isfinite(sizes)].max(initial=0.0)
    return max(4, 2 - math.floor(math.log10(largest))) if largest > 0 else 4


def plus_minus(value: float, half: float | None, digits: int | None = None) -> str:
    """A number ± half of its 95 % interval, if it has one, with at least `digits` decimals.

    By default `half` has two digits. Where the interval excludes 0, both have enough decimals to show it.

    Example:
        >>> plus_minus(-0.1686, 0.0038), plus_minus(0.00214, 0.00206), plus_minus(0.5, None)
        ('-0.1686 ± 0.0038', '+0.00214 ± 0.00206', '+0.5')
    """
    if half is None or not math.isfinite(half):
        return f"{value + 0.0:+.3g}" if digits is None else f"{value + 0.0:+.{digits}f}"
    if digits is None and (half < 1e-6 or max(abs(value), half) < 1e-4 or half >= 1e6):
        return f"{value:+.3g} ± {half:.2g}"
    shown = max(0, 1 - math.floor(math.log10(half))) if digits is None else digits
    while abs(value) > half and shown < MOST_DECIMALS and f"{abs(value):.{shown}f}" == f"{half:.{shown}f}":
        shown += 1
    return f"{value + 0.0:+.{shown}f} ± {half:.{shown}f}"
