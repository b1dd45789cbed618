"""Intervals of sums over rounds: how noisy everybody and every round is, and how often the truth lies within."""

import numpy as np
import pytest
from oracles import noise_by_loops
from scipy import stats

from cascadice.influence.noise import noise
from cascadice.influence.uncertainty import bounds_of_sums, half_width

LOUD = np.array([1.0] * 36 + [3.0, 10.0, 30.0, 60.0])  # standard deviations of 40 rounds


def drawn_samples(seed, samples=300, batch=90):
    """Scores of samples that batches draw by chance: (values, group, rounds, mean of each sample)."""
    random = np.random.default_rng(seed)
    mean, spread = 5 * random.normal(size=samples), random.lognormal(sigma=0.7, size=samples)
    group = np.concatenate([random.permutation(samples)[:batch] for _ in LOUD])
    rounds = np.repeat(np.arange(len(LOUD)), batch)
    return mean[group] + spread[group] * LOUD[rounds] * random.normal(size=len(group)), group, rounds, mean


def test_noise_is_what_loops_find():
    values, group, rounds, _ = drawn_samples(0, samples=12, batch=5)
    found, wanted = noise(values, group, rounds), noise_by_loops(values, group, rounds)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_how_noisy_rounds_are_is_found():
    values, group, rounds, _ = drawn_samples(1)
    by_round = np.sqrt(noise(values, group, rounds).by_round)
    np.testing.assert_allclose(by_round[-4:] / np.median(by_round), LOUD[-4:], rtol=0.35)


def test_a_row_alone_and_no_rows_tell_nothing():
    alone = noise(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 1]), np.array([0, 0, 1]))
    assert np.isnan(alone.spread[0])
    assert np.isfinite(alone.spread[1])
    assert not len(noise(np.array([]), np.array([], dtype=int), np.array([], dtype=int)).spread)


@pytest.mark.parametrize("scored", [2, 3, 4, 5, 6, 7, 10, 30, 200])
def test_intervals_are_of_students_t_with_one_degree_of_freedom_less_than_rounds(scored):
    t = stats.t.ppf(0.975, scored - 1)
    assert half_width(scored) == pytest.approx(t * scored**0.5, rel=0.015)
    assert half_width(1000, scored) == pytest.approx(t * 1000**0.5, rel=0.015)


def test_intervals_of_samples_hold_their_mean_as_often_as_they_say():
    """Whichever rounds they are drawn in, and however often."""
    within, own = [], []
    for seed in range(5):
        values, group, rounds, mean = drawn_samples(seed)
        truth = mean * len(group) / len(mean)
        low, high = bounds_of_sums(values, group, rounds, np.zeros(len(mean), dtype=int))
        within.append((low <= truth) & (truth <= high))
        rows = [values[group == k] for k in range(len(mean))]
        halves = np.array([half_width(len(one)) * one.std(ddof=1) for one in rows])
        own.append(np.abs(np.bincount(group, values) - truth) <= halves)
    assert 0.94 < np.mean(within) < 0.985
    assert np.mean(own) < 0.85  # if all rounds were equally noisy, and samples used equally often


def test_a_sample_that_may_be_used_more_or_less_often_is_less_sure():
    values, group, rounds = (
        np.full(9, 2.0),
        np.array([0, 0, 0, 0, 1, 1, 2, 2, 2]),
        np.array([0, 1, 2, 3, 0, 1, 0, 1, 2]),
    )
    low, high = bounds_of_sums(values, group, rounds, np.array([0, 0, 1]))
    np.testing.assert_allclose((high - low)[:2] / 2, 1.96 * 2**0.5 * 2)  # 4 and 2 uses: variance 2
    assert low[2] == high[2] == 6  # nobody to compare with
