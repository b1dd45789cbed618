"""Batches: the samples that each participant uses in each round, as a pure function of the round's number.

A round's batches are indices into the training samples, `[participants, steps, batch]`. If participants differ in local
steps or batch size, the rest of a participant's block is padded with -1. Batches given as indices, or seen in a loop
that a `Recorder` watches, may differ in number and size from round to round and from step to step.
"""

from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from cascadice import seeds
from cascadice.data.partition import Partition

Batches = Callable[[int], Tensor]  # t -> indices [participants, steps, batch], for any round in any order
PerParticipant = int | Sequence[int]  # one number for everyone, or one for each participant
Counts = NDArray[np.int64]  # one per participant
PADDING = -1
EXPECTED = "the batches of a round must be indices [participants, steps, batch], or a list of indices for each of them"
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def epochs(partition: Partition, batch_size: PerParticipant, *, steps: PerParticipant = 1, seed: int = 0) -> Batches:
    """Every participant goes through its own data, reshuffled each epoch; an incomplete last batch is dropped.

    Local step s of round t uses the participant's batch number t·steps + s. Cost: one gather per round; at the start of
    an epoch, one permutation per participant. Not safe to call from several threads at once.

    Args:
        partition: The indices of each participant's samples.
        batch_size: One size for everyone, or one per participant.
        steps: Local steps per round, one number for everyone, or one per participant.
        seed: Seed of the shuffles.

    Returns:
        The function t -> indices [participants, most steps, largest batch], padded with -1.

    Raises:
        ValueError: If a participant holds fewer samples than a batch, or a number is less than 1.

    Example:
        >>> from cascadice.data import partition
        >>> epochs(partition.iid(100, 2), [4, 3], steps=[1, 2])(0)[0]
        tensor([[89, 79, 73, 55],
                [-1, -1, -1, -1]])
    """
    return _Epochs([part.cpu() for part in partition], *_checked(partition, batch_size, steps), seed)


def of_some(batches: Batches, rows: Int[Tensor, " some"]) -> Batches:
    """The batches of these participants only; those of `epochs` are then not drawn for the others."""
    if isinstance(batches, _Epochs):
        return batches.of_some(rows.tolist())
    return lambda t: batches(t)[rows]


class _Epochs:
    """Caches the shuffled orders of two epochs per participant, because a round may straddle two epochs.

    What it returns depends on `t` alone. `nodes` are the participants' numbers in the whole network; `shape` has the
    network's largest number of steps and batch size.
    """

    def __init__(
        self, partition: Sequence[Any], batch_sizes: Counts, steps: Counts, seed: int,
        nodes: Sequence[int] = (), shape: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.partition = [np.asarray(part) for part in partition]
        self.batch_sizes, self.steps, self.seed = batch_sizes, steps, seed
        self.nodes, self.shape = nodes or range(len(partition)), shape or (int(steps.max()), int(batch_sizes.max()))
        lengths = np.array([len(part) for part in partition])
        self.per_epoch = lengths // batch_sizes
        self.start = np.cumsum(lengths) - lengths
        self.held = np.full((2, len(partition)), -1)
        self.orders = np.empty((2, int(lengths.sum())), dtype=np.int64)
        self.within = np.arange(self.shape[1])
        self.absent = self.within >= batch_sizes[:, None]
        self.generator = torch.Generator()  # reseeded for each draw: making one takes longer than shuffling

    def __call__(self, t: int) -> Int[Tensor, "nodes steps batch"]:
        if t < 0:
            raise ValueError(f"rounds are numbered from 0; found {t}.")
        return torch.from_numpy(np.stack([self._batch(t, step) for step in range(self.shape[0])], axis=1))

    def of_some(self, rows: Sequence[int]) -> "_Epochs":
        own = [self.partition[row] for row in rows]
        nodes = [self.nodes[row] for row in rows]
        return _Epochs(own, self.batch_sizes[rows], self.steps[rows], self.seed, nodes, self.shape)

    def _batch(self, t: int, step: int) -> NDArray[np.int64]:
        idle = step >= self.steps
        epoch, position = np.divmod(t * self.steps + np.where(idle, 0, step), self.per_epoch)
        slot = epoch % 2
        for row in np.flatnonzero(self.held[slot, np.arange(len(slot))] != epoch):
            self._shuffle(int(row), int(epoch[row]))
        positions = (self.start + position * self.batch_sizes)[:, None] + self.within
        batch: NDArray[np.int64] = self.orders[slot[:, None], np.minimum(positions, self.orders.shape[1] - 1)]
        batch[self.absent | idle[:, None]] = PADDING
        return batch

    def _shuffle(self, row: int, epoch: int) -> None:
        own = self.partition[row]
        self.generator.manual_seed(seeds.derive(self.seed, "batches", self.nodes[row], epoch))
        order = torch.randperm(len(own), generator=self.generator).numpy()
        self.orders[epoch % 2, self.start[row] : self.start[row] + len(own)] = own[order]
        self.held[epoch % 2, row] = epoch


def rounds_per_epoch(partition: Sequence[Sized], batch_size: PerParticipant, steps: PerParticipant = 1) -> int:
    """The number of rounds in which participants together use as many batches as they hold.

    Args:
        partition: The indices of each participant's samples.
        batch_size: One size for everyone, or one per participant.
        steps: Local steps per round, one number for everyone, or one per participant.

    Returns:
        The rounds of one epoch, rounded up.

    Raises:
        ValueError: If a participant holds fewer samples than a batch, or a number is less than 1.

    Example:
        >>> from cascadice.data import partition
        >>> rounds_per_epoch(partition.iid(120, 3), batch_size=10)
        4
    """
    batch_sizes, per_round = _checked(partition, batch_size, steps)
    whole = sum(len(part) // int(size) for part, size in zip(partition, batch_sizes, strict=True))
    return -(-whole // int(per_round.sum()))


def given(index: Int[Tensor, "rounds nodes steps batch"], *, n_samples: int | None = None) -> Batches:
    """The batches of a fixed number of rounds, given as indices.

    Args:
        index: Indices of training samples; -1 pads participants with fewer samples or steps. A participant may have
            more in one round than in another, and none at all in some.
        n_samples: The number of training samples, to check the indices against.

    Returns:
        The function t -> indices; it raises ValueError for rounds beyond the last.

    Raises:
        ValueError: If an index is out of range, or -1 stands between samples.

    Example:
        >>> batches = given(torch.tensor([[[[0, 1]], [[2, 3]]]]), n_samples=4)  # one round of two participants
        >>> batches(0)
        tensor([[[0, 1]],
        <BLANKLINE>
                [[2, 3]]])
    """
    for t, batch in enumerate(index):
        check_round(batch, n_samples, t)
    index = index.long()

    def batches(t: int) -> Int[Tensor, "nodes steps batch"]:
        if not 0 <= t < len(index):
            raise ValueError(f"batches were given for rounds 0..{len(index) - 1}; round {t} was requested.")
        return index[t]

    return batches


def padded(rows: Sequence[Any]) -> Int[Tensor, "nodes steps batch"]:
    """A round's batches as one block, padded with -1.

    A row is the indices of a participant's batch, or a sequence with those of each local step; if empty, it does not
    train.

    Example:
        >>> padded([[0, 1, 2], [[3], [4, 5]], []]).tolist()
        [[[0, 1, 2], [-1, -1, -1]], [[3, -1, -1], [4, 5, -1]], [[-1, -1, -1], [-1, -1, -1]]]
    """
    if not isinstance(rows, Sequence):
        raise TypeError(f"{EXPECTED}; found {type(rows).__name__}.")
    each = [_steps_of(k, row) for k, row in enumerate(rows)]
    most = max([1, *map(len, each)])
    size = max((len(indices) for steps in each for indices in steps), default=1)
    block = torch.full((len(each), most, size), PADDING)
    for k, steps in enumerate(each):
        for step, indices in enumerate(steps):
            block[k, step, : len(indices)] = indices
    return block


def _steps_of(k: int, row: Any) -> list[Int[Tensor, " batch"]]:
    """The batches of participant k, one for each local step; empty ones are left out."""
    try:
        several = any(np.ndim(step) for step in row)
        steps = [torch.as_tensor(step) for step in (row if several else [row])]
    except (TypeError, ValueError, RuntimeError):
        steps = []
    wrong = any(step.dim() != 1 or (len(step) and step.dtype not in WHOLE) for step in steps)
    if wrong or not steps:
        raise TypeError(f"{EXPECTED}; participant {k} has {row!r}.")
    return [step for step in steps if len(step)]


def check_round(batch: Tensor, n_samples: int | None, t: int) -> Tensor:
    """Return round t's batches; raise ValueError naming the first index that is out of range or wrongly padded."""
    if batch.dtype not in WHOLE:
        raise TypeError(f"batches must be whole numbers, the indices of samples; found {batch.dtype}.")
    if batch.dim() != 3 or not batch.numel():
        raise ValueError(f"the batches of a round must be [participants, steps, batch]; found {list(batch.shape)}.")
    batch = batch.long()
    present = batch != PADDING
    steps, positions = (torch.arange(length, device=batch.device) for length in batch.shape[1:])
    trained = steps < present[:, :, 0].sum(1, keepdim=True)
    block = trained[:, :, None] & (positions < present.sum(2, keepdim=True))
    outside = (batch < 0) | (batch >= (2**63 - 1 if n_samples is None else n_samples))
    bad = (present != block) | (present & outside)
    if bad.any():
        node, step, position = bad.nonzero()[0].tolist()
        limit = "" if n_samples is None else f" and below {n_samples}, the number of samples"
        raise ValueError(
            f"batch indices must be at least 0{limit}; -1 may only follow a participant's last sample or step. "
            f"Round {t}, participant {node}, step {step}, position {position} has {int(batch[node, step, position])}."
        )
    return batch


def is_even(index: Int[Tensor, "rounds nodes steps batch"]) -> bool:
    """Whether everybody trains in every round, always with its own number of steps and batch size."""
    present = index != PADDING
    regular = present[:, :, :1] & present[..., :1]  # every step has the size of the first
    return bool((present == present[:1]).all() and (present == regular).all() and present[:, :, 0, 0].all())


def sizes(batch: Int[Tensor, "nodes steps batch"]) -> list[tuple[int, int]]:
    """(local steps, size of the first batch) of each participant in a round, without padding.

    Example:
        >>> sizes(torch.tensor([[[0, 1], [2, 3]], [[4, -1], [-1, -1]]]))
        [(2, 2), (1, 1)]
    """
    present = batch != PADDING
    return list(zip(present[:, :, 0].sum(1).tolist(), present[:, 0].sum(1).tolist(), strict=True))


def used(batches: Sequence[Int[Tensor, "nodes _ _"]]) -> Partition:
    """The samples that each participant used in these batches."""
    each = (torch.cat([batch[k].flatten() for batch in batches]) for k in range(len(batches[0])))
    return [torch.unique(numbers[numbers != PADDING]) for numbers in each]


def _checked(partition: Sequence[Sized], batch_size: PerParticipant, steps: PerParticipant) -> tuple[Counts, Counts]:
    if not partition:
        raise ValueError("there must be at least 1 participant; the partition is empty.")
    batch_sizes = _per_participant(batch_size, len(partition), "batch_size")
    for node, (part, size) in enumerate(zip(partition, batch_sizes, strict=True)):
        if len(part) < size:
            raise ValueError(
                f"a batch must fit into each participant's data; participant {node} holds {len(part)} samples, "
                f"batch_size is {size}. Use a smaller batch or fewer participants."
            )
    return batch_sizes, _per_participant(steps, len(partition), "local steps")


def _per_participant(value: Any, nodes: int, what: str) -> Counts:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(f"{what} must be a whole number, or one for each participant; found {value!r}.")
    if array.ndim and len(array) != nodes:
        raise ValueError(f"{what} must have one entry for each of the {nodes} participants; found {len(array)}.")
    if array.min() < 1:
        raise ValueError(f"{what} must be at least 1; found {array.min()}.")
    return np.broadcast_to(array, (nodes,)).astype(np.int64)
