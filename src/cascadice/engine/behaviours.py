"""Participants that do not play by the rules, or are not there: who does what in which rounds."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice import seeds
from cascadice.intervals import Interval, parse_interval
from cascadice.names import lookup


class Conducts(NamedTuple):
    """θ^{t+½} = θ + taken · factor · Δ + noise: how much of the local step is done, what is made of it, and added."""

    taken: float
    factor: float
    noise: float
    description: str


BEHAVIOURS: Mapping[str, Conducts] = {
    "free-rider": Conducts(0, 1, 0, "does no local work and sends what it received"),
    "sign-flipper": Conducts(1, -1, 0, "sends its update negated, times the strength"),
    "noise-sender": Conducts(0, 1, 1, "sends Gaussian noise of this variance in place of its update"),
    "absent": Conducts(0, 1, 0, "absent: does no work, receives nothing and sends nothing"),
}


@dataclass(frozen=True)
class Behaviour(Interval):
    """One of BEHAVIOURS, which `nodes` show in `rounds` (every round if None)."""

    def __post_init__(self) -> None:
        lookup(BEHAVIOURS, self.kind, "behaviour")
        super().__post_init__()
        if not 0 <= self.strength < float("inf"):
            raise ValueError(f"the strength of {self.kind} must be at least 0 and finite; found {self.strength}.")


def parse(text: str) -> Behaviour:
    """The behaviour written `kind:nodes[:strength][@from-to]`, see `intervals.parse_interval`."""
    weak = [name for name, conducts in BEHAVIOURS.items() if conducts.factor == 1 and not conducts.noise]
    return parse_interval(text, "behaviour", Behaviour, weak, "noise-sender:0,3:0.5@10-20")


def conduct(behaviours: Sequence[Behaviour], t: int, nodes: Sequence[int]) -> tuple[Tensor, ...]:
    """(taken, factor) of these participants in round t, or () where all are honest."""
    if not any(b.applies(t, node) for b in behaviours for node in nodes):
        return ()
    taken, factor = (torch.ones(len(nodes), dtype=torch.float32) for _ in range(2))
    for row, node in enumerate(nodes):
        for b in (b for b in behaviours if b.applies(t, node)):
            taken[row] *= BEHAVIOURS[b.kind].taken
            factor[row] *= BEHAVIOURS[b.kind].factor * (b.strength if BEHAVIOURS[b.kind].factor < 0 else 1)
    return taken, factor


def noise(
    behaviours: Sequence[Behaviour], t: int, nodes: Sequence[int], like: Tensor, origins: Sequence[tuple[int, int]]
) -> dict[int, Tensor]:
    """What is added to the rows of `like` by noise senders in round t; the same wherever it is drawn.

    `origins` are the (seed, participant) by which each row draws.
    """
    added = {}
    for row, node in enumerate(nodes):
        variance = sum(b.strength * BEHAVIOURS[b.kind].noise for b in behaviours if b.applies(t, node))
        if variance:
            seed, number = origins[row]
            draw = seeds.generator(seed, "noise sender", t, number)
            added[row] = variance**0.5 * torch.randn(like.shape[-1], generator=draw, dtype=torch.float32).to(like)
    return added


def absent(behaviours: Sequence[Behaviour]) -> list[tuple[tuple[int, ...], range]]:
    """Who is away when, as `topology.absences` takes it."""
    return [(b.nodes, range(sys.maxsize) if b.rounds is None else b.rounds) for b in behaviours if b.kind == "absent"]
