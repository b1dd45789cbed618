"""A part of a network: the participants of one process, which hears from the others by messages.

A part is a `Network` like any other. Its rows are its own participants; what they draw, and who hears whom, is as in
the whole network, so W^t stays the matrix of everybody.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from cascadice.data.batches import of_some
from cascadice.data.corruption import Corruption
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.networks import Network
from cascadice.engine.rounds import rows_of

Attack = TypeVar("Attack", Corruption, Behaviour)


def split(nodes: int, parts: int) -> list[tuple[int, ...]]:
    """Who belongs to which part: participants in order, as evenly as they go.

    Raises:
        ValueError: Where there are more parts than participants.

    Example:
        >>> split(5, 2)
        [(0, 1, 2), (3, 4)]
    """
    if not 1 <= parts <= nodes:
        raise ValueError(
            f"every process must have a participant; found {parts} processes for {nodes}. Start at most {nodes}."
        )
    sizes = [nodes // parts + (part < nodes % parts) for part in range(parts)]
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [tuple(range(start, end)) for start, end in pairwise(ends)]


def numbered(members: Sequence[int]) -> str:
    """Participants in words: "participant 3", "participants 4–7", "participants 1, 5".

    Example:
        >>> numbered((4, 5, 6, 7))
        'participants 4–7'
    """
    if len(members) == 1:
        return f"participant {members[0]}"
    first, last = members[0], members[-1]
    each = f"{first}–{last}" if list(members) == list(range(first, last + 1)) else ", ".join(map(str, members))
    return f"participants {each}"


def part_of(network: Network, members: Sequence[int]) -> Network:
    """The network with these participants' rows alone.

    Args:
        members: Their numbers in the whole network, in ascending order.

    Returns:
        A network to train with an exchange that hears from the others.

    Raises:
        ValueError: Where members are not participants of the network, or the network is already a part or a fleet.

    Example:
        >>> mine = part_of(network, (2, 3))
        >>> mine.nodes
        2
    """
    if network.members or network.blocks > 1:
        raise ValueError("a part is taken of one whole network; this is a part already, or several side by side.")
    if not members:
        raise ValueError("a part must have members; found none.")
    chosen = check_members(members, network.nodes)
    return narrowed(replace(network, initial=rows_of(network.initial, torch.tensor(chosen).to(network.device))), chosen)


def check_members(members: Sequence[int], nodes: int) -> tuple[int, ...]:
    """These participants of a network, which must be in ascending order."""
    chosen = tuple(members)
    if list(chosen) != sorted(set(chosen)) or (chosen and not 0 <= chosen[0] <= chosen[-1] < nodes):
        raise ValueError(f"members must be participants below {nodes}, in ascending order; found {chosen}.")
    return chosen


def narrowed(network: Network, members: tuple[int, ...]) -> Network:
    """What says something of everybody, but for W, cut down to members, whose rows `initial` has already."""
    rows, place = torch.tensor(members), {k: i for i, k in enumerate(members)}
    groups = [group._replace(nodes=tuple(place[k] for k in group.nodes if k in place)) for group in network.groups]
    return replace(
        network,
        batches=of_some(network.batches, rows),
        lr=lambda t: rate[rows] if isinstance(rate := network.lr(t), Tensor) and rate.dim() else rate,
        q=network.q[rows],
        partition=None if network.partition is None else [network.partition[k] for k in members],
        corruptions=_numbered(network.corruptions, place),
        behaviours=_numbered(network.behaviours, place),
        groups=tuple(group for group in groups if group.nodes),
        sample_weights=None if network.sample_weights is None else network.sample_weights[rows],
        members=members,
    )


def _numbered(attacks: Sequence[Attack], place: dict[int, int]) -> tuple[Attack, ...]:
    """Those that concern members, by their rows."""
    own = ((attack, tuple(place[k] for k in attack.nodes if k in place)) for attack in attacks)
    return tuple(replace(attack, nodes=nodes) for attack, nodes in own if nodes)
