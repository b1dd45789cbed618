"""Inner products, lengths and distances of participants' rows, and who hears whom."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

COLUMNS = 2**16  # of a row, converted to double precision at once


def inner_products(left: Float[Tensor, "n d"], right: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """All inner products of two sets of rows, in double precision: TF32, where torch may use it, loses small ones."""
    inner = left.new_zeros(len(left), len(right), dtype=torch.float64)
    for a, b in zip(torch.split(left, COLUMNS, 1), torch.split(right, COLUMNS, 1), strict=True):
        inner.addmm_(a.double(), b.double().T)
    return inner


def norms(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The length of each row."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.double()


def distances(theta: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """‖θ_j − θ_k‖ for every pair; measured from the first row, because the models of a network are much alike."""
    offset = theta - theta[0]
    inner = inner_products(offset, offset)
    squares = inner.diag()
    return (squares[:, None] + squares[None] - 2 * inner).clamp(min=0).sqrt()


def neighbours(W: Float[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Who hears whom.

    Args:
        W: A mixing matrix.

    Returns:
        `[k, j]`: whether k hears j; nobody counts as their own neighbour.

    Example:
        >>> neighbours(torch.tensor([[0.5, 0.5], [0.0, 1.0]])).tolist()
        [[False, True], [False, False]]
    """
    W = W.to_dense()
    return (W > 0) & ~torch.eye(len(W), dtype=torch.bool, device=W.device)
