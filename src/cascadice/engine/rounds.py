"""A round as data: what was drawn, what it consumed and produced; a change of it, and an adjoint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine.dropout import GeneratorState
from cascadice.engine.learner import Participants
from cascadice.optimizers import State

Conduct = tuple[()] | tuple[Tensor, Tensor]
"""How participants behave in a round: () where all are honest, else the part of its update each makes, and the factor
by which it multiplies what it sends."""


class Draw(NamedTuple):
    """What was drawn for round t; whatever else depends on chance in it is a function of (seed, t, participant).

    `batch` holds numbers of training samples, −1 where a participant has fewer steps or samples than others.
    `lr` is one for all, one for each participant or, in a watched loop, one for each of its steps. `generators` holds
    the states from which a watched loop drew its dropout, [n][steps].
    """

    t: int
    batch: Int[Tensor, "n steps size"]
    W: Float[Tensor, "n n"]
    lr: float | Float[Tensor, " n"] | Float[Tensor, "n steps"]
    conduct: Conduct = ()
    generators: tuple[tuple[GeneratorState, ...], ...] = ()


MixingRule = Callable[[Draw, Participants, Participants], Tensor | Participants]
"""(draw, before, half) -> the mixing matrix to use, given what everyone sends; for rules that do not average, the mixed
parameters. `draw.W` says who hears whom; it is a copy, which the rule may edit."""


class Round(NamedTuple):
    """Everything one communication round consumed (`draw`, `before`) and produced (`half`, `after`, `loss`).

    `half` is what was sent: after local work, before the exchange. `tape` is left by taped training passes and makes
    scores of samples cheap. `rule` mixed the round where it was not W: trimmed means and the like.
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
        """`W[k, j]`: the weight k gave to what it received from j."""
        return self.draw.W

    @property
    def update(self) -> Float[Tensor, "n d"]:
        """Δ_j = θ_j^{t+½} − θ_j^t: what each participant's own data did to it."""
        return self.half.theta - self.before.theta


def unrecorded_rule(draw: Draw, before: Participants, half: Participants) -> Participants:
    """Stands for the rule of a round that was read from disk: the round knows that W did not mix it, not what did."""
    raise ValueError(
        f"round {draw.t} was mixed by a rule that does not average, and the recording does not hold the rule. "
        "Compute influence while training, or pass the rounds with round._replace(rule=...)."
    )


class Perturbation(NamedTuple):
    """A change of (θ, state) for every (receiver, source) pair inside the sources' light cones."""

    nodes: Int[Tensor, " p"]
    sources: Int[Tensor, " p"]
    theta: Float[Tensor, "p d"]
    state: State


class Adjoint(NamedTuple):
    """∂(measured sum)/∂(θ, state) of what each participant carries at one point of a round."""

    theta: Float[Tensor, "n d"]
    state: State


class Pulled(NamedTuple):
    """A round pulled back through: λ^t, and what each participant and each sample contributed on the way.

    `participants` is of whole updates, of θ and of the optimizer's state; `rates` is of what each learning rate did.
    """

    before: Adjoint
    participants: Float[Tensor, " n"]
    rates: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]


def rows_of(participants: Participants, nodes: Any) -> Participants:
    """The rows of these participants, an index or a tensor of them."""
    rows: Participants = tree_map(lambda tensor: tensor[nodes], participants)
    return rows


def moved(here: Participants, change: Perturbation) -> Participants:
    """What participants have with the change added, a row for each pair."""
    rows = rows_of(here, change.nodes)
    state = {name: value + change.state[name] for name, value in rows.state.items()}
    return Participants(rows.theta + change.theta, state, rows.buffers)


def difference(again: Participants, was: Participants, pairs: Perturbation) -> Perturbation:
    """From what participants had to what rows that stand for them have now."""
    once = rows_of(was, pairs.nodes)
    state = {name: again.state[name] - value for name, value in once.state.items()}
    return pairs._replace(theta=again.theta - once.theta, state=state)


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
