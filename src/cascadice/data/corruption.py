"""Deliberate corruption of the data of some participants in some rounds, reproducible on any machine."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves

from cascadice import seeds
from cascadice.data.inputs import IGNORED, Inputs, at
from cascadice.faults import Fault, parse_fault
from cascadice.names import lookup

Row = tuple[Any, Tensor]  # one participant's x [steps, batch, ...] and y [steps, batch, ...]


def _permute_labels(x: Inputs, y: Tensor, strength: float, classes: int, generator: Generator) -> Row:
    orders = [torch.randperm(y.shape[1], generator=generator).to(y.device) for _ in range(y.shape[0])]
    return x, torch.stack([step[order] for step, order in zip(y, orders, strict=True)])


def _flip_labels(x: Inputs, y: Tensor, strength: float, classes: int, generator: Generator) -> Row:
    flipped = torch.rand(y.shape, generator=generator, dtype=torch.float32) < strength
    shift = torch.randint(1, classes, y.shape, generator=generator) * flipped
    return x, _where_target(y, (y + shift.to(y.device)) % classes)


def _mirror_labels(x: Inputs, y: Tensor, strength: float, classes: int, generator: Generator) -> Row:
    return x, _where_target(y, classes - 1 - y)


def _where_target(y: Tensor, corrupted: Tensor) -> Tensor:
    """The corrupted labels, except where targets are ignored."""
    return torch.where(y == IGNORED, y, corrupted)


def _noise(x: Tensor, y: Tensor, strength: float, classes: int, generator: Generator) -> Row:
    return x + math.sqrt(strength) * torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x), y


class Kind(NamedTuple):
    """How to corrupt one participant's batches, what `strength` means, and its largest value (0 if there is none)."""

    apply: Callable[[Any, Tensor, float, int, Generator], Row]
    strength: str
    most: float
    description: str


CORRUPTIONS: Mapping[str, Kind] = {
    "permute-labels": Kind(_permute_labels, "no strength", 0, "labels permuted within each batch"),
    "flip-labels": Kind(_flip_labels, "a probability", 1, "each label, with this probability, becomes another class"),
    "mirror-labels": Kind(
        _mirror_labels, "no strength", 0, "the first class becomes the last, the second the last but one"
    ),
    "noise": Kind(_noise, "a variance", math.inf, "Gaussian noise of this variance on the normalised features"),
}


@dataclass(frozen=True)
class Corruption(Fault):
    """A corruption of the batches of some participants.

    Args:
        kind: One of CORRUPTIONS.
        nodes: The participants.
        rounds: The rounds; defaults to all.
        strength: A probability or a variance, depending on the kind.

    Example:
        >>> flipped = Corruption("flip-labels", nodes=(3, 5), rounds=range(10, 20), strength=0.5)
    """

    def __post_init__(self) -> None:
        kind = lookup(CORRUPTIONS, self.kind, "corruption")
        super().__post_init__()
        if kind.most and not (0 <= self.strength <= kind.most and math.isfinite(self.strength)):
            upper = f"in 0..{kind.most:g}" if math.isfinite(kind.most) else "at least 0 and finite"
            raise ValueError(f"the strength of {self.kind} is {kind.strength}, {upper}; found {self.strength}.")


def corrupt(
    corruptions: Sequence[Corruption], x: Inputs, y: Tensor, t: int, nodes: Sequence[int], seed: int, classes: int,
    origins: Sequence[tuple[int, int]] | None = None, first_step: int | None = None,
) -> tuple[Inputs, Tensor]:  # fmt: skip
    """Corrupt round t's batches of these participants.

    Random draws depend on (seed, t, participant) alone, or on these and the step, so a replay of a few participants, or
    another machine, gets the same ones. Inputs are never modified; what is not corrupted is returned as the same
    object.

    Args:
        corruptions: The corruptions, applied in this order.
        x: Inputs [participants, steps, batch, ...].
        y: Targets [participants, steps, batch, ...].
        t: The round.
        nodes: The participant that each row belongs to.
        seed: Seed of the random draws.
        classes: The number of classes.
        origins: The (seed, participant) that each row draws by, if networks are stacked side by side.
        first_step: The local step that rows begin with, if each step draws separately, as in an uneven network.

    Returns:
        The inputs and targets.

    Raises:
        ValueError: If shapes do not match, or the data cannot be corrupted in this way.

    Example:
        >>> x, y = torch.zeros(1, 1, 4, 2), torch.tensor([[[0, 1, 2, 2]]])
        >>> corrupt([Corruption("mirror-labels", (3,))], x, y, t=0, nodes=[3], seed=0, classes=3)[1]
        tensor([[[2, 1, 0, 0]]])
    """
    if not corruptions:
        return x, y
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(x)]
    if len(nodes) != len(y) or y.dim() < 3 or any(shape[:3] != tuple(y.shape[:3]) for shape in shapes):
        found = f"{len(nodes)} participants, x {', '.join(map(str, shapes))}, y {tuple(y.shape)}"
        raise ValueError(f"x and y must be [participants, steps, batch, ...]; found {found}.")
    # the steps that share a generator, and the first of them in the round: all, or each for itself
    steps = range(y.shape[1])
    drawn = [(slice(None), 0)] if first_step is None else [(slice(i, i + 1), first_step + i) for i in steps]
    bad_x, bad_y = x, y
    for row, node in enumerate(nodes):
        if not (applied := [c for c in corruptions if c.applies(t, node)]):
            continue
        own_seed, number = origins[row] if origins else (seed, node)
        for together, step in drawn:
            block = (row, together)
            own_x, own_y = row_x, row_y = at(x, block), y[block]
            generator = seeds.generator(own_seed, "corruption", t, number, *seeds.of_step(step))
            for c in applied:
                _check_possible(c, x, y, classes)
                row_x, row_y = CORRUPTIONS[c.kind].apply(row_x, row_y, c.strength, classes, generator)
            bad_x = bad_x if row_x is own_x else _with_block(bad_x, x, block, row_x)
            bad_y = bad_y if row_y is own_y else _with_block(bad_y, y, block, row_y)
    return bad_x, bad_y


def parse(text: str) -> Corruption:
    """Parse a corruption from the command line.

    Args:
        text: `kind:nodes[:strength][@from-to]`, see `faults.parse_fault`.

    Returns:
        The corruption.

    Raises:
        ValueError: If the text is malformed.

    Example:
        >>> parse("flip-labels:3,5:0.5@10-20")
        Corruption(kind='flip-labels', nodes=(3, 5), rounds=range(10, 21), strength=0.5)
    """
    without_strength = [name for name, kind in CORRUPTIONS.items() if not kind.most]
    return parse_fault(text, "corruption", Corruption, without_strength)


def _with_block(whole: Any, original: Any, block: tuple[Any, ...], values: Tensor) -> Tensor:
    """`whole` (a copy, if it is still the original) with these values in this block."""
    copy: Tensor = whole.clone() if whole is original else whole
    copy[block] = values
    return copy


def _check_possible(c: Corruption, x: Inputs, y: Tensor, classes: int) -> None:
    if c.kind == "noise" and not (isinstance(x, Tensor) and x.dtype.is_floating_point):
        kind = x.dtype if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"noise needs real-valued features; x is {kind}. Use flip-labels or permute-labels.")
    if c.kind in ("flip-labels", "mirror-labels") and (y.dtype.is_floating_point or classes < 2):
        raise ValueError(f"{c.kind} needs integer labels of at least 2 classes; y is {y.dtype}, classes {classes}.")
