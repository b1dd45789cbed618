"""Base-(k + 1) graphs: exact consensus in finitely many rounds, for any number of participants.

Takezawa et al. 2023, "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via
Finite-time Convergence". A round is a list of meetings (one, other, weight): each of the two gives the other that
weight and keeps the rest, so every round is symmetric and doubly stochastic.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import TypeAlias

import torch
from torch import Tensor

from cascadice.topology.graphs import check_nodes
from cascadice.topology.matrices import identity
from cascadice.topology.schedules import Cycle, cyclic
from cascadice.topology.weights import keeping_the_rest

Meetings: TypeAlias = list[tuple[int, int, float]]


def base(nodes: int, *, max_degree: int = 1) -> Cycle:
    """A cycle of doubly stochastic W whose product is exactly 11ᵀ/n.

    Algorithm 3 of the paper; at most 2 log_{k+1} n + 2 rounds for degree k. Cost: n × degree per round to build.

    Args:
        nodes: How many participants.
        max_degree: The most neighbours that a participant may have in a round.

    Returns:
        The cycle of mixing matrices.

    Raises:
        ValueError: If a number is less than 1.

    Example:
        >>> len(base(12).matrices)
        5
    """
    check_nodes(nodes)
    if max_degree < 1:
        raise ValueError(f"max_degree must be at least 1; found {max_degree}.")
    rounds = _base(range(nodes), max_degree + 1)
    return cyclic([_mixing(nodes, meetings) for meetings in rounds] or [identity(nodes)])


def _base(members: Sequence[int], radix: int) -> list[Meetings]:
    """Average within parts whose size has only large prime factors, then across; or all at once if that is faster."""
    parts = max(d for d in range(1, len(members) + 1) if len(members) % d == 0 and _factors(d, radix) is not None)
    size = len(members) // parts
    within = _together(_simple_base(members[i * size : (i + 1) * size], radix) for i in range(parts))
    across = _together(_hyper_hypercube(members[i::size], radix) for i in range(size))
    return min(_simple_base(members, radix), within + across, key=len)


def _simple_base(members: Sequence[int], radix: int) -> list[Meetings]:
    """Algorithm 2: split n by its digits in this radix into groups, average each, then repair the differences.

    Group l, of a_l blocks of radix^p_l members, meets all later groups once, with weights that leave the mean of the
    later groups, and of each of its own blocks, at the mean of all. The blocks then average, while the later groups
    go on.
    """
    if _factors(len(members), radix) is not None:
        return _hyper_hypercube(members, radix)
    groups = _groups(members, radix)
    averaged = _together(_hyper_hypercube([*chain(*blocks)], radix) for blocks in groups)
    repaired = []
    for level, blocks in enumerate(groups[:-1]):
        later = [*chain(*chain(*groups[level + 1 :]))]
        weight = len(blocks[0]) / (len(blocks) * len(blocks[0]) + len(later))
        meetings = [(one, block[i], weight) for i, one in enumerate(later) for block in blocks]
        wait: list[Meetings] = [[]] * level
        repaired.append([*wait, meetings, *_together(_hyper_hypercube(block, radix) for block in blocks)])
    return averaged + _together(repaired)


def _hyper_hypercube(members: Sequence[int], radix: int) -> list[Meetings]:
    """Algorithm 1: number the members in mixed radix; in each round those who differ in one digit only average."""
    rounds, stride = [], 1
    for factor in _factors(len(members), radix) or ():
        later = (
            (i, i + step * stride) for i in range(len(members)) for step in range(1, factor - i // stride % factor)
        )
        rounds.append([(members[i], members[other], 1 / factor) for i, other in later])
        stride *= factor
    return rounds


@cache
def _factors(number: int, largest: int) -> tuple[int, ...] | None:
    """The fewest factors, none above `largest`, whose product is `number`; None if a prime factor is too large."""
    if number == 1:
        return ()
    products = (
        (factor, *rest)
        for factor in range(2, min(number, largest) + 1)
        if number % factor == 0 and (rest := _factors(number // factor, largest)) is not None
    )
    return min(products, key=len, default=None)


def _groups(members: Sequence[int], radix: int) -> list[list[Sequence[int]]]:
    """Split by the digits of n in this radix, largest place first: digit a at place p gives a blocks of radix^p."""
    groups, start, size = [], 0, 1
    while size * radix <= len(members):
        size *= radix
    while size:
        digit = (len(members) - start) // size
        if digit:
            groups.append([members[start + i * size : start + (i + 1) * size] for i in range(digit)])
        start += digit * size
        size //= radix
    return groups


def _together(sequences: Iterable[list[Meetings]]) -> list[Meetings]:
    """Run sequences in parallel (no one is in two meetings of a round); the shorter ones idle at the end."""
    return [[*chain(*meetings)] for meetings in zip_longest(*sequences, fillvalue=[])]


def _mixing(nodes: int, meetings: Meetings) -> Tensor:
    one, other, weight = zip(*meetings, strict=True)
    weights = torch.tensor(weight + weight, dtype=torch.float64)
    return keeping_the_rest(nodes, torch.tensor(one + other), torch.tensor(other + one), weights)
