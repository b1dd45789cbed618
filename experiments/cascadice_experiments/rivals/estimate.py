"""The scores and cost of a rival estimator, and the rounds that it uses."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Network, Round, simulate

GRADIENT = 3
"""The cost of a gradient in evaluations: a forward pass, and a backward pass that takes twice as long."""


class Estimate(NamedTuple):
    """Scores, and what they cost on top of the one run they are about.

    Attributes:
        scores: Of each participant, or of each sample, in units of the loss; negative helped.
        evaluations: Forward passes of one model over the evaluation data; a gradient counts as three.
        trainings: Networks trained.
    """

    scores: Float[Tensor, " size"]
    evaluations: int
    trainings: int = 0


def weighted_rounds(network: Network, rounds: int | Sequence[Round], every: int = 1) -> Iterator[tuple[Round, float]]:
    """Each round with how many rounds it stands for: 0 where it is not looked at.

    Of every `every` rounds it is the middle one that is looked at. Rounds that are played here are overwritten by the
    next one.

    Example:
        >>> [weight for _, weight in weighted_rounds(network, 6, every=3)]
        [0.0, 3.0, 0.0, 0.0, 3.0, 0.0]
    """
    count = rounds if isinstance(rounds, int) else len(rounds)
    if every < 1 or not (middles := range(every // 2, count, every)):
        raise ValueError(f"every must be at least 1 and leave one of {count} rounds to look at; found {every}.")
    played: Iterable[Round] = simulate(network, rounds, window=0) if isinstance(rounds, int) else rounds
    for place, round_ in enumerate(played):
        yield round_, count / len(middles) if place in middles else 0.0


def looked_at(network: Network, rounds: int | Sequence[Round], every: int = 1) -> Iterator[tuple[Round, float]]:
    """The rounds that are looked at, each with how many it stands for; see `weighted_rounds`."""
    return ((round_, weight) for round_, weight in weighted_rounds(network, rounds, every) if weight)
