"""Averages over those whose messages came, where others were missing."""

import torch
from jaxtyping import Float
from torch import Tensor


def renormalised(mine: Float[Tensor, "m n"], came: Tensor, own: Tensor) -> Float[Tensor, "m n"]:
    """Rows of W without those who did not come, scaled to their sums; who is left with nobody keeps its own.

    Example:
        >>> renormalised(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([True, False, True]), torch.tensor([0]))
        tensor([[0.7143, 0.0000, 0.2857]])
    """
    full, left = mine.sum(1, keepdim=True), (mine * came).sum(1, keepdim=True)
    alone = torch.zeros_like(mine)
    alone[torch.arange(len(own)), own] = full[:, 0]
    return torch.where(left > 0, mine * came * (full / left), alone)


def rescaled(mixed: Tensor, rows: Tensor, mine: Float[Tensor, "m n"], came: Tensor) -> Tensor:
    """Sums over those who came, as averages; rows of who is left with nobody."""
    full, left = mine.sum(1, keepdim=True), (mine * came).sum(1, keepdim=True)
    return torch.where(left > 0, mixed * (full / left).to(rows), rows)
