"""Who holds which training samples, and which of them are drawn in each round: from what a user gives."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from cascadice.data import batches as batch_plans
from cascadice.data import partition as partitions
from cascadice.data.batches import PADDING, Batches
from cascadice.data.partition import Partition
from cascadice.names import lookup

BATCH_SIZE, LOCAL_STEPS = 32, 1  # unless given


class Given(NamedTuple):
    """What a user says about the data of participants; None where it is left open."""

    partition: Any
    per_node: int | None
    batch_size: int | Sequence[int] | None
    local_steps: int | Sequence[int] | None
    batches: Batches | Tensor | None
    options: dict[str, Any]


def plan(given: Given, labels: Tensor, nodes: int, seed: int) -> tuple[Partition | None, Batches]:
    """Who holds what, unknown where only batches are given, and what is drawn in each round."""
    if given.batches is not None:
        _check_used(given)
    size = BATCH_SIZE if given.batch_size is None else given.batch_size
    holdings = None
    if given.partition is not None or given.batches is None:
        least = max(size) if isinstance(size, Sequence) else size
        scheme = _scheme("iid" if given.partition is None else given.partition, given.options, least)
        holdings = partitions.resolve(scheme, labels, nodes, per_node=given.per_node, seed=seed)
    if given.batches is not None:
        return holdings, _checked(given.batches, holdings, len(labels))
    assert holdings is not None
    steps = LOCAL_STEPS if given.local_steps is None else given.local_steps
    for name, value in (("batch_size", size), ("local_steps", steps)):
        if isinstance(value, Sequence) and len(value) != nodes:
            raise ValueError(f"{name} must be one number, or one for each of {nodes} participants; found {len(value)}.")
    return holdings, batch_plans.epochs(holdings, size, steps=steps, seed=seed)


def _check_used(given: Given) -> None:
    """Beside batches there must be no options that say what to draw, or how to draw a partition that is not given."""
    named = ["batch_size", "local_steps", *(["per_node"] if given.partition is None else [])]
    unused = [name for name in named if getattr(given, name) is not None]
    unused += list(given.options) if given.partition is None else []
    if unused:
        raise TypeError(
            f"with batches given, network() makes no use of {', '.join(unused)}. Leave out one or the other."
        )


def _scheme(partition: Any, options: dict[str, Any], least: int) -> Any:
    """The partition with its options; what was given as a scheme or as index lists has none."""
    if not isinstance(partition, str):
        if options:
            raise TypeError(f"{next(iter(options))!r} is an option of a named partition; found one that is not named.")
        return partition
    known = lookup(partitions.PARTITIONS, partition, "partition").options
    if strange := next((name for name in options if name not in known), None):
        raise TypeError(
            f"network() got an unexpected argument {strange!r}; options of the partition {partition!r}: "
            f"{', '.join(known) or 'none'}."
        )
    return partitions.scheme(partition, **(({"minimum": least} if "minimum" in known else {}) | options))


def _checked(given: Batches | Tensor, holdings: Partition | None, samples: int) -> Batches:
    """The batches, checked as they are drawn; those of a tensor at once."""
    held = None if holdings is None else _pairs(holdings, samples)
    batches = batch_plans.given(given, n_samples=samples) if isinstance(given, Tensor) else given
    for t, batch in enumerate(given if isinstance(given, Tensor) else ()):
        _check_held(batch, held, samples, t)
    sizes = batch_plans.sizes(batch_plans.check_round(batches(0), samples, 0))
    return partial(_checked_batch, batches, held, samples, sizes)


def _checked_batch(batches: Batches, held: Tensor | None, samples: int, sizes: list[tuple[int, int]], t: int) -> Tensor:
    batch = batch_plans.check_round(batches(t), samples, t)
    for k, (now, first) in enumerate(zip(batch_plans.sizes(batch), sizes, strict=True)):
        if now != first:
            raise ValueError(
                f"participants must keep their number of steps and batch size; {k} has {now} in round {t}, {first} in "
                "round 0. Pad the batches alike, or drop incomplete last ones."
            )
    _check_held(batch, held, samples, t)
    return batch


def _pairs(holdings: Partition, samples: int) -> Int[Tensor, " held"]:
    """Every (participant, sample) that belong together, as one sorted number each; the first one is of nobody."""
    numbered = (k * samples + part.cpu() for k, part in enumerate(holdings))
    return torch.cat([torch.tensor([PADDING]), *numbered]).sort().values


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
            "which the partition does not give it. Leave out the partition, or draw from it."
        )
