"""Reverse gossip integrated along updates: fair parts, of participants and samples, of what a round really achieved."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.fast.rows import local_work
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round, mix
from cascadice.engine.simulation import play
from cascadice.influence.carrying import check_samples_are_apart, row_strategy
from cascadice.influence.cascades import Cascade, check_recording, check_sources, gauss_legendre
from cascadice.influence.evaluation import Evaluation
from cascadice.influence.pulling import Adjoint
from cascadice.influence.reverse_gossip import by_participant, by_sample, reverse_gossip


def shares(network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2) -> Float[Tensor, " n"]:
    """Aumann–Shapley shares: everybody's update of the round scaled together; they sum to the change it really made.

        share_j = ∫₀¹ A_j(α)ᵀ Δ_j dα        Σ_j share_j = Φ(1) − Φ(0)

    Cost: `points` × (a replay of the rounds and a sweep of reverse gossip).
    """
    check_recording(network, rounds)
    return by_participant(rounds[0], _mean_sensitivity(network, rounds, evaluation, points))


def shares_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int = 2
) -> Float[Tensor, "n batch"]:
    """Every sample's part of its participant's share: what its gradient is worth in the mean along everybody's updates.

    With one step of SGD a round they sum to `shares`. What a step does without any gradient (old momentum, weight
    decay) belongs to no sample; where a step is not linear in the gradient (Adam, clipping), parts are of its
    derivative. Cost: as `shares`.
    """
    check_recording(network, rounds)
    check_samples_are_apart(network)
    return by_sample(network, rounds[0], _mean_sensitivity(network, rounds, evaluation, points))


def path_integrated_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, source: int, points: int = 2
) -> Float[Tensor, " batch"]:
    """Every sample's part of `path_integrated` of its participant: only the source's own update is scaled.

    They sum to it as `shares_of_samples` do to `shares`. Cost: as `shares`, for one source.
    """
    check_sources(network, rounds, [source])
    check_samples_are_apart(network)
    return by_sample(network, rounds[0], _mean_sensitivity(network, rounds, evaluation, points, only=source))[source]


Estimate = TypeVar("Estimate", Tensor, Cascade)


def with_error(estimate: Callable[[int], Estimate], points: int = 2) -> tuple[Estimate, Tensor]:
    """An integral at `points` + 1, and how far it moved from `points`: an estimate of its error, on the safe side.

        value, error = with_error(lambda points: shares(network, rounds, evaluation, points))

    Where networks are smooth the error of the value is far smaller; kinks (ReLU) are not seen by derivatives, and from
    two hops on leave a part that no number of points shows. Cost: 2 · `points` + 1 points.
    """
    rough, value = estimate(points), estimate(points + 1)
    return value, (_numbers(value) - _numbers(rough)).abs()


def _numbers(estimate: Tensor | Cascade) -> Tensor:
    return estimate.value if isinstance(estimate, Cascade) else estimate


def _mean_sensitivity(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, points: int, only: int | None = None
) -> Adjoint:
    """∫₀¹ A(α) dα: what a piece of an update is worth in the mean along it, where it acts on oneself included."""
    first = rounds[0].half
    theta, state = torch.zeros_like(first.theta), {name: torch.zeros_like(value) for name, value in first.state.items()}
    for alpha, weight in gauss_legendre(points):
        along = scaled(network, rounds, alpha, only)
        found = reverse_gossip(network, along, evaluation, direct=along[0].half.theta)
        theta.add_(found.theta, alpha=weight)
        for name, total in state.items():
            total.add_(found.state[name], alpha=weight)
    return Adjoint(theta, state)


def scaled(network: Network, rounds: Sequence[Round], alpha: float, only: int | None = None) -> list[Round]:
    """These rounds again, with `alpha` of everybody's local work in the first, or of `only` one participant's."""
    first, rows = rounds[0], slice(only, None if only is None else only + 1)

    def part(old: Tensor, new: Tensor) -> Tensor:
        new = new.clone()
        new[rows] = torch.lerp(old[rows], new[rows], alpha)
        return new

    state = {name: part(first.before.state[name], value) for name, value in first.half.state.items()}
    half = Participants(part(first.before.theta, first.half.theta), state, first.half.buffers)
    played = [first._replace(half=half, after=mix(first.W, half))]
    work = local_work(row_strategy(network), network.learner)
    for done in rounds[1:]:
        played.append(play(network, work, done.draw, played[-1].after))
    return played
