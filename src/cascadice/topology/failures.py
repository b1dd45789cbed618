"""Schedules in which links fail or participants are absent."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from cascadice import seeds
from cascadice.topology.graphs import check_probability
from cascadice.topology.matrices import Links, links, sums
from cascadice.topology.schedules import Schedule
from cascadice.topology.weights import with_diagonal

Presence: TypeAlias = Callable[[int], Tensor]  # t -> bool [n], who is present


def link_loss(schedule: Schedule, probability: float, *, seed: int = 0) -> Schedule:
    """In each round, each link between two participants fails with `probability`, independently.

    Each participant renormalises its weights over the links that did not fail.

    Args:
        schedule: The schedule without losses.
        probability: The probability that a link fails in a round.
        seed: Seed of the draws.

    Returns:
        The schedule t -> W.

    Raises:
        ValueError: If the probability is not in [0, 1].

    Example:
        >>> from cascadice.topology import constant
        >>> lossy = link_loss(constant(torch.full((3, 3), 1 / 3, dtype=torch.float64)), 0.5)
        >>> lossy(0).sum(1).tolist()
        [1.0, 1.0, 1.0]
    """
    return partial(_lossy, schedule, check_probability(probability), seed)


def presence(schedule: Schedule, present: Presence) -> Schedule:
    """In each round, only the participants that are present exchange; the others keep their parameters.

    Args:
        schedule: The schedule with everyone present.
        present: A function t -> bool [n], such as `absences` makes.

    Returns:
        The schedule t -> W.

    Example:
        >>> from cascadice.topology import constant
        >>> present = torch.tensor([True, True, False])
        >>> presence(constant(torch.full((3, 3), 1 / 3)), lambda t: present)(0)[2].tolist()
        [0.0, 0.0, 1.0]
    """
    return partial(_among_present, schedule, present)


def absences(intervals: Iterable[tuple[Iterable[int], range]], nodes: int) -> Presence:
    """Who is present in each round, from a list of absences; for `presence`.

    Args:
        intervals: Pairs of absent participants and the rounds of their absence.
        nodes: How many participants.

    Returns:
        The function t -> bool [n].

    Raises:
        ValueError: If there is no such participant.

    Example:
        >>> absences([([1, 2], range(10, 20))], nodes=4)(10).tolist()
        [True, False, False, True]
    """
    fixed = tuple((tuple(absent), rounds) for absent, rounds in intervals)
    for node in (node for absent, _ in fixed for node in absent):
        if not 0 <= node < nodes:
            raise ValueError(f"absent participants must be from 0 to {nodes - 1}; found {node}.")
    return partial(_present, fixed, nodes)


def _lossy(schedule: Schedule, probability: float, seed: int, t: int) -> Tensor:
    W = schedule(t)
    entries = links(W)
    generator = seeds.generator(seed, "topology", "loss", t)
    draws = torch.rand(len(entries.weights), generator=generator, dtype=torch.float32)
    return _only(W, entries, (draws >= probability) | (entries.receivers == entries.sources))


def _among_present(schedule: Schedule, present: Presence, t: int) -> Tensor:
    W, exchanging = schedule(t), present(t)
    if exchanging.dtype != torch.bool or exchanging.shape != (W.shape[0],):
        raise ValueError(
            f"present(t) must be {W.shape[0]} booleans, one per participant; "
            f"found {exchanging.dtype} of shape {tuple(exchanging.shape)} at round {t}."
        )
    entries = links(W)
    return _only(W, entries, exchanging[entries.receivers] & exchanging[entries.sources])


def _present(intervals: tuple[tuple[tuple[int, ...], range], ...], nodes: int, t: int) -> Bool[Tensor, " n"]:
    present = torch.ones(nodes, dtype=torch.bool)
    for absent, rounds in intervals:
        if t in rounds:
            present[list(absent)] = False
    return present


def _only(W: Tensor, entries: Links, keep: Bool[Tensor, " links"]) -> Tensor:
    """W with only these links, rows renormalised; a participant without any keeps its parameters."""
    if keep.all():
        return W
    nodes, (receivers, sources, weights) = W.shape[0], (column[keep] for column in entries)
    rows = sums(nodes, receivers, weights)
    return with_diagonal(nodes, receivers, sources, weights / rows[receivers], (rows == 0).double())
