"""A run read backwards without a recording: checkpoints, and rounds played again between them."""

from collections.abc import Callable, Iterator, MutableMapping
from math import isqrt

from torch.utils._pytree import tree_flatten, tree_map

from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Round
from cascadice.engine.simulation import simulate

MEMORY = 2 * 2**30
"""Bytes for rounds that are kept: a run that fits is played once, a longer one twice."""


def segment(network: Network, rounds: int, memory: int = MEMORY) -> int:
    """How many rounds to keep at a time: all of them where they fit in `memory` bytes, else √rounds."""
    return rounds if bytes_kept(network, rounds, rounds) <= memory else max(1, isqrt(rounds - 1) + 1)


def bytes_of(participants: Participants) -> int:
    """The memory that participants take."""
    return sum(int(leaf.nbytes) for leaf in tree_flatten(participants)[0])


def bytes_kept(network: Network, rounds: int, length: int) -> int:
    """The most that `backwards` keeps: a checkpoint a segment, and two copies of everybody for each round of one."""
    return bytes_of(network.initial) * (-(-rounds // length) + 2 * min(length, rounds))


def backwards(
    network: Network, rounds: int, *, start: int = 0, length: int | None = None,
    saved: MutableMapping[int, Participants] | None = None, played: Callable[[], None] | None = None,
    operator: Operator | None = None,
) -> Iterator[Round]:  # fmt: skip
    """The rounds from `start` up to `rounds`, the last one first; training is deterministic, so they are the run's.

    Cost: the run once, and again but for its last segment. Memory: see `bytes_kept`.

    Args:
        start: The number of the first round, before which participants have the network's initial parameters.
        length: How many rounds to keep at a time; see `segment`.
        saved: Where checkpoints go; those that are there are not made again. In memory unless given.
        played: Called after each round that was played.
        operator: The operator to use, where its exchange is not the one in memory.

    Raises:
        DivergedError: Where a loss is no longer a number.

    Example:
        >>> for scores in full_horizon(network, backwards(network, 1000), evaluate_on(network)):
        ...     print(scores.t, scores.participants)
    """
    length = length or segment(network, rounds - start)
    starts, tick = range(start, rounds, length), played or (lambda: None)
    saved = {} if saved is None else saved
    begin = max((t for t in starts if t in saved), default=start)
    if begin < starts[-1]:
        here = saved.get(begin, network.initial)
        for round_ in simulate(network, starts[-1], start=begin, participants=here, window=0, operator=operator):
            tick()
            if round_.t + 1 in starts:
                saved[round_.t + 1] = tree_map(lambda tensor: tensor.clone(), round_.after)
    for first in reversed(starts):
        kept, here = [], network.initial if first == start else saved.pop(first)
        end = min(first + length, rounds)
        for round_ in simulate(network, end, start=first, participants=here, operator=operator):
            tick()
            kept.append(round_)
        while kept:
            yield kept.pop()
