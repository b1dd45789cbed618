"""Learning-rate schedules: pure functions from the step number (0 is the first) to the learning rate.

Example:
    >>> schedule = warmup(cosine(0.2, total=100), steps=4)
    >>> schedule(0), schedule(100)
    (0.05, 0.0)
"""

from collections.abc import Callable, Iterable, Sequence
from math import cos, isfinite, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascadice.names import lookup

Schedule = Callable[[int], float | Tensor]  # step -> one rate for everyone, or a rate for each participant [n]


def constant(lr: float) -> Schedule:
    """The same learning rate at every step.

    Args:
        lr: The learning rate.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> constant(0.1)(1000)
        0.1
    """
    _require_rate(lr)
    return lambda step: lr


def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """lr · factor^⌊step / every⌋, as torch.optim.lr_scheduler.StepLR.

    Args:
        lr: The learning rate at the start.
        every: Steps between decays.
        factor: What to multiply the rate by.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> step_decay(0.1, every=30, factor=0.5)(30)
        0.05
    """
    _require_rate(lr)
    _require_steps(every, "steps between decays")
    if not 0 < factor <= 1:
        raise ValueError(f"the decay factor must lie in (0, 1]; found {factor}.")
    return lambda step: lr * factor ** (step // every)


def cosine(lr: float, total: int, floor: float = 0.0) -> Schedule:
    """From `lr` down to `floor` on half a cosine over `total` steps, then `floor` (Loshchilov & Hutter 2017).

    Args:
        lr: The learning rate at the start.
        total: Steps until the floor.
        floor: The rate at the end.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> [round(cosine(0.1, total=4)(step), 3) for step in range(6)]
        [0.1, 0.085, 0.05, 0.015, 0.0, 0.0]
    """
    _require_rate(lr)
    _require_steps(total, "total steps")
    if not 0 <= floor <= lr:
        raise ValueError(f"the floor must lie between 0 and lr = {lr}; found {floor}.")
    return lambda step: floor + (lr - floor) * (1 + cos(pi * min(step, total) / total)) / 2


def warmup(schedule: Schedule, steps: int) -> Schedule:
    """The schedule multiplied by (step + 1) / steps during the first `steps` steps; the rest is not shifted.

    Args:
        schedule: The schedule to warm up.
        steps: How many steps the rise takes.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> [warmup(constant(0.1), steps=4)(step) for step in (0, 1, 3, 9)]
        [0.025, 0.05, 0.1, 0.1]
    """
    _require_steps(steps, "warm-up steps")
    return lambda step: schedule(step) * min(1.0, (step + 1) / steps)


def per_participant(rates: Iterable[Any]) -> Schedule:
    """A separate rate for each participant.

    Args:
        rates: For each participant, a number or a schedule of numbers.

    Returns:
        The schedule step -> float64 tensor [n].

    Example:
        >>> per_participant([0.1, cosine(0.2, total=10)])(10)
        tensor([0.1000, 0.0000], dtype=torch.float64)
    """
    schedules = [_one_rate(rate) for rate in rates]
    return lambda step: torch.tensor([float(schedule(step)) for schedule in schedules], dtype=torch.float64)


def resolve(lr: Any, nodes: int | None = None) -> Schedule:
    """Make a schedule from anything that `network(lr=…)` accepts.

    Args:
        lr: A number (also a 0-dim tensor or NumPy scalar), a function of the step, or a sequence of these, one per
            participant.
        nodes: The number of participants.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If there is not one rate per participant.
        TypeError: If it is something else.

    Example:
        >>> resolve(0.1)(7)
        0.1
    """
    row = isinstance(lr, (Tensor, np.ndarray)) and lr.ndim == 1
    if row or (isinstance(lr, Sequence) and not isinstance(lr, str)):
        if nodes is not None and len(lr) != nodes:
            raise ValueError(f"lr must have one entry for each of the {nodes} participants; found {len(lr)}.")
        return per_participant(lr)
    return _one_rate(lr)


def _one_rate(lr: Any) -> Schedule:
    if callable(lr) and not isinstance(lr, type):
        schedule: Schedule = lr
        return schedule
    scalar = lr.item() if isinstance(lr, (Tensor, np.ndarray, np.generic)) and lr.ndim == 0 else lr
    if isinstance(scalar, bool) or not isinstance(scalar, (int, float)):
        raise TypeError(f"lr must be a number or a function of the round; found {lr!r}.")
    return constant(float(scalar))


class Form(NamedTuple):
    """How a schedule is written on the command line."""

    text: str
    description: str
    readers: tuple[Callable[[str], Any], ...] = ()


SCHEDULES: dict[str, Form] = {
    "constant": Form("constant", "the same learning rate throughout"),
    "step": Form("step:EVERY:FACTOR", "multiplied by FACTOR after each EVERY steps", (int, float)),
    "cosine": Form("cosine", "half a cosine from the learning rate to 0 at the end of the run"),
    "warmup": Form(
        "warmup:STEPS+SCHEDULE", "any other schedule, with a linear rise over the first STEPS steps", (int,)
    ),
}


def parse(text: str, lr: float, total: int) -> Schedule:
    """Parse a schedule from the command line.

    Args:
        text: One of the forms of SCHEDULES.
        lr: The learning rate.
        total: The number of steps, after which a cosine ends.

    Returns:
        The schedule step -> rate.

    Raises:
        ValueError: If the text is malformed.

    Example:
        >>> parse("warmup:4+cosine", lr=0.2, total=100)(0)
        0.05
    """
    part, plus, rest = text.partition("+")
    name, *fields = part.split(":")
    form = lookup(SCHEDULES, name, "learning-rate schedule")
    try:
        numbers = [read(field) for read, field in zip(form.readers, fields, strict=True)]
    except ValueError:
        numbers = None
    if numbers is None or bool(plus) != (name == "warmup"):
        raise ValueError(f"the learning-rate schedule {name} must be written {form.text}; found {text!r}.")
    match name:
        case "step":
            return step_decay(lr, *numbers)
        case "cosine":
            return cosine(lr, total)
        case "warmup":
            return warmup(parse(rest, lr, total), *numbers)
    return constant(lr)


def _require_rate(lr: float) -> None:
    if not (lr >= 0 and isfinite(lr)):
        raise ValueError(f"the learning rate must be finite and at least 0; found {lr}.")


def _require_steps(steps: int, what: str) -> None:
    if steps < 1:
        raise ValueError(f"the number of {what} must be at least 1; found {steps}.")
