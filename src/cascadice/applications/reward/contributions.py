"""What every participant contributed, round by round: two ways to score it. Negative contributions helped."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from cascadice.engine import Evaluation, Network, Round
from cascadice.influence.checks import check_recording
from cascadice.influence.full_horizon import full_horizon
from cascadice.influence.readings import samples_of
from cascadice.influence.reverse_gossip import by_participant, by_sample
from cascadice.influence.shares import mean_adjoint


class Entry(NamedTuple):
    """What everybody contributed in a round: by its whole update and, if asked, by each sample that it drew."""

    round: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"] | None = None
    draw: Int[Tensor, "n samples"] | None = None


def by_shares(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, *, points: int = 2, samples: bool = False
) -> Entry:
    """Aumann–Shapley shares of what the updates of the first round did to the models after gossip, for all its hops.

        share_j = ∫₀¹ (A_j(α) − q_j ∇L(θ_j(α)))ᵀ Δ_j dα
        Σ_j share_j = Σ_{h≥1} Σ_k q_k (L(θ_k^{t+h}) − L(θ_k^{t+h} had nobody worked in round t))

    As `influence.shares`, without hop 0: what a step does to oneself before anybody has heard of it is nothing to be
    paid for. With one hop, what the round's work and its gossip did add up to the change of the loss in that round.
    Cost: `points` × (a replay of the rounds, a sweep of reverse gossip, an evaluation gradient).
    """
    check_recording(network, rounds)
    first, adjoint = rounds[0], mean_adjoint(network, rounds, evaluation, points, direct=False)
    if not samples:
        return Entry(first.t, by_participant(first, adjoint))
    scores = by_sample(network, first, adjoint)
    return Entry(first.t, by_participant(first, adjoint), scores, samples_of(first, scores))


def by_horizon(
    network: Network, backwards: Iterable[Round], evaluation: Evaluation, *, samples: bool = False
) -> Iterator[Entry]:
    """What the updates of every round did to the final models, to first order; `backwards` from the last round.

    As `influence.full_horizon`. Cost: about two training passes a round, samples included.
    """
    drawn: list[Tensor] = []

    def noted() -> Iterator[Round]:
        for done in backwards:
            drawn.append(done.draw.batch.cpu().flatten(1))
            yield done

    for scored in full_horizon(network, noted(), evaluation):
        mine = drawn.pop()
        yield Entry(scored.t, scored.participants, *((scored.samples, mine) if samples else ()))
