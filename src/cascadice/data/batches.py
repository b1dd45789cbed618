"""Which samples each participant sees in each round: a pure function of the round's number.

A round's batches are indices into the training samples, `[participants, steps, batch]`. Where participants differ in
their number of local steps or their batch size, the rest of a participant's block is filled with -1. In a watched loop
(see `engine.recorder`), batches of one participant may differ in size, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from cascadice import seeds
from cascadice.data.partition import Partition

Batches = Callable[[int], Tensor]  # t -> indices [participants, steps, batch]; any round can be asked for at any time
PerParticipant = int | Sequence[int]  # one number for everyone, or one for each participant
Counts = NDArray[np.int64]  # of each participant
PADDING = -1


def epochs(partition: Partition, batch_size: PerParticipant, *, steps: PerParticipant = 1, seed: int = 0) -> Batches:
    """Every participant walks its own data, freshly shuffled each epoch; an incomplete last batch is dropped.

    Local step s of round t uses the participant's batch number t·steps + s. Cost: a gather a round; at the start of an
    epoch, one permutation a participant. Not safe to call from several threads at once.

    Returns:
        The function t -> indices [participants, most steps, largest batch], padded with -1.

    Example:
        >>> from cascadice.data import partition
        >>> epochs(partition.iid(100, 2), [4, 3], steps=[1, 2])(0)[0]
        tensor([[89, 79, 73, 55],
                [-1, -1, -1, -1]])
    """
    return _Epochs([part.cpu() for part in partition], *_checked(partition, batch_size, steps), seed)


def of_some(batches: Batches, rows: Int[Tensor, " some"]) -> Batches:
    """The batches of these participants alone; `epochs` then does not draw those of the others.

    Example:
        >>> from cascadice.data import partition
        >>> of_some(epochs(partition.iid(100, 2), 4), torch.tensor([1]))(0)
        tensor([[[65, 67, 61, 50]]])
    """
    if isinstance(batches, _Epochs):
        return _Epochs(batches.partition, batches.batch_sizes, batches.steps, batches.seed, batches.some[rows.numpy()])
    return lambda t: batches(t)[rows]


class _Epochs:
    """Holds the orders of two epochs per participant, because a round may straddle their border.

    The held orders are only a cache: what is returned depends on `t` alone. `some` are the participants that it draws.
    """

    def __init__(
        self, partition: Sequence[Any], batch_sizes: Counts, steps: Counts, seed: int, some: Counts | None = None
    ) -> None:
        self.partition = [np.asarray(part) for part in partition]
        self.batch_sizes, self.steps, self.seed = batch_sizes, steps, seed
        self.some = np.arange(len(partition)) if some is None else some
        lengths = np.array([len(part) for part in partition])
        self.per_epoch = lengths // batch_sizes
        self.start = np.cumsum(lengths) - lengths
        self.held = np.full((2, len(partition)), -1)
        self.orders = np.empty((2, int(lengths.sum())), dtype=np.int64)
        self.within = np.arange(batch_sizes.max())
        self.absent = self.within >= batch_sizes[:, None]
        self.generator = torch.Generator()  # reseeded for each draw: making one takes longer than shuffling

    def __call__(self, t: int) -> Int[Tensor, "nodes steps batch"]:
        if t < 0:
            raise ValueError(f"rounds are numbered from 0; found {t}.")
        return torch.from_numpy(np.stack([self._batch(t, step) for step in range(self.steps.max())], axis=1))

    def _batch(self, t: int, step: int) -> NDArray[np.int64]:
        idle = step >= self.steps
        epoch, position = np.divmod(t * self.steps + np.where(idle, 0, step), self.per_epoch)
        slot = epoch % 2
        for node in self.some[self.held[slot[self.some], self.some] != epoch[self.some]]:
            self._shuffle(int(node), int(epoch[node]))
        places = (self.start + position * self.batch_sizes)[:, None] + self.within
        batch: NDArray[np.int64] = self.orders[slot[:, None], np.minimum(places, self.orders.shape[1] - 1)]
        batch[self.absent | idle[:, None]] = PADDING
        return batch[self.some]

    def _shuffle(self, node: int, epoch: int) -> None:
        own = self.partition[node]
        self.generator.manual_seed(seeds.derive(self.seed, "batches", node, epoch))
        order = torch.randperm(len(own), generator=self.generator).numpy()
        self.orders[epoch % 2, self.start[node] : self.start[node] + len(own)] = own[order]
        self.held[epoch % 2, node] = epoch


def rounds_per_epoch(partition: Partition, batch_size: PerParticipant, steps: PerParticipant = 1) -> int:
    """Rounds in which the participants together process as many whole batches as they hold.

    Example:
        >>> from cascadice.data import partition
        >>> rounds_per_epoch(partition.iid(120, 3), batch_size=10)
        4
    """
    batch_sizes, per_round = _checked(partition, batch_size, steps)
    whole = sum(len(part) // int(size) for part, size in zip(partition, batch_sizes, strict=True))
    return -(-whole // int(per_round.sum()))


def given(index: Int[Tensor, "rounds nodes steps batch"], *, n_samples: int | None = None) -> Batches:
    """The batches of a finite number of rounds, supplied as indices.

    Args:
        index: Indices of training samples; -1 after the last sample or step of a participant that has fewer.
        n_samples: The number of training samples, if indices are to be checked against it.

    Example:
        >>> batches = given(torch.tensor([[[[0, 1]], [[2, 3]]]]), n_samples=4)  # one round of two participants
        >>> batches(0)
        tensor([[[0, 1]],
        <BLANKLINE>
                [[2, 3]]])
    """
    for t, batch in enumerate(index):
        check_round(batch, n_samples, t)

    def batches(t: int) -> Int[Tensor, "nodes steps batch"]:
        if not 0 <= t < len(index):
            raise ValueError(f"batches were given for rounds 0..{len(index) - 1}; round {t} was asked for.")
        return index[t]

    return batches


def check_round(batch: Tensor, n_samples: int | None, t: int, uneven: bool = False) -> Tensor:
    """Round t's batch, or a ValueError that names the first index that is out of range or padded in the wrong place.

    Unless it may be `uneven`, everybody must make a step, and a participant's batches must have one size.
    """
    if batch.dim() != 3:
        raise ValueError(f"the batches of a round must be [participants, steps, batch]; found {list(batch.shape)}.")
    present = batch != PADDING
    steps, size = present[:, :, 0].sum(1), present.sum(2)
    if not uneven:
        steps, size = steps.clamp(min=1), size[:, :1].clamp(min=1)
    block = _below(steps, batch.shape[1])[:, :, None] & _below(size, batch.shape[2])
    outside = (batch < 0) | (batch >= (2**63 - 1 if n_samples is None else n_samples))
    bad = (present != block) | (present & outside)
    if bad.any():
        node, step, place = bad.nonzero()[0].tolist()
        limit = "" if n_samples is None else f" and below {n_samples}, the number of samples"
        raise ValueError(
            f"batch indices must be at least 0{limit}; -1 may only follow a participant's last sample or step. "
            f"Round {t}, participant {node}, step {step}, place {place} has {int(batch[node, step, place])}."
        )
    return batch


def sizes(batch: Int[Tensor, "nodes steps batch"]) -> list[tuple[int, int]]:
    """(local steps, size of the first batch) of each participant in a round's batch, padding left out.

    Example:
        >>> sizes(torch.tensor([[[0, 1], [2, 3]], [[4, -1], [-1, -1]]]))
        [(2, 2), (1, 1)]
    """
    present = batch != PADDING
    return list(zip(present[:, :, 0].sum(1).tolist(), present[:, 0].sum(1).tolist(), strict=True))


def _below(counts: Int[Tensor, "*shape"], length: int) -> Bool[Tensor, "*shape length"]:
    return torch.arange(length, device=counts.device) < counts[..., None]


def _checked(partition: Partition, batch_size: PerParticipant, steps: PerParticipant) -> tuple[Counts, Counts]:
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
