"""What every exchange can do: be applied, replayed, pushed through and pulled back through."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from cascadice.engine.exchange.stacked import Point
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint, Perturbation, Round


@runtime_checkable
class Exchange(Protocol):
    """How what participants send becomes what they have: stacked in memory, or as messages along the edges."""

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants: ...

    def mixed(self, round_: Round) -> Float[Tensor, "n n"]: ...

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> Perturbation: ...

    def push(self, round_: Round, at: Point, before: Perturbation | None, half: Perturbation) -> Perturbation: ...

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint: ...
