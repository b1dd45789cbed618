"""Samples in memory: stored compactly, normalised when taken."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map
from torch.utils.data import Dataset

from cascadice.data.inputs import IGNORED, as_inputs, materialise, rows_of_inputs
from cascadice.files.tensors import content_of

WATCHED = "watched batches"  # the name of a recorder's data set: it sees the batches of a loop, not its data


@dataclass(frozen=True, eq=False)
class Samples:
    """N inputs x and their targets y, as stored: uint8 images stay uint8 (Tiny ImageNet in float32 would be 5 GB).

    `take` turns uint8 into float32 `(x / 255 − mean) / std`, with a mean and std per channel; other dtypes are kept.
    If the model takes several tensors, x is a dictionary of them (its keyword arguments) or a tuple.

    Where other processes have the other samples (see `keep`), x and y hold only the rows of this one's samples.
    `numbers` are their numbers in the whole data set, which has `whole` samples; samples are still asked for by these.

    Example:
        >>> x, y = Samples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])).take(torch.tensor([2, 0]))
        >>> x.tolist(), y.tolist()
        ([[4.0, 5.0], [0.0, 1.0]], [0, 0])
        >>> texts = Samples({"input_ids": tokens, "attention_mask": mask}, next_tokens(tokens))  # doctest: +SKIP
    """

    x: Any  # Inputs; a tensor, as a rule
    y: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    numbers: Int[Tensor, " rows"] | None = None
    whole: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_inputs(self.x))
        if (rows := rows_of_inputs(self.x)) != len(self.y):
            raise ValueError(f"x and y must have one row per sample; x has {rows}, y has {len(self.y)}.")
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: give both or neither.")
        object.__setattr__(self, "x", tree_map(_indexable, self.x))
        object.__setattr__(self, "y", _indexable(self.y))
        if self.mean is not None and not self._images:
            kind = self.x.dtype if isinstance(self.x, Tensor) else f"a {type(self.x).__name__}"
            raise ValueError(f"mean and std are for uint8 images; x is {kind}. Normalise x itself instead.")
        if self.std is not None and not bool((self.std > 0).all() and self.std.isfinite().all()):
            raise ValueError(f"std must be positive and finite, one number per channel; found {self.std.tolist()}.")

    def __len__(self) -> int:
        return len(self.y) if self.numbers is None else self.whole

    def __repr__(self) -> str:
        inputs, kind = " × ".join(map(str, self.shape)) or "scalar", str(tree_leaves(self.x)[0].dtype)
        here = "" if self.numbers is None else f", {len(self.numbers):,} of them here"
        return f"Samples({len(self):,} of {inputs}{here}, {kind.removeprefix('torch.')}, on {self.y.device})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's input; of the first, if the model takes several."""
        return tuple(tree_leaves(self.x)[0].shape[1:])

    @property
    def _images(self) -> bool:
        return isinstance(self.x, Tensor) and self.x.dtype == torch.uint8

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.x, Tensor)
        given = torch.zeros(()) if self.mean is None else self.mean, torch.ones(()) if self.std is None else self.std
        mean, std = (values.to(self.x.device, torch.float32) for values in given)
        trailing = (-1,) + (1,) * (self.x.dim() - 2)
        return (1 / (255 * std)).reshape(trailing), (-mean / std).reshape(trailing)

    def take(self, index: Int[Tensor, "*shape"]) -> tuple[Any, Tensor]:
        """The inputs [*shape, ...] and targets [*shape, ...] of the samples at `index`, normalised."""
        rows = self.rows(index.reshape(-1)).to(self.y.device, non_blocking=True)

        def of(values: Tensor) -> Tensor:
            return values.index_select(0, rows).view(index.shape + values.shape[1:])

        if not self._images:
            return tree_map(of, self.x), of(self.y)
        x, (scale, shift) = of(self.x), self._scale_and_shift
        # in place on the CPU, to stay in cache; in one kernel on CUDA
        return torch.addcmul(shift, x, scale) if x.is_cuda else x.float().mul_(scale).add_(shift), of(self.y)

    def to(self, device: torch.device | str) -> "Samples":
        """The same samples on `device`."""
        mean, std = (None if s is None else s.to(device) for s in (self.mean, self.std))
        x = tree_map(lambda values: values.to(device), self.x)
        return replace(self, x=x, y=self.y.to(device), mean=mean, std=std)

    def subset(self, index: Int[Tensor, " chosen"]) -> "Samples":
        """Only the samples at `index`, in that order and numbered by it."""
        rows = self.rows(index).to(self.y.device)
        x, y = tree_map(lambda values: values.index_select(0, rows), (self.x, self.y))
        return replace(self, x=x, y=y, numbers=None, whole=0)

    def keep(self, index: Int[Tensor, " kept"]) -> "Samples":
        """Only the samples at `index`, under the numbers they have here; `take` refuses any other number.

        Example:
            >>> kept = Samples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])).keep(torch.tensor([2]))
            >>> len(kept), len(kept.x), kept.take(torch.tensor([2]))[0].tolist()
            (3, 1, [[4.0, 5.0]])
        """
        numbers = torch.unique(index.cpu())  # ascending
        return replace(self.subset(numbers), numbers=numbers, whole=len(self))

    def rows(self, index: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The rows of x and y that hold these samples.

        Raises:
            IndexError: If one of them was not kept.
        """
        if self.numbers is None:
            return index
        index = index.cpu()
        rows = torch.searchsorted(self.numbers, index).clamp(max=len(self.numbers) - 1)
        if len(foreign := index[self.numbers[rows] != index]):
            raise IndexError(
                f"sample {int(foreign[0])} is not in this process: it keeps {len(self.numbers)} of {self.whole} "
                "training samples, those of its own participants. Ask the process whose participant holds it."
            )
        return rows


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training samples, which a partition divides, test samples, and the names of the classes (none for regression)."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    digest: str = ""

    def __repr__(self) -> str:
        return f"DataSet({self.name}, train={self.train!r}, test={self.test!r}, {len(self.classes)} classes)"

    def to(self, device: torch.device | str) -> "DataSet":
        """The same data on `device`."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def keep(self, index: Int[Tensor, " kept"]) -> "DataSet":
        """The data with only these training samples, under their numbers, and all test samples.

        `digest` remembers which data set it is; it takes a look at all samples.
        """
        return replace(self, train=self.train.keep(index), digest=content_digest(self))


def content_digest(data: DataSet) -> str:
    """The SHA-256 of everything in a data set: samples, targets, normalisation and classes.

    Where a process keeps only its own training samples, it is the digest of the whole data set all the same.
    """
    if data.digest:
        return data.digest
    digest = sha256(json.dumps(data.classes).encode())
    for part in (data.train, data.test):
        for path, tensor in tree_flatten_with_path((part.x, part.y, part.mean, part.std))[0]:
            if tensor is None:
                digest.update(b"none")
                continue
            if len(path) > 1:  # one of several inputs
                digest.update(str(path).encode())
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(content_of(tensor))
    return digest.hexdigest()


WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch cannot index, compare or reduce these


def labels_of(array: NDArray[Any], classes: int, what: str) -> Int[Tensor, " samples"]:
    """The labels in a file's array: integers of any width, one per sample, or a column [samples, 1]."""
    column = array[:, 0] if array.shape[1:] == (1,) else array
    if column.ndim != 1 or len(column) == 0 or column.dtype.kind not in "iu":
        found = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{what} must be integers, one per sample and at least one; found {found}")
    labels = torch.from_numpy(column.astype(np.int64))  # numbers from 2^63 on become negative, which is an error
    check_labels(labels, classes, what)
    return labels


def names_of(array: NDArray[Any], what: str) -> tuple[str, ...]:
    """The class names in a file's array: a row of distinct strings."""
    names = tuple(np.char.decode(array, "utf-8").tolist() if array.dtype.kind == "S" else map(str, array.tolist()))
    if array.ndim != 1 or array.dtype.kind not in "US" or len(set(names)) != len(names):
        raise ValueError(f"{what} must be a row of distinct names; found {array.dtype} of shape {array.shape}")
    return names


def check_labels(y: Tensor, classes: int, what: str) -> None:
    """Raise an error that names the first label that is not an integer in 0 … classes − 1."""
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise TypeError(f"{what} must be integers, one of {classes} classes; found {y.dtype}.")
    ignored = (y == IGNORED) & (y.dim() > 1)  # a position of a sequence may have no target; a sample must have one
    bad = (((y < 0) & ~ignored) | (y >= classes)).nonzero()
    if len(bad):
        index = ", ".join(str(int(i)) for i in bad[0])
        raise ValueError(
            f"{what} must lie in 0..{classes - 1} ({classes} classes); {what}[{index}] is {int(y[tuple(bad[0])])}."
        )


def from_tensors(
    x: Any, y: Any, x_test: Any, y_test: Any, *, name: str = "tensors", classes: Sequence[str] | int | None = None,
    mean: Sequence[float] | None = None, std: Sequence[float] | None = None,
) -> DataSet:  # fmt: skip
    """A data set from arrays or tensors.

    Args:
        x: Training inputs: uint8 images NCHW, floats, or integer tokens; or a dictionary of the model's arguments.
        y: Training targets: integer classes, or floats for regression; −100 for positions of a sequence without one.
        x_test: Test inputs.
        y_test: Test targets.
        name: What to call the data set.
        classes: Names or a number; by default, integer targets are classes 0 … max, and floats regression.
        mean: The mean of x / 255 per channel, to normalise uint8 images by.
        std: The standard deviation of x / 255 per channel.

    Returns:
        The data set.

    Raises:
        ValueError: If arrays are empty, not finite or of different shapes, or a label is out of range.

    Example:
        >>> data = from_tensors(torch.randn(90, 4), torch.arange(90) % 3, torch.randn(30, 4), torch.arange(30) % 3)
        >>> data.classes
        ('0', '1', '2')
    """
    given = {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
    x, y, x_test, y_test = parts = [_as_tensors(part) for part in given.values()]
    for part, values in zip(given, parts, strict=True):
        for array in tree_leaves(values):
            if array.dim() == 0 or len(array) == 0:
                raise ValueError(f"{part} must hold at least one sample; its shape is {tuple(array.shape)}.")
            if array.is_floating_point() and not bool(array.isfinite().all()):
                bad = int((~array.isfinite()).reshape(len(array), -1).any(1).nonzero()[0])
                raise ValueError(f"{part} must be finite; sample {bad} has NaN or infinite entries.")
    for what, one, other in (("inputs", x, x_test), ("targets", y, y_test)):
        shapes, others = ([tuple(array.shape[1:]) for array in tree_leaves(each)] for each in (one, other))
        if shapes != others:
            both = f"{', '.join(map(str, shapes))} and {', '.join(map(str, others))}"
            raise ValueError(f"training and test {what} must have one shape; found {both}.")
    if names := _class_names(classes, y, y_test):
        y, y_test = y.long(), y_test.long()
    channel_mean, channel_std = (None if s is None else torch.tensor(s, dtype=torch.float32) for s in (mean, std))
    x, y, x_test, y_test = tree_map(lambda array: array.contiguous(), (x, y, x_test, y_test))
    train, test = Samples(x, y, channel_mean, channel_std), Samples(x_test, y_test, channel_mean, channel_std)
    return DataSet(name, train, test, names)


def _as_tensors(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _as_tensors(part) for name, part in values.items()}
    return _indexable(torch.as_tensor(values))


def _indexable(values: Tensor) -> Tensor:
    return values.long() if values.dtype in WIDE_UNSIGNED else values


def _class_names(classes: Sequence[str] | int | None, y: Tensor, y_test: Tensor) -> tuple[str, ...]:
    if classes is None:
        integer = not (y.dtype.is_floating_point or y.dtype.is_complex)
        classes = max(1, int(max(y.max(), y_test.max())) + 1) if integer else 0
    names = tuple(str(c) for c in range(classes)) if isinstance(classes, int) else tuple(classes)
    if names:
        check_labels(y, len(names), "y")
        check_labels(y_test, len(names), "y_test")
    return names


def from_torch(
    train: Dataset[Any] | Iterable[Any], test: Dataset[Any] | Iterable[Any], *, name: str = "dataset", **options: Any
) -> DataSet:
    """A data set from torch Datasets of (input, target) pairs, read once into memory; PIL images become uint8 NCHW.

    Args:
        train: A Dataset or any iterable of pairs, or of dictionaries with `labels`, as Hugging Face's have them. Labels
            that repeat `input_ids` are those of a causal language model, see `next_tokens`.
        test: The same, to evaluate on.
        name: What to call the data set.
        **options: `classes`, `mean` and `std` of `from_tensors`.

    Returns:
        The data set.

    Raises:
        TypeError: If an item is neither a pair nor a dictionary with `labels`.
        ValueError: If there are no samples, or their shapes differ.

    Example:
        >>> pairs = torch.utils.data.TensorDataset(torch.randn(90, 4), torch.arange(90) % 3)
        >>> len(from_torch(pairs, pairs).train)
        90
    """
    return from_tensors(*materialise(train, "train"), *materialise(test, "test"), name=name, **options)


def resolve(data: Any) -> DataSet:
    """Make a DataSet from any kind of data that `network` accepts.

    Args:
        data: A DataSet, a torch Dataset, Samples, or a pair (train, test) of these. Without a test set, participants
            are evaluated on the training samples, with a warning.

    Returns:
        The data set.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> from cascadice.data import digits
        >>> resolve(digits()).name
        'digits'
    """
    if isinstance(data, DataSet):
        return data
    pair = isinstance(data, tuple) and len(data) == 2
    train, test = data if pair else (data, data)
    if not any(isinstance(train, kind) and isinstance(test, kind) for kind in (Samples, Dataset)):
        found = f"a pair of {type(train).__name__} and {type(test).__name__}" if pair else type(data).__name__
        raise TypeError(
            f"data must be a DataSet, a torch Dataset or a pair (train, test) of Datasets; found {found}. "
            "Use data.from_tensors(x, y, x_test, y_test) or data.from_torch(train, test)."
        )
    if not pair:
        warnings.warn(
            "no test data were given: participants are evaluated on the training samples. Give a pair (train, test).",
            stacklevel=3,
        )
    if isinstance(train, Samples):
        return DataSet("samples", train, test, _class_names(None, train.y, test.y))
    return from_torch(train, test)
