"""Memory that is used again: on CPU, fresh memory can cost as much as the training of a small model."""

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine.learner import Participants


class RoundBuffers(NamedTuple):
    """Memory for the results of a round."""

    half: Participants
    after: Participants
    loss: Tensor


def allocate(like: Participants) -> RoundBuffers:
    """Buffers for a round of participants like these; optimizer state does not change in gossip, so it is shared."""
    half, after = tree_map(torch.empty_like, (like, like._replace(state={})))
    return RoundBuffers(half, after._replace(state=half.state), like.theta.new_empty(len(like.theta)))


def ring(like: Participants, window: int) -> Iterator[RoundBuffers]:
    """Buffers in turn, so that a round stays intact while the next `window` rounds are made."""
    return cycle([allocate(like) for _ in range(window + 2)])


def copy_into(results: tuple[Participants, Tensor], half: Participants, loss: Tensor) -> tuple[Participants, Tensor]:
    """Copy results into their buffers, and give those."""
    (theta, state, buffers), value = results
    loss.copy_(value)
    if theta is not half.theta:
        half.theta.copy_(theta)
    for to, values in ((half.state, state), (half.buffers, buffers)):
        for name, value in values.items():
            to[name].copy_(value)
    return half, loss


class Scratch:
    """What a reverse sweep writes to: evaluation gradients by round, which windows share, and two adjoints."""

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor] = {}
        self.unweighted: dict[int, tuple[Tensor, Tensor]] = {}  # parameters, and everybody's gradients there
        self.evaluation: object = None
        self.free: list[Tensor] = []
        self.exchanged: Tensor | None = None
        self.pulled: Tensor | None = None

    def of(self, evaluation: object) -> dict[int, Tensor]:
        """The gradients of this evaluation by round; those of another are forgotten."""
        if evaluation is not self.evaluation:
            self.forget(None)
            self.evaluation = evaluation
        return self.gradients

    def forget(self, t: int | None) -> None:
        """Gradients before round t, or all of them, will not be asked for again."""
        for old in [known for known in self.gradients if t is None or known < t]:
            self.free.append(self.gradients.pop(old))
        self.unweighted = {known: pair for known, pair in self.unweighted.items() if t is not None and known >= t}
