"""Lossy codes of updates, for what participants send: one function, its derivative and a table entry each."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "rows d"]


class Compression(NamedTuple):
    """A code: what is decoded from an update; and the derivative of that, (direction, decoded update) -> direction.

    The derivative is its own transpose, as it is of any code that treats each entry by itself.
    """

    apply: Callable[[Rows], Rows]
    derivative: Callable[[Rows, Rows], Rows]
    description: str


def _eight_bits(update: Rows) -> Rows:
    scale = (update.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(update.dtype).tiny)
    return (update / scale).round() * scale


def _largest_tenth(update: Rows) -> Rows:
    smallest_kept = update.abs().topk(max(1, update.shape[1] // 10), dim=1).values[:, -1:]
    return torch.where(update.abs() >= smallest_kept, update, 0.0)


COMPRESSIONS: Mapping[str, Compression] = {
    # the derivative of rounding is 0 almost everywhere; as usual, that of what is rounded stands in for it
    "8-bit": Compression(_eight_bits, lambda direction, decoded: direction, "8 bits an entry, scaled by row"),
    "top-k": Compression(
        _largest_tenth,
        lambda direction, decoded: torch.where(decoded != 0, direction, 0.0),
        "the largest tenth of the entries, the others 0",
    ),
}
