"""Gauss–Legendre quadrature on [0, 1], for integrals over the scale α of updates."""

from collections.abc import Callable
from numbers import Integral
from typing import TypeVar

import numpy as np
from torch import Tensor

from cascadice.influence.cascade import Cascade

MOST_POINTS = 100  # each costs a pass over the rounds, and training is not smooth enough for more to help
Estimate = TypeVar("Estimate", Tensor, Cascade)


def weighted_points(points: int) -> list[tuple[float, float]]:
    """Gauss–Legendre points on [0, 1] with their weights, exact for polynomials up to degree 2 · points − 1.

    Args:
        points: How many, from 1 to 100.

    Returns:
        Pairs of point and weight; the weights sum to 1.

    Raises:
        ValueError: If there are too few or too many points.
        TypeError: If their number is not whole.

    Example:
        >>> weighted_points(1)
        [(0.5, 1.0)]
    """
    check_points(points)
    return [((1 + float(x)) / 2, float(w) / 2) for x, w in zip(*np.polynomial.legendre.leggauss(points), strict=True)]


def check_points(points: int) -> None:
    """Raise unless this is a possible number of quadrature points."""
    if isinstance(points, bool) or not isinstance(points, Integral):
        raise TypeError(f"points must be a whole number, from 1 to {MOST_POINTS}; found {points!r}.")
    if points < 1:
        raise ValueError(f"a quadrature needs at least 1 point; found {points}. Use points=2.")
    if points > MOST_POINTS:
        raise ValueError(f"a quadrature may have at most {MOST_POINTS} points; found {points}. Use fewer, such as 8.")


def more_points(points: int) -> int:
    """How many points to try next if so many were too few."""
    return min(2 * points, MOST_POINTS)


def with_error(estimate: Callable[[int], Estimate], points: int = 2) -> tuple[Estimate, Tensor]:
    """An integral with `points` + 1 points, and a conservative estimate of its error: its change from `points` points.

    In smooth networks the true error is far smaller. Derivatives do not see kinks (ReLU), which from two hops on leave
    an error that no number of points reveals. Cost: 2 · `points` + 1 points.

    Args:
        estimate: A function from the number of points to the integral.
        points: The smaller number of points.

    Returns:
        The estimate with `points` + 1 points, and the absolute value of its change.

    Example:
        >>> value, error = with_error(lambda points: shares(network, rounds, evaluation, points))  # doctest: +SKIP
    """
    coarse, fine = estimate(points), estimate(points + 1)
    few, more = (one.value if isinstance(one, Cascade) else one for one in (coarse, fine))
    return fine, (more - few).abs()
