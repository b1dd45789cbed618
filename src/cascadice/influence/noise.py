"""How noisy samples are, and how noisy rounds are: the spread of a score is the product of both.

    v[i, t] = m_i + a_i b_t ε          ε: mean 0, variance 1; b_t² is 1 on average over rows

The last rounds are often ten times as noisy as others, because gossip has not averaged what they did. One large score
there says little of how noisy a sample is; but how noisy a round is shows in the scores of all samples. So b_t is
fitted to all of them and a_i to those of i alone, in turn, until they agree:

    m_i  = Σ_t v / b_t²  /  Σ_t 1 / b_t²
    a_i² = Σ_t (v − m_i)² / b_t²  /  (n_i − 1)
    b_t² = (PRIOR · median b² + Σ_i (v − m_i)² / a_i²)  /  (PRIOR + Σ_i (1 − h))      h = 1 / b_t² / Σ_s 1 / b_s²

These are the equations of restricted maximum likelihood for normal ε, with a prior for rounds of few rows. 1 − h is
what fitting m_i leaves of a row's variance; without it a noisy round would seem noisier at every step. The prior makes
noisy rounds seem less noisy, so at the end all a_i² are raised, to the level at which all squares together are what is
expected of them.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray
PRIOR = 10  # a round's own rows count as much as so many rows that are as noisy as in the median round
STEPS = 100
CLOSE = 1e-6  # relative change of every b² at which the fit ends
LEAST = 1e-8  # the smallest b²: where nobody has any influence


class Noise(NamedTuple):
    """What `noise` fits.

    Attributes:
        mean: m_i of each group.
        spread: a_i of each group; NaN of a single row.
        by_round: b_t² of each round.
    """

    mean: Float[Array, " groups"]
    spread: Float[Array, " groups"]
    by_round: Float[Array, " rounds"]


def noise(values: Float[Array, " rows"], group: Int[Array, " rows"], rounds: Int[Array, " rows"]) -> Noise:
    """Fit the mean and the spread of each group, and how noisy each round is.

    Cost: a few dozen passes over the rows.

    Args:
        values: Scores; of a sample in each of its uses, for example.
        group: Which participant or sample each score is of, numbered from 0.
        rounds: Which round it is of, numbered from 0.

    Example:
        >>> found = noise(np.array([1.0, 3.0, 5.0, 2.0, 2.0]), np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 1]))
        >>> found.spread.round(1), bool(found.by_round[2] > found.by_round[1])
        (array([2., 0.]), True)
    """
    count, rows = np.bincount(group), np.bincount(rounds)
    mean, spread, variance, level = np.zeros(len(count)), np.zeros(len(count)), np.ones(len(rows)), 1.0
    for _ in range(STEPS if len(values) else 0):
        weight = 1 / variance[rounds]
        weights = np.bincount(group, weight)
        mean = np.bincount(group, weight * values) / np.where(count, weights, np.nan)
        squares = (values - mean[group]) ** 2
        spread = np.bincount(group, weight * squares) / np.where(count > 1, count - 1, np.nan)
        known = spread[group] > 0
        found = np.bincount(rounds, known * squares / np.where(known, spread[group], 1.0))
        free = np.bincount(rounds, known * (1 - weight / weights[group]))
        before, level = variance, found.sum() / max((variance * free).sum(), LEAST)
        variance = (PRIOR * np.median(before[rows > 0]) + found) / (PRIOR + free)
        variance = np.maximum(variance / np.average(variance, weights=rows), LEAST)
        if np.all(np.abs(variance - before) <= CLOSE * before):
            break
    return Noise(mean, np.sqrt(spread * level), variance)
