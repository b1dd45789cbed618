"""Storage for the samples of a watched loop, which arrive batch by batch and are dropped with their round."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves, tree_structure, tree_unflatten

from cascadice.data import Samples
from cascadice.data.inputs import as_inputs


class SampleBuffer:
    """Samples by number: the user's numbers, each stored once; or running numbers, reused once they are forgotten."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._leaves: list[Tensor] = []  # the tensors of the inputs, then the targets
        self._form: TreeSpec | None = None
        self._known, self._size = torch.zeros(0, dtype=torch.bool), 0
        self._free = torch.zeros(0, dtype=torch.int64)
        self._numbered: bool | None = None

    @property
    def samples(self) -> Samples:
        """All samples by number; zeros for numbers without a sample."""
        assert self._form is not None
        *inputs, targets = (leaf[: self._size] for leaf in self._leaves)
        return Samples(tree_unflatten(inputs, self._form), targets)

    def put(self, x: Any, y: Any, index: Any = None) -> Int[Tensor, " batch"]:
        """Copy a batch into the buffer, and return its numbers. Sometimes the buffer grows, and all of it is copied."""
        x = as_inputs(x)
        self._check(x, y)
        given, self._form = [*tree_leaves(x), y], tree_structure(x)
        if index is None:
            reused, self._free = self._free[: len(y)], self._free[len(y) :]
            rows = torch.cat([reused, torch.arange(self._size, self._size + len(y) - len(reused))])
        else:
            rows = _numbers(index, len(y))
        if self._numbered not in (None, index is not None):
            raise ValueError("either all batches must come with index= or none; found some of each.")
        self._numbered = index is not None
        size = int(rows.max()) + 1
        if size > len(self._known):
            capacity = max(size, 2 * len(self._known))
            stored = self._leaves or [torch.empty(0, device=self._device)] * len(given)
            self._leaves = [_longer(old, new, capacity) for old, new in zip(stored, given, strict=True)]
            self._known = _longer(self._known, self._known, capacity)
        self._size = max(self._size, size)
        places, new = rows.to(self._device), ~self._known[rows].to(self._device)
        for leaf, value in zip(self._leaves, given, strict=True):
            values = value.detach().to(self._device)
            leaf[places[new]] = values[new]
            if self._numbered:
                _check_unchanged(leaf, values, places)
        self._known[rows] = True
        return rows

    def free(self, rows: Int[Tensor, "..."]) -> None:
        """Free these running numbers; samples with the user's own numbers stay, because other rounds may use them."""
        if not self._numbered:
            used = rows[rows >= 0]  # the rest is padding
            self._known[used] = False
            self._free = torch.cat([self._free, used])

    def _check(self, x: Any, y: Any) -> None:
        inputs = tree_leaves(x)
        if not all(isinstance(tensor, Tensor) for tensor in (*inputs, y)):
            kinds = f"{type(x).__name__} and {type(y).__name__}"
            raise TypeError(f"a batch must be two tensors, x and y; found {kinds}. x may be a dictionary of tensors.")
        rows = {len(part) if part.dim() else 0 for part in (*inputs, y)}
        if len(rows) > 1 or 0 in rows:
            shapes = f"{', '.join(str(list(part.shape)) for part in inputs)} and {list(y.shape)}"
            raise ValueError(f"x and y must have a row for each sample, at least one; found shapes {shapes}.")
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            raise TypeError(
                "x must have a dtype that the model computes with; found uint8. Pass x.float(), or x.long() for tokens."
            )
        if self._form not in (None, tree_structure(x)):
            raise ValueError(
                "all batches must have the same structure; x had other tensors before. Use the same names."
            )
        for new, old, name in zip((*inputs, y), self._leaves, [*("x" for _ in inputs), "y"], strict=False):
            if (new.shape[1:], new.dtype) != (old.shape[1:], old.dtype):
                change = f"{list(old.shape[1:])} {old.dtype}, then {list(new.shape[1:])} {new.dtype}"
                raise ValueError(f"samples must keep their shape and dtype; {name} had {change}. Pad to one length.")


def _check_unchanged(stored: Tensor, given: Tensor, places: Tensor) -> None:
    changed = (stored[places] != given).reshape(len(places), -1).any(1)
    if changed.any():
        raise ValueError(
            f"a sample must be the same each time it is used; number {int(places[changed][0])} has changed. "
            "Where samples are augmented, leave index out: each view is then a sample."
        )


def _longer(old: Tensor, like: Tensor, size: int) -> Tensor:
    added = torch.zeros(size - len(old), *like.shape[1:], dtype=like.dtype, device=old.device)
    return torch.cat([old, added]) if len(old) else added


def _numbers(index: Any, count: int) -> Tensor:
    rows = torch.as_tensor(index).detach().cpu()
    if rows.is_floating_point() or rows.dtype == torch.bool or rows.shape != (count,) or bool((rows < 0).any()):
        given = f"{rows.dtype} of shape {list(rows.shape)}"
        raise ValueError(f"index must be {count} whole numbers, at least 0, one for each sample; found {given}.")
    return rows.long()
