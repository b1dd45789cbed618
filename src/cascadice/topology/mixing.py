"""One gossip step: every participant replaces its parameters by a weighted mean of those it receives."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cascadice.topology.matrices import from_links, links

_Target = tuple[torch.dtype, torch.device, bool]

# columns in one product with a sparse matrix: beyond 65,535 blocks of 16, cuSPARSE silently returns zeros
WIDEST = 2**19


def gossip(
    W: Float[Tensor, "n n"], theta: Float[Tensor, "n d"], *, out: Float[Tensor, "n d"] | None = None
) -> Float[Tensor, "n d"]:
    """Σ_j W[k, j] θ_j for every participant k, in theta's dtype and on its device.

    Cost: links × d for sparse W, n² × d for dense. Autograd works; torch.func cannot trace a sparse W, but the map is
    linear, so tangents can be gossiped directly.

    Args:
        W: The mixing matrix. It is converted to theta's dtype and device once: do not modify it in place.
        theta: A row for each participant.
        out: Where to write the result.

    Returns:
        The mixed rows.

    Example:
        >>> gossip(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([[0.0], [4.0]]))
        tensor([[2.],
                [4.]])
    """
    with full_precision():
        return product(_fitting(W, theta, transposed=False), theta, out=out)


def gossip_transposed(
    W: Float[Tensor, "n n"], lam: Float[Tensor, "n d"], *, plus: Tensor | None = None, out: Tensor | None = None
) -> Float[Tensor, "n d"]:
    """Σ_k W[k, j] λ_k + plus for every participant j: the adjoint of `gossip`, at the same cost.

    Args:
        W: The mixing matrix. It is converted to lam's dtype and device once: do not modify it in place.
        lam: A row for each participant.
        plus: What to add to the result.
        out: Where to write the result.

    Returns:
        The rows Wᵀ λ + plus.

    Example:
        >>> W = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
        >>> gossip_transposed(W, torch.tensor([[1.0], [2.0]])).tolist()
        [[2.0], [1.0]]
    """
    with full_precision():
        back = _fitting(W, lam, transposed=True)
        if plus is not None and back.layout == torch.strided:
            return torch.addmm(plus, back, lam, out=out)
        result = product(back, lam, out=out)
        return result if plus is None else result.add_(plus)


def product(left: Float[Tensor, "m n"], right: Float[Tensor, "n d"], *, out: Tensor | None = None) -> Tensor:
    """left · right for a matrix of any layout, however wide `right` is."""
    if left.layout == torch.strided or right.shape[1] <= WIDEST:
        return torch.mm(left, right, out=out)
    return torch.cat([torch.mm(left, columns) for columns in torch.split(right, WIDEST, 1)], 1, out=out)


@contextmanager
def full_precision() -> Iterator[None]:
    """Without TF32, which may do for training but would round every parameter to 11 bits in every gossip step."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _fitting(W: Tensor, like: Tensor, *, transposed: bool) -> Tensor:
    """W or its transpose in the dtype and on the device of `like`, cached as long as W lives."""
    if W.layout == torch.strided and transposed:
        return _fitting(W, like, transposed=False).T
    target = (like.dtype, like.device, transposed)
    if target == (W.dtype, W.device, False):
        return W
    copies = _copies.setdefault(W, {})
    if target not in copies:
        if transposed:
            receivers, sources, weights = (column.cpu() for column in links(W))
            W = from_links(W.shape[0], sources, receivers, weights)
        copies[target] = W.to(like.device, like.dtype)
    return copies[target]


# Keyed by identity and weakly: a constant W is moved to the GPU once, the W of a random round is forgotten with it.
_copies: MutableMapping[Tensor, dict[_Target, Tensor]] = WeakTensorKeyDictionary()
