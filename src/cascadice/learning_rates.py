"""Learning-rate schedules: pure functions from the step number (0 is the first) to the learning rate."""

from collections.abc import Callable
from math import cos, isfinite, pi
from typing import Any, NamedTuple

from cascadice.names import lookup

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """`lr` at every step."""
    _require_rate(lr)
    return lambda step: lr


def step_decay(lr: float, every: int, factor: float = 0.1) -> Schedule:
    """lr · factor^⌊step / every⌋."""
    _require_rate(lr)
    _require_steps(every, "steps between decays")
    if not 0 < factor <= 1:
        raise ValueError(f"the decay factor must lie in (0, 1]; found {factor}.")
    return lambda step: lr * factor ** (step // every)


def cosine(lr: float, total: int, floor: float = 0.0) -> Schedule:
    """From `lr` down to `floor` on half a cosine over `total` steps, then `floor` (Loshchilov & Hutter 2017)."""
    _require_rate(lr)
    _require_steps(total, "total steps")
    if not 0 <= floor <= lr:
        raise ValueError(f"the floor must lie between 0 and lr = {lr}; found {floor}.")
    return lambda step: floor + (lr - floor) * (1 + cos(pi * min(step, total) / total)) / 2


def warmup(schedule: Schedule, steps: int) -> Schedule:
    """The schedule, times (step + 1) / steps during the first `steps` steps; what follows is not shifted."""
    _require_steps(steps, "warm-up steps")
    return lambda step: schedule(step) * min(1.0, (step + 1) / steps)


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
    """The schedule written as `text` (the forms in SCHEDULES), for a run of `total` steps.

    >>> parse("constant", lr=0.1, total=100)(50)
    0.1
    >>> parse("step:30:0.5", lr=0.1, total=100)(30)
    0.05
    >>> parse("warmup:4+cosine", lr=0.2, total=100)(0)
    0.05
    """
    part, plus, rest = text.partition("+")
    name, *fields = part.split(":")
    form = lookup(SCHEDULES, name, "learning-rate schedule")
    numbers = _read(fields, form.readers)
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


def _read(fields: list[str], readers: tuple[Callable[[str], Any], ...]) -> list[Any] | None:
    try:
        return [read(field) for read, field in zip(readers, fields, strict=True)]
    except ValueError:
        return None


def _require_rate(lr: float) -> None:
    if not (lr >= 0 and isfinite(lr)):
        raise ValueError(f"the learning rate must be finite and at least 0; found {lr}.")


def _require_steps(steps: int, what: str) -> None:
    if steps < 1:
        raise ValueError(f"the number of {what} must be at least 1; found {steps}.")
