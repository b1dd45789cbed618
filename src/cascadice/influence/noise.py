"""A noise model of scores: the spread of a score is a factor of its sample times a factor of its round.

    v[i, t] = m_i + a_i b_t ε          ε: mean 0, variance 1; b_t² is 1 on average over rows

The last rounds are often ten times as noisy as others, because gossip has not yet averaged their updates. One large
score in such a round says little about its sample. But all samples together show how noisy a round is, so b_t is fitted
to all scores and a_i to those of i alone, alternately until both converge:

    m_i  = Σ_t v / b_t²  /  Σ_t 1 / b_t²
    a_i² = Σ_t (v − m_i)² / b_t²  /  (n_i − 1)
    b_t² = (PRIOR · median b² + Σ_i (v − m_i)² / a_i²)  /  (PRIOR + Σ_i (1 − h))      h = 1 / b_t² / Σ_s 1 / b_s²

These are the equations of restricted maximum likelihood for normal ε, with a prior for rounds that have few rows. 1 − h
is the fraction of a row's variance that remains after m_i is fitted; without it, noisy rounds seem noisier at each
step. The prior makes noisy rounds seem less noisy, so at the end all a_i² are scaled up until the sum of all squared
residuals has its expected value.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray
PRIOR = 10  # the weight of the prior, in rows that are as noisy as those of the median round
STEPS = 100
TOLERANCE = 1e-6  # the fit ends when no b² changes by more, relatively
LEAST = 1e-8  # the smallest b², for rounds in which nobody has any influence


class Noise(NamedTuple):
    """The fitted noise model.

    Attributes:
        mean: m_i of each group.
        spread: a_i of each group; NaN for groups of one row.
        by_round: b_t² of each round.
    """

    mean: Float[Array, " groups"]
    spread: Float[Array, " groups"]
    by_round: Float[Array, " rounds"]


def noise(values: Float[Array, " rows"], group: Int[Array, " rows"], rounds: Int[Array, " rows"]) -> Noise:
    """Fit the mean and the spread of each group, and how noisy each round is.

    Cost: a few dozen passes over the rows.

    Args:
        values: Scores, for example those of each sample in each round that used it.
        group: The participant or sample of each score, numbered from 0.
        rounds: The round of each score, numbered from 0.

    Returns:
        The means and spreads of the groups, and the variances of the rounds.

    Example:
        >>> fit = noise(np.array([1.0, 3.0, 5.0, 2.0, 2.0]), np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 1]))
        >>> fit.spread.round(1), bool(fit.by_round[2] > fit.by_round[1])
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
        relative = np.bincount(rounds, known * squares / np.where(known, spread[group], 1.0))
        free = np.bincount(rounds, known * (1 - weight / weights[group]))
        before, level = variance, relative.sum() / max((variance * free).sum(), LEAST)
        variance = (PRIOR * np.median(before[rows > 0]) + relative) / (PRIOR + free)
        variance = np.maximum(variance / np.average(variance, weights=rows), LEAST)
        if np.all(np.abs(variance - before) <= TOLERANCE * before):
            break
    return Noise(mean, np.sqrt(spread * level), variance)
