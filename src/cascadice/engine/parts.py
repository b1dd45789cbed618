"""The part of a network that one process trains; it hears from the other parts by messages.

A part is a `Network` whose rows are its own participants. They draw the same as in the whole network, and W stays the
matrix of everybody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    """Split participants, in order, into parts whose sizes differ by at most one."""
    if not 1 <= parts <= nodes:
        raise ValueError(
            f"every process must have a participant; found {parts} processes for {nodes}. Start at most {nodes}."
        )
    return [tuple(part.tolist()) for part in torch.arange(nodes).tensor_split(parts)]


def numbered(members: Sequence[int]) -> str:
    """Name participants in words: "participant 3", "participants 4–7", "participants 1, 5"."""
    if len(members) == 1:
        return f"participant {members[0]}"
    first, last = members[0], members[-1]
    each = f"{first}–{last}" if list(members) == list(range(first, last + 1)) else ", ".join(map(str, members))
    return f"participants {each}"


def part_of(network: Network, members: Sequence[int]) -> Network:
    """The network with only these participants' rows, to train with an exchange of messages."""
    if network.members or network.blocks > 1:
        raise ValueError("a part is taken of one whole network; this is a part already, or several side by side.")
    if not members:
        raise ValueError("a part must have members; found none.")
    chosen = check_members(members, network.nodes)
    initial = rows_of(network.initial, torch.tensor(chosen).to(network.device))
    return restricted(replace(network, initial=initial), chosen)


def check_members(members: Sequence[int], nodes: int) -> tuple[int, ...]:
    """The members as a tuple; they must be participants of the network, in ascending order."""
    chosen = tuple(members)
    if list(chosen) != sorted(set(chosen)) or (chosen and not 0 <= chosen[0] <= chosen[-1] < nodes):
        raise ValueError(f"members must be participants below {nodes}, in ascending order; found {chosen}.")
    return chosen


def restricted(network: Network, members: tuple[int, ...]) -> Network:
    """The network with everything but W and `initial` restricted to members; `initial` has only their rows already.

    Only the training samples that members hold are kept. Without a partition it is unknown which these are, and all are
    kept.
    """
    parts, lr = network.partition, network.lr  # not the network: a function that holds it would keep all its data
    own = None if parts is None else [parts[k] for k in members]
    rows, row_of = torch.tensor(members), {k: i for i, k in enumerate(members)}
    groups = [group._replace(nodes=tuple(row_of[k] for k in group.nodes if k in row_of)) for group in network.groups]
    return replace(
        network,
        data=network.data if own is None else network.data.keep(torch.cat(own)),
        batches=of_some(network.batches, rows),
        lr=lambda t: rate[rows] if isinstance(rate := lr(t), Tensor) and rate.dim() else rate,
        q=network.q[rows],
        partition=own,
        holdings=tuple(map(len, parts or ())),
        corruptions=renumbered(network.corruptions, row_of),
        behaviours=renumbered(network.behaviours, row_of),
        groups=tuple(group for group in groups if group.nodes),
        sample_weights=None if network.sample_weights is None else network.sample_weights[rows],
        members=members,
    )


def renumbered(attacks: Sequence[Attack], number: Mapping[int, int]) -> tuple[Attack, ...]:
    """The attacks by participants who have a number, under that number."""
    own = ((attack, tuple(number[k] for k in attack.nodes if k in number)) for attack in attacks)
    return tuple(replace(attack, nodes=nodes) for attack, nodes in own if nodes)
