"""A round as data: what was drawn for it, what it consumed and produced; and changes and derivatives of these."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice.data.inputs import at
from cascadice.engine.dropout import GeneratorState
from cascadice.engine.learner import Participants
from cascadice.optimizers import State

Conduct = tuple[()] | tuple[Tensor, Tensor]
"""How participants behave in a round: () if all are honest, else two values for each of them: the part of its local
work that it does, and the factor by which it multiplies the update that it sends."""


class Draw(NamedTuple):
    """What was drawn for round t. All other randomness in it is a function of (seed, t, participant, step).

    Attributes:
        t: The number of the round, from 0.
        batch: Indices of training samples; −1 where a participant has fewer steps or samples than others.
        W: `W[k, j]` is the weight that k gives to what it receives from j.
        lr: One learning rate for all, one for each participant or, in a watched loop, one for each of its steps.
        conduct: How participants behave, see `Conduct`.
        generators: The generator states from which a watched loop drew its dropout, for each participant a list with
            one per step; () elsewhere.
        first_step: The local step that `batch` begins with; above 0 in later phases of an uneven round.
    """

    t: int
    batch: Int[Tensor, "n steps size"]
    W: Float[Tensor, "n n"]
    lr: float | Float[Tensor, " n"] | Float[Tensor, "n steps"]
    conduct: Conduct = ()
    generators: tuple[tuple[GeneratorState, ...], ...] = ()
    first_step: int = 0


MixingRule = Callable[[Draw, Participants, Participants], Tensor | Participants]
"""(draw, before, half) -> the mixing matrix to use, given what everyone sends; for rules that do not average, the mixed
parameters. `draw.W` says who hears whom; it is a copy, which the rule may edit."""


class Round(NamedTuple):
    """Everything that one communication round consumed and produced.

    Attributes:
        draw: What was drawn: batches, mixing matrix, learning rate.
        before: What participants carried before the round.
        half: What was sent: after local work, before the exchange.
        after: What participants carry after the exchange.
        loss: The mean training loss of each participant over its local steps.
        tape: What the training pass left for cheap sample scores; () unless `simulate(taped=True)`.
        rule: What mixed the round if W did not: a trimmed mean, for example.
    """

    draw: Draw
    before: Participants
    half: Participants
    after: Participants
    loss: Float[Tensor, " n"]
    tape: Any = ()
    rule: MixingRule | None = None

    def __repr__(self) -> str:
        nodes, size = self.before.theta.shape
        mean = float(self.loss.mean())
        return f"Round({self.t}, {nodes} participants, {size:,} parameters each, mean training loss {mean:.4f})"

    @property
    def t(self) -> int:
        """The number of this round, from 0."""
        return self.draw.t

    @property
    def W(self) -> Float[Tensor, "n n"]:
        """`W[k, j]`: the weight that k gave to what it received from j."""
        return self.draw.W

    @property
    def update(self) -> Float[Tensor, "n d"]:
        """Δ_j = θ_j^{t+½} − θ_j^t: what each participant's own data did to its parameters."""
        return self.half.theta - self.before.theta


def unrecorded_rule(draw: Draw, before: Participants, half: Participants) -> Participants:
    """Stands in for the rule of a round that was read from disk, where it is only known that W did not mix it."""
    raise ValueError(
        f"round {draw.t} was mixed by a rule that does not average, and the recording does not hold the rule. "
        "Compute influence while training, or pass the rounds with round._replace(rule=...)."
    )


class Perturbation(NamedTuple):
    """A change of (θ, state) for every pair (receiver, source) inside the sources' light cones."""

    nodes: Int[Tensor, " p"]
    sources: Int[Tensor, " p"]
    theta: Float[Tensor, "p d"]
    state: State

    def added_to(self, here: Participants) -> Participants:
        """The participants with this change, a row for each pair."""
        rows = rows_of(here, self.nodes)
        state = {name: value + self.state[name] for name, value in rows.state.items()}
        return Participants(rows.theta + self.theta, state, rows.buffers)


class Adjoint(NamedTuple):
    """λ = ∂(what is measured)/∂(θ, state) of each row at one point of a round; pulled backwards."""

    theta: Float[Tensor, "n d"]
    state: State


Tangent = Adjoint
"""δ, a change of (θ, state) of each row, pushed forwards: the same two fields as an adjoint."""


class Pulled(NamedTuple):
    """What pulling an adjoint back through a round gives: λ^t, and what everything in the round contributed."""

    before: Adjoint
    participants: Float[Tensor, " n"]  # each update, of θ and optimizer state together
    rates: Float[Tensor, " n"]  # each learning rate: the derivative with respect to a factor on it, at 1
    samples: Float[Tensor, "n samples"]


def rows_of(participants: Participants, nodes: Any) -> Participants:
    """The rows of these participants: an index, a slice or a tensor of indices."""
    rows: Participants = at(participants, nodes)
    return rows


def difference(changed: Participants, original: Participants, pairs: Perturbation) -> Perturbation:
    """`changed`, which has a row for each pair, minus the `original` participants of these pairs."""
    rows = rows_of(original, pairs.nodes)
    state = {name: changed.state[name] - value for name, value in rows.state.items()}
    return pairs._replace(theta=changed.theta - rows.theta, state=state)


def consensus(theta: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """How far apart the participants are: √(mean_k ‖θ_k − θ̄‖²).

    Args:
        theta: Everybody's parameters, e.g. `round.after.theta`.

    Returns:
        The root mean square distance from the average participant, a scalar.

    Example:
        >>> consensus(round.after.theta)
    """
    mean = theta.mean(0)
    # on CPU row by row: a temporary as large as theta is fresh memory, and costs more than the arithmetic
    rows = theta[None] if theta.is_cuda else theta[:, None]
    return torch.cat([torch.linalg.vector_norm(row - mean, dim=1) for row in rows]).square().mean().sqrt()
