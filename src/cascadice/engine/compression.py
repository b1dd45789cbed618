"""Lossy compression of the updates that participants send: for each, a function, its derivative and a table entry."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "rows d"]


class Compression(NamedTuple):
    """A way to compress updates.

    Attributes:
        apply: An update -> what the receiver decodes.
        derivative: (direction, decoded update) -> the derivative of `apply` along the direction. It must be its own
            transpose, as it is for any code that treats each entry by itself.
        description: One line for lists.

    Example:
        >>> halves = Compression(lambda update: update / 2, lambda direction, decoded: direction / 2, "half of it")
        >>> net = network(model, data, nodes=8, compression=halves)
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
    # the derivative of rounding is 0 almost everywhere, so rounding is treated as the identity (straight-through)
    "8-bit": Compression(_eight_bits, lambda direction, decoded: direction, "8 bits per entry, scaled by row"),
    "top-k": Compression(
        _largest_tenth,
        lambda direction, decoded: torch.where(decoded != 0, direction, 0.0),
        "the largest tenth of the entries, the others 0",
    ),
}
