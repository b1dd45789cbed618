"""Participants that do not follow the protocol, or are absent: who does what in which rounds."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice import seeds
from cascadice.faults import Fault, parse_fault
from cascadice.names import lookup


class BehaviourEffect(NamedTuple):
    """What a behaviour does to the update that is sent: θ + taken · factor · Δ + noise."""

    taken: float  # the part of the local work that is done, 0 or 1
    factor: float  # what the update is multiplied by; if negative, times the strength
    noise: float  # 1 if Gaussian noise with the strength as variance is added
    description: str


BEHAVIOURS: Mapping[str, BehaviourEffect] = {
    "free-rider": BehaviourEffect(0, 1, 0, "does no local work and sends what it received"),
    "sign-flipper": BehaviourEffect(1, -1, 0, "sends its update negated, times the strength"),
    "noise-sender": BehaviourEffect(0, 1, 1, "sends Gaussian noise of this variance in place of its update"),
    "absent": BehaviourEffect(0, 1, 0, "absent: does no work, receives nothing and sends nothing"),
}


@dataclass(frozen=True)
class Behaviour(Fault):
    """A behaviour that participants show in some rounds.

    Args:
        kind: A name in `BEHAVIOURS`: "free-rider", "sign-flipper", "noise-sender" or "absent".
        nodes: The participants.
        strength: The factor of a sign-flipper, the variance of a noise-sender.
        rounds: When; in every round if None.

    Raises:
        ValueError: If the kind is unknown, or the strength is negative or not finite.

    Example:
        >>> Behaviour("sign-flipper", (3,), strength=2.0, rounds=range(10, 20))
    """

    def __post_init__(self) -> None:
        lookup(BEHAVIOURS, self.kind, "behaviour")
        super().__post_init__()
        if not 0 <= self.strength < float("inf"):
            raise ValueError(f"the strength of {self.kind} must be at least 0 and finite; found {self.strength}.")


def parse(text: str) -> Behaviour:
    """The behaviour written `kind:nodes[:strength][@from-to]`; see `faults.parse_fault`."""
    no_strength = [name for name, conducts in BEHAVIOURS.items() if conducts.factor == 1 and not conducts.noise]
    return parse_fault(text, "behaviour", Behaviour, no_strength, "noise-sender:0,3:0.5@10-20")


def conduct(behaviours: Sequence[Behaviour], t: int, nodes: Sequence[int]) -> tuple[Tensor, ...]:
    """(taken, factor) of these participants in round t, or () if all are honest."""
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
    """The noise of noise senders in round t, by row; a function of t and its origin, the (seed, participant), alone."""
    added = {}
    for row, node in enumerate(nodes):
        variance = sum(b.strength * BEHAVIOURS[b.kind].noise for b in behaviours if b.applies(t, node))
        if variance:
            seed, number = origins[row]
            draw = seeds.generator(seed, "noise sender", t, number)
            added[row] = variance**0.5 * torch.randn(like.shape[-1], generator=draw, dtype=torch.float32).to(like)
    return added


def absent(behaviours: Sequence[Behaviour]) -> list[tuple[tuple[int, ...], range]]:
    """Who is absent when, as `topology.absences` takes it."""
    return [(b.nodes, range(sys.maxsize) if b.rounds is None else b.rounds) for b in behaviours if b.kind == "absent"]
