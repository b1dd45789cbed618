"""Which samples each participant sees in each round: a pure function of the round's number."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from cascadice import seeds
from cascadice.data.partition import Partition

# Round t's indices into the training samples, [nodes, steps, batch]; any round, in any order, gives the same.
Batches = Callable[[int], Tensor]


class _Epochs:
    """Walks shuffled epochs. Holds two of them per participant, so that a round may straddle their border.

    The held orders are only a cache: what is returned depends on nothing but `t`.
    """

    def __init__(self, partition: Partition, batch_size: int, steps: int, seed: int) -> None:
        self.partition = [part.cpu().numpy() for part in partition]
        self.batch_size, self.steps, self.seed = batch_size, steps, seed
        sizes = np.array([len(part) for part in partition])
        self.per_epoch = sizes // batch_size
        self.start = np.cumsum(sizes) - sizes
        self.nodes = np.arange(len(partition))
        self.held = np.full((2, len(partition)), -1)
        self.orders = np.empty((2, int(sizes.sum())), dtype=np.int64)
        self.within = np.arange(batch_size)
        self.generator = torch.Generator()  # reseeded for each draw: to make one takes longer than to shuffle

    def __call__(self, t: int) -> Int[Tensor, "nodes steps batch"]:
        if t < 0:
            raise ValueError(f"rounds are numbered from 0; found {t}.")
        numbers = range(t * self.steps, (t + 1) * self.steps)
        return torch.from_numpy(np.stack([self._batch(number) for number in numbers], axis=1))

    def _batch(self, number: int) -> NDArray[np.int64]:
        epoch, position = np.divmod(number, self.per_epoch)
        slot = epoch % 2
        for node in (self.held[slot, self.nodes] != epoch).nonzero()[0]:
            self._shuffle(int(node), int(epoch[node]))
        first = self.start + position * self.batch_size
        batch: NDArray[np.int64] = self.orders[slot[:, None], first[:, None] + self.within]
        return batch

    def _shuffle(self, node: int, epoch: int) -> None:
        own = self.partition[node]
        self.generator.manual_seed(seeds.derive(self.seed, "batches", node, epoch))
        order = torch.randperm(len(own), generator=self.generator).numpy()
        self.orders[epoch % 2, self.start[node] : self.start[node] + len(own)] = own[order]
        self.held[epoch % 2, node] = epoch


def epochs(partition: Partition, batch_size: int, *, steps: int = 1, seed: int = 0) -> Batches:
    """Every participant walks its own data, freshly shuffled each epoch; an incomplete last batch is dropped.

    Local step s of round t is the participant's batch number t·steps + s. Cost: a gather a round; entering an
    epoch, one permutation a participant. Not to be called from several threads at once.
    """
    _check(partition, batch_size, steps)
    return _Epochs(partition, batch_size, steps, seed)


def rounds_per_epoch(partition: Partition, batch_size: int, steps: int = 1) -> int:
    """Rounds in which the participants together handle as many whole batches as they hold."""
    _check(partition, batch_size, steps)
    whole = sum(len(part) // batch_size for part in partition)
    return -(-whole // (len(partition) * steps))


def given(index: Int[Tensor, "rounds nodes steps batch"], *, n_samples: int | None = None) -> Batches:
    """Batches supplied by index, one row a round; negative indices, or any beyond `n_samples`, are refused."""
    bad = ((index < 0) | (index >= (2**63 - 1 if n_samples is None else n_samples))).nonzero()
    if len(bad):
        t, node, step, place = bad[0].tolist()
        limit = "" if n_samples is None else f" and below {n_samples}"
        found = f"round {t}, participant {node}, step {step}, place {place} has {int(index[t, node, step, place])}"
        raise ValueError(f"batch indices must be at least 0{limit}; {found}.")

    def batches(t: int) -> Int[Tensor, "nodes steps batch"]:
        if not 0 <= t < len(index):
            raise ValueError(f"batches were given for rounds 0..{len(index) - 1}; round {t} was asked for.")
        return index[t]

    return batches


def _check(partition: Partition, batch_size: int, steps: int) -> None:
    if batch_size < 1 or steps < 1:
        raise ValueError(f"batch_size and steps must be at least 1; found {batch_size} and {steps}.")
    if not partition:
        raise ValueError("there must be at least 1 participant; the partition is empty.")
    for node, part in enumerate(partition):
        if len(part) < batch_size:
            raise ValueError(
                f"a batch must fit into each participant's data; participant {node} holds {len(part)} samples, "
                f"batch_size is {batch_size}. Use a smaller batch or fewer participants."
            )
