"""Integrals along updates: the one place that knows where to look and with which weight."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from torch import Tensor

from cascadice.influence.cascade import Cascade

MOST_POINTS = 100  # each costs a pass over the run; training is not so smooth that more would help
Estimate = TypeVar("Estimate", Tensor, Cascade)


def weighted_points(points: int) -> list[tuple[float, float]]:
    """Places on [0, 1] and their weights by Gauss–Legendre, exact for polynomials up to degree 2 · points − 1.

    Example:
        >>> weighted_points(1)
        [(0.5, 1.0)]
    """
    if points < 1:
        raise ValueError(f"a quadrature needs at least 1 point; found {points}. Use points=2.")
    if points > MOST_POINTS:
        raise ValueError(f"a quadrature may have at most {MOST_POINTS} points; found {points}. Use fewer, such as 8.")
    places, weights = np.polynomial.legendre.leggauss(points)
    return [((1 + float(x)) / 2, float(w) / 2) for x, w in zip(places, weights, strict=True)]


def with_error(estimate: Callable[[int], Estimate], points: int = 2) -> tuple[Estimate, Tensor]:
    """An integral at `points` + 1, and how far it moved from `points`: an estimate of its error, on the safe side.

    Where networks are smooth the error of the value is far smaller; kinks (ReLU) are not seen by derivatives, and from
    two hops on leave a part that no number of points shows. Cost: 2 · `points` + 1 points.

    Args:
        estimate: A function of the number of points.

    Returns:
        The estimate at `points` + 1, and the size of its change from `points`.

    Example:
        >>> value, error = with_error(lambda points: shares(network, rounds, evaluation, points))  # doctest: +SKIP
    """
    rough, value = estimate(points), estimate(points + 1)
    return value, (_numbers(value) - _numbers(rough)).abs()


def _numbers(estimate: Tensor | Cascade) -> Tensor:
    return estimate.value if isinstance(estimate, Cascade) else estimate
