"""Model inputs: a tensor, or a tree of tensors (such as a tokenizer's dictionary) with one row per sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Inputs = Tensor | dict[str, Any] | tuple[Any, ...]
"""A model gets a dictionary as keyword arguments, and a tuple as positional arguments."""

IGNORED = -100
"""The target that losses and accuracies ignore, as in torch's cross entropy."""


def as_inputs(given: Any) -> Any:
    """Convert to trees that torch knows: a tokenizer's BatchEncoding is a mapping, but not a dict."""
    if isinstance(given, Mapping):
        return {name: as_inputs(part) for name, part in given.items()}
    return tuple(as_inputs(part) for part in given) if isinstance(given, tuple) else given


def at(inputs: Inputs, index: Any) -> Any:
    """Index every tensor."""
    return inputs[index] if isinstance(inputs, Tensor) else tree_map(lambda tensor: tensor[index], inputs)


def stacked(rows: Any) -> Any:
    """Stack trees of the same structure on a new leading axis."""
    return tree_map(lambda *tensors: torch.stack(tensors), *rows)


def in_precision(inputs: Inputs, dtype: torch.dtype) -> Any:
    """The inputs with floating-point tensors in this dtype; integers, such as tokens and masks, are unchanged."""
    return tree_map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, inputs)


def described(inputs: Inputs) -> str:
    """Shapes and dtypes, for error messages."""
    if isinstance(inputs, Tensor):
        return f"{list(inputs.shape)} of {inputs.dtype}"
    named = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return ", ".join(f"{name} {described(part)}" for name, part in named)


def rows_of_inputs(inputs: Inputs) -> int:
    """The number of samples; raise unless it is the first dimension of every tensor."""
    leaves = tree_leaves(inputs)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves) or "nothing"
        raise TypeError(f"inputs must be a tensor, or a dict or tuple of tensors, one row per sample; found {kinds}.")
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise ValueError(f"all tensors of the inputs must have one row per sample; found {lengths} rows.")
    return lengths[0]


def are_tokens(y: Tensor) -> bool:
    """Whether targets are tokens: several integers per sample."""
    return not y.is_floating_point() and y.dim() > 1 and y[:1].numel() > 1


def next_tokens(labels: Int[Tensor, "*batch time"]) -> Int[Tensor, "*batch time"]:
    """Targets of a causal language model: the next token at each position, and none (−100) at the last.

    Args:
        labels: The tokens, with −100 for those that need not be predicted (padding, a prompt), as Hugging Face's causal
            models take them.

    Returns:
        The targets, of the same shape.

    Example:
        >>> next_tokens(torch.tensor([[5, 6, 7, -100]]))
        tensor([[   6,    7, -100, -100]])
    """
    return torch.cat([labels[..., 1:], torch.full_like(labels[..., :1], IGNORED)], -1)


def materialise(items: Any, what: str) -> tuple[Any, Tensor]:
    """The stacked inputs and targets of a data set of pairs, or of dictionaries with `labels`."""
    # by length: a map-style Dataset need not raise IndexError at its end
    each = (items[i] for i in range(len(items))) if hasattr(items, "__len__") else iter(items)
    pairs: list[tuple[Any, Tensor]] = []
    for i, item in enumerate(each):
        pairs.append(_pair(item, f"{what} must yield (input, target) pairs; item {i} is {type(item).__name__}."))
        for part, values, others in zip(("inputs", "targets"), pairs[i], pairs[0], strict=True):
            if (shapes := _shapes(values)) != (first := _shapes(others)):
                found = f"item {i} is {shapes}, item 0 is {first}. Add a resizing transform, or padding."
                raise ValueError(f"{part} of {what} must have one shape; {found}")
    if not pairs:
        raise ValueError(f"{what} must hold at least one sample; it is empty.")
    x, y = stacked(pairs)
    return x, next_tokens(y) if _repeats(x, y) else y


def _pair(item: Any, refusal: str) -> tuple[Any, Tensor]:
    if isinstance(item, Mapping):
        if "labels" not in item:
            raise TypeError(f"{refusal} A dictionary needs the key 'labels'; it has {', '.join(map(repr, item))}.")
        item = {name: part for name, part in item.items() if name != "labels"}, item["labels"]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(refusal)
    x, y = item
    return {name: _tensor(part) for name, part in x.items()} if isinstance(x, Mapping) else _tensor(x), _tensor(y)


def _repeats(x: Any, y: Tensor) -> bool:
    """Whether labels are the tokens themselves, which Hugging Face's causal models shift inside their loss."""
    tokens = x.get("input_ids") if isinstance(x, dict) else None
    return tokens is not None and tokens.shape == y.shape and bool(((y == tokens) | (y == IGNORED)).all())


def _shapes(inputs: Any) -> str:
    return ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(inputs))


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # a PIL image, without importing PIL
        array = np.array(value if value.mode in ("L", "RGB") else value.convert("RGB"), dtype=np.uint8)
        return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    return torch.as_tensor(value)
