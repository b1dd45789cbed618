"""Samples that arrive batch by batch, and leave."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cascadice.data import Samples


class SampleBuffer:
    """Samples by number: running ones, used again once forgotten, or the user's own, for which each is kept once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._x = self._y = torch.empty(0, device=device)
        self._known, self._size = torch.zeros(0, dtype=torch.bool), 0
        self._free = torch.zeros(0, dtype=torch.int64)
        self._numbered: bool | None = None

    @property
    def samples(self) -> Samples:
        """What is on the shelf, at its numbers; zeros where there is nothing."""
        return Samples(self._x[: self._size], self._y[: self._size])

    def put(self, x: Any, y: Any, index: Any = None) -> Int[Tensor, " batch"]:
        """Copy a batch onto the shelf; its numbers there. Cost: a copy; seldom, one of everything, for room to grow."""
        self._check(x, y)
        if index is None:
            again, self._free = self._free[: len(y)], self._free[len(y) :]
            rows = torch.cat([again, torch.arange(self._size, self._size + len(y) - len(again))])
        else:
            rows = _numbers(index, len(y))
        if self._numbered not in (None, index is not None):
            raise ValueError("either all batches must come with index= or none; found some of each.")
        self._numbered = index is not None
        size = int(rows.max()) + 1
        if size > len(self._x):
            room = max(size, 2 * len(self._x))
            self._x, self._y = _longer(self._x, x, room), _longer(self._y, y, room)
            self._known = _longer(self._known, self._known, room)
        self._size = max(self._size, size)
        x, y, places = (tensor.detach().to(self._device) for tensor in (x, y, rows))
        new = ~self._known[rows].to(self._device)
        self._x[places[new]], self._y[places[new]] = x[new], y[new]
        self._known[rows] = True
        for kept, given in ((self._x, x), (self._y, y)) if self._numbered else ():
            changed = (kept[places] != given).reshape(len(rows), -1).any(1)
            if changed.any():
                raise ValueError(
                    f"a sample must be the same each time it is used; number {int(places[changed][0])} has changed. "
                    "Where samples are augmented, leave index out: each view is then a sample."
                )
        return rows

    def forget(self, rows: Int[Tensor, "..."]) -> None:
        """These running numbers may be used again; samples with numbers of their own stay, as others may need them."""
        if not self._numbered:
            self._known[rows.flatten()] = False
            self._free = torch.cat([self._free, rows.flatten()])

    def _check(self, x: Any, y: Any) -> None:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise TypeError(f"a batch must be two tensors, x and y; found {type(x).__name__} and {type(y).__name__}.")
        if not x.dim() or not y.dim() or len(x) != len(y) or not len(x):
            shapes = f"{list(x.shape)} and {list(y.shape)}"
            raise ValueError(f"x and y must have a row for each sample, at least one; found shapes {shapes}.")
        if x.dtype == torch.uint8:
            raise TypeError(
                "x must be what the model computes with; found uint8. Give x.float(), or x.long() for tokens."
            )
        for name, new, old in (("x", x, self._x), ("y", y, self._y)):
            if len(old) and (new.shape[1:], new.dtype) != (old.shape[1:], old.dtype):
                change = f"{list(old.shape[1:])} {old.dtype}, then {list(new.shape[1:])} {new.dtype}"
                raise ValueError(f"samples must keep their shape and dtype; {name} had {change}.")


def _longer(old: Tensor, like: Tensor, size: int) -> Tensor:
    added = torch.zeros(size - len(old), *like.shape[1:], dtype=like.dtype, device=old.device)
    return torch.cat([old, added]) if len(old) else added


def _numbers(index: Any, count: int) -> Tensor:
    rows = torch.as_tensor(index).detach().cpu()
    if rows.is_floating_point() or rows.dtype == torch.bool or rows.shape != (count,) or bool((rows < 0).any()):
        given = f"{rows.dtype} of shape {list(rows.shape)}"
        raise ValueError(f"index must be {count} whole numbers, at least 0, one for each sample; found {given}.")
    return rows.long()
