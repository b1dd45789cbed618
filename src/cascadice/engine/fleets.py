"""Train many networks as one: a device that one network does not fill trains dozens in about the same time.

A fleet is a `Network` whose participants hear only those of their own network. Train it, measure influence in it, and
take the results apart with `by_network` (one value per participant) and `blocks` (one value per pair).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.data.samples import content_digest
from cascadice.engine.learner import frozen_of
from cascadice.engine.networks import Network
from cascadice.engine.parts import Attack, renumbered


def fleet(networks: Sequence[Network]) -> Network:
    """Combine networks into one whose mixing matrix is block diagonal.

    Participant k of network i becomes participant i · n + k. It draws and computes as in network i alone.

    Args:
        networks: May differ in seed, partition, attackers, W, learning rates and sample weights, in nothing else.

    Returns:
        The fleet, a network to train like any other.

    Raises:
        ValueError: If the networks differ in anything else, or participants of one network do not all work alike.

    Example:
        >>> import cascadice as cd
        >>> digits = cd.data.digits()
        >>> model = cd.models.build("mlp", digits.train.shape, 10, hidden=(8,))
        >>> together = fleet([cd.network(model, digits, nodes=4, seed=seed) for seed in range(3)])
        >>> together.nodes
        12
        >>> *_, last = cd.simulate(together, 2)
        >>> by_network(cd.evaluate(together, last.after).accuracy, 3).shape
        torch.Size([3, 4])
    """
    first, nodes = networks[0], networks[0].nodes
    if len({network.nodes for network in networks}) > 1:
        raise ValueError(f"networks must be of one size; found {sorted({network.nodes for network in networks})}.")
    for what in (what for network in networks for what in _differences(first, network)):
        raise ValueError(f"networks in a fleet must have the same {what}; these differ. Run them one after another.")
    if any(network.groups or network.uneven for network in networks):
        raise ValueError("networks whose participants work in several ways cannot run side by side; run them in turn.")
    ones = first.initial.theta.new_ones(()).expand(nodes, len(first.data.train))
    weights = [ones if network.sample_weights is None else network.sample_weights for network in networks]
    return replace(
        first,
        initial=tree_map(lambda *rows: torch.cat(rows), *(network.initial for network in networks)),
        batches=lambda t: torch.cat(_each(t, (network.batches for network in networks))),
        mixing=_block_diagonal([network.mixing for network in networks]),
        lr=lambda t: _rates(_each(t, (network.lr for network in networks)), nodes),
        q=torch.cat([network.q for network in networks]),
        partition=[part for network in networks for part in network.partition or ()] or None,
        corruptions=_side_by_side([network.corruptions for network in networks], nodes),
        behaviours=_side_by_side([network.behaviours for network in networks], nodes),
        sample_weights=None if all(network.sample_weights is None for network in networks) else torch.cat(weights),
        seeds=tuple(seed for network in networks for seed in network.seeds or (network.seed,)),
    )  # fmt: skip


def _differences(first: Network, other: Network) -> list[str]:
    """What a fleet has only once, but differs between two networks. Losses must be one object: closures may differ."""
    one, two = first.learner, other.learner
    steps = [learner.optimizer.settings or learner.optimizer.update for learner in (one, two)]
    frozen = zip(frozen_of(one.training), frozen_of(two.training), strict=False)
    same = {
        "optimizer": steps[0] == steps[1],
        "loss": one.loss is two.loss,
        "model": repr(one.training) == repr(two.training) and all(a is b or torch.equal(a, b) for a, b in frozen),
        "precision": (one.compute, one.autocast) == (two.compute, two.autocast),
        "data": first.data is other.data or content_digest(first.data) == content_digest(other.data),
        "compression": first.compression == other.compression,
    }
    return [what for what, alike in same.items() if not alike]


def _each(t: int, schedules: Iterable[Callable[[int], Any]]) -> list[Any]:
    """The value of each schedule in round t; a schedule that networks share is called once."""
    known: dict[int, Any] = {}
    return [known[id(s)] if id(s) in known else known.setdefault(id(s), s(t)) for s in schedules]


def _rates(rates: list[Any], nodes: int) -> float | Tensor:
    if all(isinstance(rate, float) and rate == rates[0] for rate in rates):
        return float(rates[0])
    return torch.cat([torch.as_tensor(rate, dtype=torch.float64).expand(nodes) for rate in rates])


def _side_by_side(attacks: Sequence[Sequence[Attack]], nodes: int) -> tuple[Attack, ...]:
    numbers = ({k: i * nodes + k for k in range(nodes)} for i in range(len(attacks)))
    return sum(map(renumbered, attacks, numbers), start=())


REMEMBERED = 8  # mixing matrices, enough for a cycle of that length


def _block_diagonal(schedules: Sequence[Callable[[int], Tensor]]) -> Callable[[int], Tensor]:
    """The mixing schedule of a fleet. Equal matrices return the same object, so that W is copied to the device once."""
    known: dict[tuple[bytes, ...], Tensor] = {}

    def mixing(t: int) -> Tensor:
        matrices = [matrix.to_dense() for matrix in _each(t, schedules)]
        # not by id alone: a schedule may reuse a buffer
        content = {id(matrix): matrix.contiguous().numpy().tobytes() for matrix in matrices}
        key = tuple(content[id(matrix)] for matrix in matrices)
        if key not in known:
            if len(known) == REMEMBERED:
                known.pop(next(iter(known)))
            known[key] = torch.block_diag(*matrices)  # type: ignore[no-untyped-call]
        return known[key]

    return mixing


def by_network(rows: Tensor, count: int) -> Tensor:
    """Split a result that has a row per participant of a fleet by network.

    Args:
        rows: `[count · n, …]`.
        count: The number of networks in the fleet.

    Returns:
        `[count, n, …]`, a view.

    Example:
        >>> by_network(torch.arange(6), 2)
        tensor([[0, 1, 2],
                [3, 4, 5]])
    """
    return rows.view(count, len(rows) // count, *rows.shape[1:])


def blocks(pairs: Tensor, count: int) -> Tensor:
    """Split a result that has an entry per pair of participants of a fleet by network.

    Args:
        pairs: `[count · n, count · n]`.
        count: The number of networks in the fleet.

    Returns:
        `[count, n, n]`: the diagonal blocks; pairs from different networks are left out.

    Example:
        >>> blocks(torch.arange(16).view(4, 4), 2).tolist()
        [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]
    """
    n = len(pairs) // count
    return torch.stack([pairs[i : i + n, i : i + n] for i in range(0, len(pairs), n)])
