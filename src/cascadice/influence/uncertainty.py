"""How sure a total over rounds is: its 95 % interval, from how much it varies between rounds.

    total ± t · s · √R        s: standard deviation of its R rounds, t: Student's, R − 1 degrees of freedom

Rounds differ by the batches drawn and by how far training has come. The second is no noise, so the interval is wide
rather than narrow. It says nothing of another test set or another network.

A sample's interval is of the same form, over the n rounds it was used in, of which some are noisier than others, as the
scores of its participant's samples say. How often it is used depends on the batches drawn, too, which adds the variance
of n among these samples:

    total ± √(t² a² Σ_s b_s² + 1.96² Var(n) m²)        a: the sample's own spread, b_s: how noisy round s is,
                                                       m: the sample's mean score in a use

How often intervals hold the mean over seeds is in docs/report.md.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cascadice.influence.noise import noise

Array = np.ndarray
NORMAL = 1.96  # standard deviations from the mean of a normal distribution to the ends of its 95 % interval
FEW = (12.706, 4.303, 3.182, 2.776)  # Student's t at 97.5 %, of 1 to 4 degrees of freedom


class Bounds(NamedTuple):
    """The ends of 95 % intervals; NaN where there is only one round."""

    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


def half_width(rounds: int, scored: int | None = None) -> float:
    """How many standard deviations of a round the 95 % interval of a total over `rounds` extends to either side.

    Args:
        rounds: How many rounds the total is the sum of.
        scored: How many of them the standard deviation is of, if fewer.

    Returns:
        t · √rounds, or NaN if there are fewer than two rounds to compare.

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
    """The 95 % intervals of each participant's influence, summed over rounds.

    Args:
        updates: The influence of each participant's update in each round.

    Returns:
        Where each total may lie.

    Example:
        >>> bounds_of_totals(np.array([[-1.0, 0.5], [-1.2, -0.5], [-1.1, 0.2]])).high.round(1)
        array([-2.6,  4. ])
    """
    total, scale = updates.sum(0), half_width(len(updates))
    half = updates.std(0, ddof=1) * scale if len(updates) > 1 else np.full(updates.shape[1], np.nan)
    return Bounds(total - half, total + half)


def bounds_of_sums(
    values: Float[Array, " rows"], group: Int[Array, " rows"], rounds: Int[Array, " rows"], owner: Int[Array, " groups"]
) -> Bounds:
    """The 95 % intervals of sums of rows that belong together, by how much these rows differ; NaN of a single row.

    Args:
        values: The influence of a sample in each of its uses, for example.
        group: Which sum each row belongs to, numbered from 0.
        rounds: Which round each row is of, numbered from 0.
        owner: Whose each sum is; how noisy rounds are, and how often samples are used, is told by those of one owner.

    Returns:
        Where each sum may lie.

    Example:
        >>> values, group, rounds = np.array([-1.0, -1.2, 0.5, -1.1]), np.array([0, 0, 1, 0]), np.array([0, 1, 1, 2])
        >>> bounds_of_sums(values, group, rounds, np.array([0, 1])).high.round(1)
        array([-2.6,  nan])
    """
    total, half, whose = np.bincount(group, values), np.full(len(owner), np.nan), owner[group]
    for one in np.unique(whose):
        rows = np.flatnonzero(whose == one)
        own, which = np.unique(group[rows], return_inverse=True)
        half[own] = _half_widths(values[rows], which, np.unique(rounds[rows], return_inverse=True)[1])
    return Bounds(total - half, total + half)


def _half_widths(
    values: Float[Array, " rows"], group: Int[Array, " rows"], rounds: Int[Array, " rows"]
) -> Float[Array, " groups"]:
    """Half of the intervals of the sums of one owner."""
    count, fitted = np.bincount(group), noise(values, group, rounds)
    quantile = np.array([half_width(n) / max(n, 1) ** 0.5 for n in range(count.max() + 1)])[count]
    drawn, counts = np.bincount(group, fitted.by_round[rounds]), count.var(ddof=1) if len(count) > 1 else 0.0
    return np.asarray(np.sqrt(quantile**2 * drawn * fitted.spread**2 + NORMAL**2 * counts * fitted.mean**2))


def overlapping(bounds: Bounds, place: int) -> int:
    """How many other intervals overlap with the one at this place: these totals may change places.

    Example:
        >>> overlapping(Bounds(np.array([1.0, 2.5, 4.0]), np.array([3.0, 3.5, 5.0])), 0)
        1
    """
    meets = (bounds.low <= bounds.high[place]) & (bounds.high >= bounds.low[place])
    return int(meets.sum()) - 1


def signs(totals: Float[Array, " n"], bounds: Bounds) -> Int[Array, " n"]:
    """−1 where a total clearly helped, 1 where it clearly harmed, 0 where its interval includes 0.

    Without an interval (one round), the sign of the total itself.

    Example:
        >>> signs(np.array([-3.3, 0.2]), Bounds(np.array([-3.8, -2.0]), np.array([-2.8, 2.4])))
        array([-1,  0])
    """
    noise = (bounds.low <= 0) & (bounds.high >= 0)
    return np.where(noise | ~np.isfinite(totals), 0, np.sign(totals)).astype(int)


def decimals(*values: Any) -> int:
    """How many decimals show three digits of the largest number; at least 4.

    Example:
        >>> decimals([-0.25, 0.1]), decimals(0.000123, float("nan"))
        (4, 6)
    """
    sizes = np.abs(np.concatenate([np.ravel(np.asarray(each, dtype=float)) for each in values]))
    largest = sizes[np.isfinite(sizes)].max(initial=0.0)
    return max(4, 2 - math.floor(math.log10(largest))) if largest > 0 else 4
