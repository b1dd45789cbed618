"""Who holds which training samples, and which of them each round draws, from the options of `network`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cascadice.data import batches as batch_plans
from cascadice.data import partition as partitions
from cascadice.data.batches import PADDING, Batches
from cascadice.data.partition import Partition
from cascadice.names import lookup

BATCH_SIZE, LOCAL_STEPS = 32, 1  # defaults


Plan = tuple[Partition | None, Batches, bool]
"""The partition (None if only batches are given), what each round draws, and whether batches vary in size."""


def plan_data(
    labels: Tensor, nodes: int, seed: int, partition: Any, per_node: int | None,
    batch_size: int | Sequence[int] | None, local_steps: int | Sequence[int] | None, batches: Any,
    options: dict[str, Any],
) -> Plan:  # fmt: skip
    """Decide who holds which samples and what each round draws, from the arguments of `network`."""
    if batches is not None:  # refuse what has no effect beside it: how to draw, or to make a partition not asked for
        drawing = {"batch_size": batch_size, "local_steps": local_steps}
        making = {"per_node": per_node} if partition is None else {}
        unused = [name for name, value in (drawing | making).items() if value is not None]
        unused += options if partition is None else []
        if unused:
            raise TypeError(f"if batches are given, network() ignores {', '.join(unused)}. Leave out one or the other.")
        if partition is None:
            return _checked(batches, None, len(labels), nodes)
    size = BATCH_SIZE if batch_size is None else batch_size
    least = max(size) if isinstance(size, Sequence) else size
    scheme = _scheme("iid" if partition is None else partition, options, least)
    holdings = partitions.resolve(scheme, labels, nodes, per_node=per_node, seed=seed)
    if batches is not None:
        return _checked(batches, holdings, len(labels), nodes)
    steps = LOCAL_STEPS if local_steps is None else local_steps
    for name, value in (("batch_size", size), ("local_steps", steps)):
        if isinstance(value, Sequence) and len(value) != nodes:
            raise ValueError(f"{name} must be one number, or one for each of {nodes} participants; found {len(value)}.")
    return holdings, batch_plans.epochs(holdings, size, steps=steps, seed=seed), False


def _scheme(partition: Any, options: dict[str, Any], least: int) -> Any:
    """The partition with its options; only named ones have options."""
    if not isinstance(partition, str):
        if options:
            raise TypeError(f"{next(iter(options))!r} is an option of a named partition; this one has no name.")
        return partition
    known = lookup(partitions.PARTITIONS, partition, "partition").options
    if unknown := next((name for name in options if name not in known), None):
        raise TypeError(
            f"network() got an unexpected argument {unknown!r}; options of the partition {partition!r}: "
            f"{', '.join(known) or 'none'}."
        )
    return partitions.scheme(partition, **(({"minimum": least} if "minimum" in known else {}) | options))


def _checked(given: Any, holdings: Partition | None, samples: int, nodes: int) -> Plan:
    """The batches, checked as they are drawn; a tensor is checked at once."""
    if not isinstance(given, Tensor) and not callable(given):
        kind = type(given).__name__
        raise TypeError(f"batches must be a tensor [rounds, n, steps, batch] or a function of the round; found {kind}.")
    held = None
    if holdings is not None:  # each (participant, sample) as one number, sorted; the first, PADDING, stands for none
        numbered = (k * samples + part.cpu() for k, part in enumerate(holdings))
        held = torch.cat([torch.tensor([PADDING]), *numbered]).sort().values
    if not isinstance(given, Tensor):  # what it will return is not known before
        return holdings, partial(_checked_batch, given, held, samples, nodes), True
    batches = batch_plans.given(given, n_samples=samples)
    for t, batch in enumerate(given):
        _check_held(batch, held, samples, t)
    return holdings, batches, not batch_plans.is_even(given)


def _checked_batch(batches: Callable[[int], Any], held: Tensor | None, samples: int, nodes: int, t: int) -> Tensor:
    """What a user's function returns for round t, as one padded block."""
    rows = batches(t)
    batch = batch_plans.check_round(rows if isinstance(rows, Tensor) else batch_plans.padded(rows), samples, t)
    if len(batch) != nodes:
        raise ValueError(f"there must be {nodes} participants in the batches of a round; round {t} has {len(batch)}.")
    _check_held(batch, held, samples, t)
    return batch


def _check_held(batch: Int[Tensor, "n steps size"], held: Tensor | None, samples: int, t: int) -> None:
    if held is None:
        return
    drawn = batch.cpu()
    wanted = drawn + samples * torch.arange(len(drawn))[:, None, None]
    there = held[torch.searchsorted(held, wanted).clamp(max=len(held) - 1)] == wanted
    missing = ~there & (drawn != PADDING)
    if bool(missing.any()):
        k, step, place = missing.nonzero()[0].tolist()
        raise ValueError(
            f"participants must draw from their own part; {k} draws sample {int(drawn[k, step, place])} in round {t}, "
            "which it does not hold. Leave out the partition, or draw from it."
        )
