"""A round: what it drew, what it consumed, what it produced, and the pure function that performs it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.engine.learner import Conduct, Participants
from cascadice.topology import check as check_mixing
from cascadice.topology import gossip


class Draw(NamedTuple):
    """What was drawn for round t; whatever else depends on chance in it is a function of (seed, t, participant)."""

    t: int
    batch: Int[Tensor, "n steps size"]
    W: Float[Tensor, "n n"]
    lr: float | Float[Tensor, " n"]
    conduct: Conduct = ()


class Round(NamedTuple):
    """Everything one communication round consumed (`draw`, `before`) and produced (`half`, `after`, `loss`).

    `tape` is what its training passes left behind if they were taped: it makes scores of samples cheap.
    """

    draw: Draw
    before: Participants
    half: Participants
    after: Participants
    loss: Float[Tensor, " n"]
    tape: Any = ()

    @property
    def t(self) -> int:
        """The number of this round, from 0."""
        return self.draw.t

    @property
    def W(self) -> Float[Tensor, "n n"]:
        """`W[k, j]`: the weight k gave to what it received from j."""
        return self.draw.W

    @property
    def update(self) -> Float[Tensor, "n d"]:
        """Δ_j = θ_j^{t+½} − θ_j^t: what each participant's own data did to it."""
        return self.half.theta - self.before.theta


MixingRule = Callable[[Draw, Participants, Participants], Tensor | Participants]
"""(drawn, before, half) -> the W to gossip by, seen what everybody sends; or, of a rule that is no average, the result.

`drawn.W` says who hears whom. Influence reads a round's W, so it knows nothing of a rule that is no average.
"""


def gossiped(
    drawn: Draw, before: Participants, half: Participants, rule: MixingRule | None, room: Participants | None
) -> tuple[Draw, Participants]:
    """What was drawn, with the W that was used, and the participants after gossip."""
    chosen = drawn.W if rule is None else rule(drawn, before, half)
    if isinstance(chosen, Participants):
        return drawn, chosen
    if chosen is not drawn.W:
        drawn = drawn._replace(W=_checked(chosen, drawn.t, half, rule))
    return drawn, mix(drawn.W, half, room)


def _checked(W: Any, t: int, half: Participants, rule: Any) -> Float[Tensor, "n n"]:
    """A copy of the W that a rule returned (it may refill the tensor next round), once it is known to be one."""
    name = getattr(rule, "__qualname__", type(rule).__name__).split(".<locals>")[0]
    where = f"the W that the rule {name} returned in round {t} cannot be used"
    if not isinstance(W, Tensor):
        raise TypeError(f"{where}: it must be a tensor, or Participants; found {type(W).__name__}.")
    if W.shape != (len(half.theta), len(half.theta)):
        found = " x ".join(map(str, W.shape)) or "a single number"
        raise ValueError(f"{where}: it must have a row and a column for each of {len(half.theta)}; found {found}.")
    try:
        check_mixing(W.detach().cpu())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    copy: Tensor = W.detach().clone()
    return copy


def mix(W: Float[Tensor, "n n"], half: Participants, room: Participants | None = None) -> Participants:
    """Gossip averaging, θ_k^{t+1} = Σ_j W[k, j] θ_j^{t+½}. Real-valued buffers travel along, optimizer state stays."""
    theta = gossip(W, half.theta, out=None if room is None else room.theta)
    buffers = {name: _mixed(W, value) for name, value in half.buffers.items()}
    if room is not None:
        buffers = {name: room.buffers[name].copy_(value) for name, value in buffers.items()}
    return Participants(theta, half.state, buffers)


def _mixed(W: Tensor, buffer: Tensor) -> Tensor:
    if not buffer.is_floating_point():
        return buffer
    return gossip(W, buffer.reshape(len(buffer), -1)).view(buffer.shape)


def consensus(theta: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """How far apart the participants are: √(mean_k ‖θ_k − θ̄‖²)."""
    mean = theta.mean(0)
    # on CPU row by row: a temporary as large as theta is fresh memory, and costs more than the arithmetic
    rows = theta[None] if theta.is_cuda else theta[:, None]
    return torch.cat([torch.linalg.vector_norm(row - mean, dim=1) for row in rows]).square().mean().sqrt()
