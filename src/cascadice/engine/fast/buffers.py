"""Memory that is reused from round to round.

On CPU, touching fresh memory can cost as much as training a small model; on CUDA, graphs need their results at fixed
addresses. `simulate(window=w)` takes the buffers of a ring in turn, so a round stays intact while the next w are made.

Trap: whatever is kept longer than the window has to be cloned.
"""

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
    """Buffers for a round of participants like these; `half` and `after` share optimizer state, which gossip keeps."""
    half, after = tree_map(torch.empty_like, (like, like._replace(state={})))
    return RoundBuffers(half, after._replace(state=half.state), like.theta.new_empty(len(like.theta)))


def rotating(like: Participants, window: int) -> Iterator[RoundBuffers]:
    """Buffers in turn, enough that a round stays intact while the next `window` rounds are made."""
    return cycle([allocate(like) for _ in range(window + 2)])


def copy_into(results: tuple[Participants, Tensor], half: Participants, loss: Tensor) -> tuple[Participants, Tensor]:
    """Copy (participants, losses) into these buffers, and return the buffers."""
    (theta, state, buffers), value = results
    loss.copy_(value)
    if theta is not half.theta:
        half.theta.copy_(theta)
    for to, values in ((half.state, state), (half.buffers, buffers)):
        for name, value in values.items():
            to[name].copy_(value)
    return half, loss


class Scratch:
    """What a reverse sweep reuses: evaluation gradients by round, which overlapping windows share, and two adjoints."""

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor] = {}  # round -> q_k ∇L of everybody
        self.unweighted: dict[int, tuple[Tensor, Tensor]] = {}  # round -> everybody's parameters, and ∇L there
        self.evaluation: object = None
        self.free: list[Tensor] = []
        self.exchanged: Tensor | None = None
        self.pulled: Tensor | None = None

    def of(self, evaluation: object) -> dict[int, Tensor]:
        """The weighted gradients of this evaluation by round; those of any other evaluation are dropped."""
        if evaluation is not self.evaluation:
            self.drop_gradients(None)
            self.evaluation = evaluation
        return self.gradients

    def drop_gradients(self, t: int | None) -> None:
        """Drop the gradients before round t, or all of them."""
        for old in [known for known in self.gradients if t is None or known < t]:
            self.free.append(self.gradients.pop(old))
        self.unweighted = {known: pair for known, pair in self.unweighted.items() if t is not None and known >= t}
