"""Read a run from its last round to its first without a recording: checkpoints, and rounds replayed between them."""

from collections.abc import Callable, Iterator, MutableMapping
from math import isqrt

import torch
from torch.utils._pytree import tree_leaves, tree_map

from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Round
from cascadice.engine.simulation import simulate

MEMORY = 2 * 2**30
"""Bytes available for rounds: a run that fits is played once, a longer one twice."""


def segment(network: Network, rounds: int, memory: int = MEMORY) -> int:
    """How many rounds to keep at a time: all if they fit in `memory` bytes, else about √rounds.

    Args:
        network: The network to be played.
        rounds: The number of rounds.
        memory: The bytes that rounds may take.

    Returns:
        The length of a segment, in rounds.

    Example:
        >>> segment(network, 10_000, memory=0)
        100
    """
    return rounds if bytes_kept(network, rounds, rounds) <= memory else max(1, isqrt(rounds - 1) + 1)


def bytes_of(participants: Participants) -> int:
    """The bytes that these participants take."""
    return sum(int(leaf.nbytes) for leaf in tree_leaves(participants))


def bytes_kept(network: Network, rounds: int, length: int) -> int:
    """The most that `backwards` keeps: a checkpoint per segment, and two copies of everybody per round of one."""
    return bytes_of(network.initial) * (-(-rounds // length) + 2 * min(length, rounds))


def check_length(length: int | None) -> None:
    """Raise unless this is a number of rounds to keep at a time, or None."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"length must be a number of rounds, at least 1, or None; found {length!r}.")


def backwards(
    network: Network, rounds: int, *, start: int = 0, length: int | None = None,
    saved: MutableMapping[int, Participants] | None = None, played: Callable[[], None] | None = None,
    operator: Operator | None = None,
) -> Iterator[Round]:  # fmt: skip
    """Yield the rounds of a run, last one first, by playing it; training is deterministic, so these are its rounds.

    Cost: the run once, and again except for its last segment. Memory: see `bytes_kept`.

    Args:
        network: The network to train.
        rounds: Where the run stops.
        start: The number of the first round, before which participants have the network's initial parameters.
        length: How many rounds to keep at a time; by default `segment` decides.
        saved: Where checkpoints are kept, by default in memory; those already there are not made again.
        played: Called after each round that was played.
        operator: The operator to use; defaults to one with an exchange in memory.

    Yields:
        The rounds from `rounds` − 1 down to `start`.

    Raises:
        ValueError: If `length` is not a number of rounds, at least 1.
        DivergedError: If a loss is no longer a number.

    Example:
        >>> for scores in full_horizon(network, backwards(network, 1000), evaluate_on(network)):
        ...     print(scores.t, scores.participants)
    """
    check_length(length)
    length = length or segment(network, rounds - start)
    starts, tick = range(start, rounds, length), played or (lambda: None)
    saved = {} if saved is None else saved
    begin = max((t for t in starts if t in saved), default=start)
    if begin < starts[-1]:
        here = saved.get(begin, network.initial)
        for round_ in simulate(network, starts[-1], start=begin, participants=here, window=0, operator=operator):
            tick()
            if round_.t + 1 in starts:
                saved[round_.t + 1] = tree_map(torch.clone, round_.after)
    for first in reversed(starts):
        kept, here = [], network.initial if first == start else saved.pop(first)
        end = min(first + length, rounds)
        for round_ in simulate(network, end, start=first, participants=here, operator=operator):
            tick()
            kept.append(round_)
        while kept:
            yield kept.pop()
