"""How well a score separates two groups."""

import torch
from torch import Tensor


def auroc(values: Tensor, positive: Tensor) -> float:
    """The area under the ROC curve: how often a positive ranks above a negative; ties count half.

    NaN if there are no positives or no negatives.

    Example:
        >>> auroc(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, False]))
        1.0
    """
    _, order, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[order]
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))
