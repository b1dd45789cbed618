"""Many independent networks as one: a device that is not filled by one network trains dozens in about the same time."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, Network, Participants

T = TypeVar("T", Corruption, Behaviour)


def fleet(networks: Sequence[Network]) -> Network:
    """One network in which nobody hears anybody of another: participant k of network i is number i · n + k.

    They must be alike in everything but their seeds, attackers and W. What attackers draw at random they draw anew.
    """
    first = networks[0]
    if len({network.nodes for network in networks}) > 1:
        raise ValueError(f"networks must be of one size; found {sorted({network.nodes for network in networks})}.")
    offsets = range(0, len(networks) * first.nodes, first.nodes)

    def batches(t: int) -> Tensor:
        return torch.cat([network.batches(t) for network in networks])

    together = Participants(
        torch.cat([network.initial.theta for network in networks]),
        {name: torch.cat([network.initial.state[name] for network in networks]) for name in first.initial.state},
        {name: torch.cat([network.initial.buffers[name] for network in networks]) for name in first.initial.buffers},
    )
    return replace(
        first,
        initial=together,
        batches=batches,
        mixing=_BlockDiagonal(networks),
        q=torch.cat([network.q for network in networks]),
        partition=[part for network in networks for part in network.partition or ()] or None,
        corruptions=tuple(
            _moved(c, by) for network, by in zip(networks, offsets, strict=True) for c in network.corruptions
        ),
        behaviours=tuple(
            _moved(b, by) for network, by in zip(networks, offsets, strict=True) for b in network.behaviours
        ),
    )


class _BlockDiagonal:
    """A schedule; the same W is the same object, so that it is copied to the device once."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks
        self.stacked = lru_cache(maxsize=8)(_block_diagonal)

    def __call__(self, t: int) -> Tensor:
        W: Tensor = self.stacked(*(network.mixing(t) for network in self.networks))
        return W


def _block_diagonal(*found: Tensor) -> Tensor:
    W: Tensor = torch.block_diag(*(block.to_dense() for block in found))  # type: ignore[no-untyped-call]
    return W


def _moved(spoiler: T, by: int) -> T:
    return replace(spoiler, nodes=tuple(node + by for node in spoiler.nodes))


def apart(rows: Tensor, count: int) -> Tensor:
    """What was found for each participant of a fleet of `count`, [count · n, …], as [count, n, …]."""
    return rows.view(count, len(rows) // count, *rows.shape[1:])


def blocks(pairs: Tensor, count: int) -> Tensor:
    """What was found for each pair in a fleet of `count`, [count · n, count · n], as [count, n, n]."""
    n = len(pairs) // count
    return torch.stack([pairs[i : i + n, i : i + n] for i in range(0, len(pairs), n)])
