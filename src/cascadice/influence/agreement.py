"""How well estimates agree with the truth: correlations of values and ranks, slope and error."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Agreement(NamedTuple):
    """How well an estimate agrees with the truth; correlations are NaN if either is constant."""

    pearson: float
    spearman: float
    slope: float
    relative_rmse: float


def agreement(truth: Float[Tensor, " points"], estimate: Float[Tensor, " points"]) -> Agreement:
    """Correlation of values and of ranks, least-squares slope of the estimate on the truth, and relative error.

        relative RMSE = √(mean (estimate − truth)² / mean truth²)

    A perfect estimate has 1, 1, 1, 0. Points where either is NaN or infinite are left out.

    Args:
        truth: The true values, e.g. `truth(network, rounds, evaluation).value.flatten()`.
        estimate: The estimates of the same values, in the same order.

    Returns:
        Pearson's and Spearman's correlation, the slope, the relative RMSE.

    Raises:
        ValueError: If there are fewer than 3 finite points.

    Example:
        >>> exact = torch.tensor([1.0, 2.0, 4.0])
        >>> agreement(exact, 2 * exact).slope
        2.0
    """
    finite = truth.isfinite() & estimate.isfinite()
    if (points := int(finite.sum())) < 3:
        raise ValueError(f"agreement needs at least 3 finite points; found {points}. Score more rounds or sources.")
    both = torch.stack([truth[finite].double(), estimate[finite].double()])
    x, y = both
    (variance, covariance), _ = torch.cov(both)
    error = ((y - x).square().mean() / x.square().mean()).sqrt()
    spearman = resampled_rank_correlations(x, y, torch.arange(points)[None])
    return Agreement(float(both.corrcoef()[0, 1]), float(spearman), float(covariance / variance), float(error))


def resampled_rank_correlations(
    one: Float[Tensor, " points"], other: Float[Tensor, " points"], picks: Int[Tensor, "resamples points"]
) -> Float[Tensor, " resamples"]:
    """The rank correlation of the points in each row of `picks`; NaN if either is constant there."""
    a, b = (ranks - ranks.mean(1, keepdim=True) for ranks in (_ranks(one, picks), _ranks(other, picks)))
    return ((a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()).clamp(-1, 1)


def _ranks(values: Tensor, picks: Tensor) -> Tensor:
    """The ranks, from 1, of the values in each row of `picks`; equal values share the mean of their ranks."""
    _, order = np.unique(values.cpu().numpy(), return_inverse=True)
    which = torch.from_numpy(order)[picks]
    counts = torch.zeros(len(picks), int(which.max()) + 1, dtype=torch.float64)
    counts.scatter_add_(1, which, torch.ones_like(which, dtype=torch.float64))
    return (counts.cumsum(1) - (counts - 1) / 2).gather(1, which)
