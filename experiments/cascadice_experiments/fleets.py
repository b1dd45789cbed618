"""Many independent networks as one: a device that one network does not fill trains dozens in about the same time.

    networks = [cd.network(..., seed=seed) for seed in range(8)]
    together = fleet(networks)
    *_, last = cd.simulate(together, 100)
    accuracy = by_network(cd.evaluate(together, last.after).accuracy, 8).mean(1)     # one number per network

A fleet is a `Network` like any other: train it, measure influence in it, and take the results apart with `by_network`
(results per participant) and `blocks` (results per pair).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import Behaviour, Corruption, Network

Attack = TypeVar("Attack", Corruption, Behaviour)


def fleet(networks: Sequence[Network]) -> Network:
    """One network whose mixing matrix is block diagonal: participant k of network i becomes number i · n + k.

    Every number is that of the networks alone, except what attackers draw at random (noise): they draw anew.

    Args:
        networks: They must be alike in everything but seed, data partition, attackers and W.

    Raises:
        ValueError: If the networks differ in their number of participants.

    Example:
        >>> import cascadice as cd
        >>> digits = cd.data.digits()
        >>> model = cd.models.build("mlp", digits.train.shape, 10, hidden=(8,))
        >>> fleet([cd.network(model, digits, nodes=4, seed=seed) for seed in range(3)]).nodes
        12
    """
    if len(sizes := {network.nodes for network in networks}) > 1:
        raise ValueError(f"networks must be of one size; found {sorted(sizes)}.")
    placed = list(zip(range(0, len(networks) * networks[0].nodes, networks[0].nodes), networks, strict=True))
    return replace(
        networks[0],
        initial=tree_map(lambda *parts: torch.cat(parts), *(network.initial for network in networks)),
        batches=lambda t: torch.cat([network.batches(t) for network in networks]),
        mixing=_BlockDiagonal(networks),
        q=torch.cat([network.q for network in networks]),
        partition=[part for network in networks for part in network.partition or ()] or None,
        corruptions=tuple(_shift(one, by) for by, network in placed for one in network.corruptions),
        behaviours=tuple(_shift(one, by) for by, network in placed for one in network.behaviours),
    )


class _BlockDiagonal:
    """The schedule of a fleet. Equal matrices give the same object again, so that W is copied to the device once."""

    REMEMBERED = 8  # matrices of a cycle

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = networks
        self.known: dict[bytes, Tensor] = {}

    def __call__(self, t: int) -> Tensor:
        matrices = [network.mixing(t).to_dense() for network in self.networks]
        key = b"".join(matrix.contiguous().numpy().tobytes() for matrix in matrices)  # schedules may refill one buffer
        if key not in self.known:
            if len(self.known) == self.REMEMBERED:
                self.known.pop(next(iter(self.known)))
            self.known[key] = torch.block_diag(*matrices)  # type: ignore[no-untyped-call]
        return self.known[key]


def _shift(attack: Attack, by: int) -> Attack:
    return replace(attack, nodes=tuple(node + by for node in attack.nodes))


def by_network(rows: Tensor, count: int) -> Tensor:
    """Take apart a result per participant of a fleet of `count` networks: `[count · n, …]` as `[count, n, …]`."""
    return rows.view(count, len(rows) // count, *rows.shape[1:])


def blocks(pairs: Tensor, count: int) -> Tensor:
    """Take apart a result per pair of participants, `[count · n, count · n]`: its diagonal blocks, `[count, n, n]`."""
    n = len(pairs) // count
    return torch.stack([pairs[i : i + n, i : i + n] for i in range(0, len(pairs), n)])
