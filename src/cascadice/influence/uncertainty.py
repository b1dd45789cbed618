"""How sure a total over rounds is: its 95 % interval, from how much it varies between rounds.

    total ± t · s · √R        s: standard deviation of its R rounds, t: Student's, R − 1 degrees of freedom

Rounds differ by the batches drawn and by how far training has come. The second is no noise, so the interval is wide
rather than narrow. It says nothing of another test set, another seed or another network. A sample's interval is of the
same form, over the times it was used. How often intervals hold the mean over seeds is in docs/report.md.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray
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
    t = FEW[freedom - 1] if freedom <= len(FEW) else 1.96 + 2.37 / freedom + 2.82 / freedom**2  # Cornish and Fisher
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
    spread = updates.std(0, ddof=1) * scale if len(updates) > 1 else np.full(updates.shape[1], np.nan)
    return Bounds(total - spread, total + spread)


def bounds_of_sums(values: Float[Array, " rows"], group: Int[Array, " rows"]) -> Bounds:
    """The 95 % intervals of sums of rows that belong together, by how much these rows differ; NaN of a single row.

    Args:
        values: The influence of a sample in each of its uses, for example.
        group: Which sum each row belongs to, numbered from 0.

    Returns:
        Where each sum may lie.

    Example:
        >>> bounds_of_sums(np.array([-1.0, -1.2, 0.5, -1.1]), np.array([0, 0, 1, 0])).high.round(1)
        array([-2.6,  nan])
    """
    count, total = np.bincount(group), np.bincount(group, values)
    deviation = values - (total / count)[group]
    spread = np.sqrt(np.bincount(group, deviation**2) / np.maximum(count - 1, 1))
    half = spread * np.array([half_width(n) for n in range(count.max(initial=0) + 1)])[count]
    return Bounds(total - half, total + half)


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
