"""Partitions: who holds which samples, as a list with one int64 tensor of indices per participant."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cascadice import seeds
from cascadice.names import lookup

Partition = list[Tensor]
Scheme = Callable[..., Partition]  # (labels, nodes, per_node=None, seed=0) -> partition


def iid(n_samples: int, nodes: int, per_node: int | None = None, *, seed: int = 0) -> Partition:
    """A random disjoint partition.

    Args:
        n_samples: How many samples to divide.
        nodes: How many participants.
        per_node: Samples per participant; defaults to all samples, divided as evenly as possible.
        seed: Seed of the random choice.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If there are too few samples.

    Example:
        >>> [len(part) for part in iid(100, 3)]
        [34, 33, 33]
    """
    _check_sizes(n_samples, nodes, per_node)
    order = torch.randperm(n_samples, generator=seeds.generator(seed, "partition", "iid"))
    return list(order[: None if per_node is None else nodes * per_node].tensor_split(nodes))


def with_replacement(n_samples: int, nodes: int, per_node: int | None = None, *, seed: int = 0) -> Partition:
    """Independent draws for each participant, so that participants overlap and samples recur.

    Args:
        n_samples: How many samples to divide.
        nodes: How many participants.
        per_node: Draws per participant; defaults to n_samples / nodes.
        seed: Seed of the draws.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If a number is less than 1.

    Example:
        >>> [len(part) for part in with_replacement(10, 3, per_node=6)]
        [6, 6, 6]
    """
    size = max(1, n_samples // max(1, nodes)) if per_node is None else per_node
    _check_sizes(n_samples, nodes, size, disjoint=False)
    return [
        torch.randint(n_samples, (size,), generator=seeds.generator(seed, "partition", "with-replacement", node))
        for node in range(nodes)
    ]


def dirichlet(
    labels: Tensor, nodes: int, alpha: float = 0.5, *, per_node: int | None = None, minimum: int = 1, seed: int = 0
) -> Partition:
    """A disjoint partition with skewed classes.

    Each class is divided in proportions drawn from Dirichlet(α) over participants, so sizes differ too (Yurochkin
    et al. 2019). With `per_node`, all have that size: each participant draws from its own Dirichlet(α) mix of classes
    while they last (Hsu et al. 2019).

    Args:
        labels: The class of each sample.
        nodes: How many participants.
        alpha: The smaller, the fewer classes each participant holds.
        per_node: Samples per participant; by default all samples are divided.
        minimum: The fewest samples of a participant; the largest participant gives away some of its own.
        seed: Seed of the random choice.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If labels are not classes, there are too few samples, or alpha is not positive.

    Example:
        >>> labels = torch.arange(100) % 2
        >>> counts(dirichlet(labels, 2, alpha=0.1, per_node=20), labels, 2).sum(1)
        tensor([20, 20])
    """
    if not alpha > 0 or not np.isfinite(alpha):
        raise ValueError(f"alpha must be positive and finite; found {alpha}. Use iid for no skew at all.")
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1 sample per participant; found {minimum}.")
    _check_labels(labels)
    _check_sizes(len(labels), nodes, minimum if per_node is None else per_node)
    generator = np.random.default_rng(seeds.derive(seed, "partition", "dirichlet"))
    pools = _shuffled_classes(labels, seed)
    if per_node is None:
        return _level(_divide_classes(pools, nodes, alpha, generator), minimum)
    return _fill(pools, nodes, per_node, alpha, generator)


def by_class(
    labels: Tensor, nodes: int, classes_per_node: int = 2, *, per_node: int | None = None, seed: int = 0
) -> Partition:
    """A disjoint partition in which each participant holds a few classes; the holders of a class share it evenly.

    If nodes × classes_per_node is less than the number of classes, some classes are held by no one.

    Args:
        labels: The class of each sample.
        nodes: How many participants.
        classes_per_node: How many classes each participant holds.
        per_node: How many random samples each participant keeps; defaults to all.
        seed: Seed of the random choice.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If labels are not classes, there are fewer classes, or a participant would get too few samples.

    Example:
        >>> labels = torch.arange(12) % 3
        >>> (counts(by_class(labels, 3, classes_per_node=1), labels, 3) > 0).sum(1)
        tensor([1, 1, 1])
    """
    _check_labels(labels)
    _check_sizes(len(labels), nodes, per_node)
    pools = _shuffled_classes(labels, seed)
    if not 1 <= classes_per_node <= len(pools):
        raise ValueError(
            f"classes_per_node must be in 1..{len(pools)}, the number of classes; found {classes_per_node}."
        )
    generator = seeds.generator(seed, "partition", "by-class")
    parts: list[list[Tensor]] = [[] for _ in range(nodes)]
    for pool, holders in zip(pools, _holders(len(pools), nodes, classes_per_node, generator), strict=True):
        for node, share in zip(holders, pool.tensor_split(max(1, len(holders))), strict=False):
            parts[node].append(share)
    partition = [torch.cat(part)[torch.randperm(sum(map(len, part)), generator=generator)] for part in parts]
    smallest = min(range(nodes), key=lambda node: len(partition[node]))
    if len(partition[smallest]) < (per_node or 1):
        found = f"participant {smallest} would hold {len(partition[smallest])}"
        raise ValueError(
            f"every participant must get {per_node or 1} samples; {found}. Use fewer participants or samples each."
        )
    return [p[:per_node] for p in partition]


def _holders(classes: int, nodes: int, classes_per_node: int, generator: torch.Generator) -> list[list[int]]:
    """The holders of each class: participants take turns to choose the classes with the fewest holders."""
    holders: list[list[int]] = [[] for _ in range(classes)]
    for node in range(nodes):
        ties = torch.rand(classes, generator=generator, dtype=torch.float64)
        for c in (torch.tensor([len(h) for h in holders]) + ties).argsort()[:classes_per_node].tolist():
            holders[c].append(node)
    return holders


class Kind(NamedTuple):
    """A named partition: `divide(labels, nodes, per_node=…, seed=…, **options)`."""

    divide: Scheme
    description: str
    options: tuple[str, ...] = ()


PARTITIONS: Mapping[str, Kind] = {
    "iid": Kind(lambda y, nodes, **k: iid(len(y), nodes, **k), "random and disjoint"),
    "with-replacement": Kind(
        lambda y, nodes, **k: with_replacement(len(y), nodes, **k), "independent draws, so that participants overlap"
    ),
    "dirichlet": Kind(dirichlet, "disjoint, classes skewed by Dirichlet(alpha)", ("alpha", "minimum")),
    "by-class": Kind(by_class, "disjoint, a few classes each", ("classes_per_node",)),
}


def build(
    name: str, labels: Tensor, nodes: int, *, per_node: int | None = None, seed: int = 0, **options: Any
) -> Partition:
    """Make a partition by name.

    Args:
        name: One of PARTITIONS.
        labels: The targets of the training samples.
        nodes: How many participants.
        per_node: Samples per participant.
        seed: Seed of the random choice.
        **options: Options of any partition; those of others than `name` are ignored.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If the name or an option is unknown, or the samples cannot be divided in this way.

    Example:
        >>> parts = build("dirichlet", torch.arange(100) % 10, nodes=4, alpha=0.1)
    """
    kind, known = lookup(PARTITIONS, name, "partition"), [o for kind in PARTITIONS.values() for o in kind.options]
    for option in options:
        lookup(dict.fromkeys(known), option, "option of a partition")
    own = {option: value for option, value in options.items() if option in kind.options}
    return kind.divide(labels, nodes, per_node=per_node, seed=seed, **own)


def scheme(name: str, **options: Any) -> Scheme:
    """A named partition with its options set, for `network(partition=…)`.

    Args:
        name: One of PARTITIONS.
        **options: `alpha` and `minimum` of "dirichlet", `classes_per_node` of "by-class".

    Returns:
        A function (labels, nodes, per_node, seed) -> partition.

    Raises:
        ValueError: If the name or an option is unknown.

    Example:
        >>> skewed = scheme("dirichlet", alpha=0.1)
        >>> parts = skewed(torch.arange(100) % 10, 4, seed=1)
    """
    known = dict.fromkeys(lookup(PARTITIONS, name, "partition").options)
    for option in options:
        lookup(known, option, f"option of {name}")
    return partial(build, name, **options)


def resolve(
    partition: str | Scheme | Sequence[Any], labels: Tensor, nodes: int, *, per_node: int | None = None, seed: int = 0
) -> Partition:
    """Make a partition from anything that `network(partition=…)` accepts.

    Args:
        partition: A name, a scheme such as `scheme("dirichlet", alpha=0.1)`, or index lists.
        labels: The targets of the training samples.
        nodes: How many participants.
        per_node: Samples per participant; not for index lists.
        seed: Seed of the random choice.

    Returns:
        The indices of each participant's samples.

    Raises:
        ValueError: If an index is out of range, or there are not as many parts as participants.

    Example:
        >>> resolve([[0, 1], [2, 3]], torch.zeros(4).long(), nodes=2)
        [tensor([0, 1]), tensor([2, 3])]
    """
    if isinstance(partition, str):
        partition = scheme(partition)
    if callable(partition):
        partition = partition(labels, nodes, per_node=per_node, seed=seed)
    elif per_node is not None:
        raise ValueError(f"per_node must be left out if the partition is given as index lists; found {per_node}.")
    if len(partition) != nodes:
        raise ValueError(f"the partition must have one part per participant; found {len(partition)} parts for {nodes}.")
    parts = [torch.as_tensor(part, dtype=torch.int64) for part in partition]
    for node, part in enumerate(parts):
        if len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(labels):
            limit = f"0..{len(labels) - 1}, the training samples"
            raise ValueError(f"a partition must hold indices in {limit}; participant {node} has others.")
    return parts


def counts(partition: Partition, labels: Int[Tensor, " samples"], classes: int) -> Int[Tensor, "nodes classes"]:
    """The number of samples of each class that each participant holds.

    Args:
        partition: The indices of each participant's samples.
        labels: The class of each sample.
        classes: The number of classes.

    Returns:
        `[participant, class]`.

    Example:
        >>> counts([torch.tensor([0, 1]), torch.tensor([2])], torch.tensor([1, 1, 0]), classes=2)
        tensor([[0, 2],
                [1, 0]])
    """
    held = [torch.bincount(labels[index.to(labels.device)], minlength=classes) for index in partition]
    return torch.stack(held).cpu()


def _divide_classes(pools: list[Tensor], nodes: int, alpha: float, generator: np.random.Generator) -> Partition:
    parts: list[list[Tensor]] = [[] for _ in range(nodes)]
    for pool in pools:
        ends = np.round(np.cumsum(generator.dirichlet(np.full(nodes, alpha))) * len(pool)).astype(int)
        for part, share in zip(parts, pool.tensor_split(ends[:-1].tolist()), strict=True):
            part.append(share)
    held = [torch.cat(part) for part in parts]
    return [part[torch.from_numpy(generator.permutation(len(part)))] for part in held]


def _level(partition: Partition, minimum: int) -> Partition:
    """Move samples one by one from the largest participant to the smallest until none has fewer than `minimum`."""
    held = [part.tolist() for part in partition]
    sizes = np.array([len(part) for part in held])
    while sizes[poorest := int(sizes.argmin())] < minimum:
        richest = int(sizes.argmax())
        held[poorest].append(held[richest].pop())
        sizes[poorest] += 1
        sizes[richest] -= 1
    return [torch.tensor(part) for part in held]


def _fill(pools: list[Tensor], nodes: int, per_node: int, alpha: float, generator: np.random.Generator) -> Partition:
    """Participants draw in turn, so that no one is left with only what the others did not choose."""
    # the floor leaves a choice once a participant's preferred classes are used up
    mix = np.maximum(generator.dirichlet(np.full(len(pools), alpha), size=nodes), 1e-12)
    left = [pool.tolist() for pool in pools]
    cumulative = np.cumsum(mix, axis=1).tolist()
    held: list[list[int]] = [[] for _ in range(nodes)]
    for draw in generator.random((per_node, nodes)):
        for node in range(nodes):
            c = bisect_right(cumulative[node], draw[node] * cumulative[node][-1])
            held[node].append(left[c].pop())
            if not left[c]:
                mix[:, c] = 0
                cumulative = np.cumsum(mix, axis=1).tolist()
    return [torch.tensor(part) for part in held]


def _shuffled_classes(labels: Tensor, seed: int) -> list[Tensor]:
    order = torch.randperm(len(labels), generator=seeds.generator(seed, "partition", "order"))
    shuffled = labels.cpu()[order]
    return [order[shuffled == c] for c in torch.unique(shuffled)]


def _check_labels(labels: Any) -> None:
    if labels.dim() != 1 or labels.dtype.is_floating_point:
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        remedy = "Give y[:, 0]" if labels.shape[1:] == (1,) else "Use iid instead"
        raise ValueError(f"dividing by class needs one integer label per sample; found {found}. {remedy}.")


def _check_sizes(n_samples: int, nodes: int, per_node: int | None, *, disjoint: bool = True) -> None:
    if nodes < 1:
        raise ValueError(f"there must be at least 1 participant; found {nodes}.")
    if per_node is not None and per_node < 1:
        raise ValueError(f"every participant must hold at least 1 sample; found {per_node}.")
    if n_samples < 1:
        raise ValueError("there must be at least 1 sample to divide; found 0.")
    if disjoint and nodes > n_samples:
        raise ValueError(
            f"more participants ({nodes}) than samples ({n_samples}); use fewer participants, or with-replacement."
        )
    if disjoint and per_node is not None and nodes * per_node > n_samples:
        raise ValueError(
            f"{nodes} participants × {per_node} samples need {nodes * per_node}, but there are {n_samples}; "
            f"use at most {n_samples // nodes} each, or with-replacement."
        )
