"""The signals by which a receiver notices that a neighbour's updates are unlike the others'.

The influence of j on k is a product, ⟨∇L_k, Δ_j⟩ = ‖∇L_k‖ · ‖Δ_j‖ · cos, and one factor can hide another: noise makes
an update large and its direction random, which leaves the product as it was. So the product and both factors that
depend on j are signals. They miss anything orthogonal to ∇L_k; the distance of Δ_j from the other updates shows it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.applications.neighbours import Received, receive
from cascadice.engine import Evaluation, Network, Round
from cascadice.engine.exchange.robust import krum_scores


def influence(received: Received) -> Float[Tensor, "n n"]:
    """‖Δ_j‖ cos(∇L_k, Δ_j): the first-order influence of j on k, up to a factor that all neighbours of k share."""
    return size(received) * received.proximity.cosine


def direction(received: Received) -> Float[Tensor, "n n"]:
    """cos(∇L_k, Δ_j): whether j's update points up or down k's loss."""
    return received.proximity.cosine


def size(received: Received) -> Float[Tensor, "n n"]:
    """‖Δ_j‖, the same for all receivers."""
    return received.inner.diag().sqrt()[:, None].expand_as(received.inner)


def distance(received: Received) -> Float[Tensor, "n n"]:
    """Krum's score (Blanchard et al. 2017): summed squared distances of Δ_j to the nearest m − 3 of k's m updates."""
    squares, heard = received.inner.diag(), received.heard.T
    squared = (squares[:, None] + squares - 2 * received.inner).clamp_min(0)
    scores = krum_scores(squared, heard, heard.sum(1) - 2)
    return scores.masked_fill(scores.isinf(), 0.0).T


class Signal(NamedTuple):
    """A score of every link, and what it means if j's score is above, or below, those of k's other neighbours."""

    score: Callable[[Any], Tensor]
    above: str
    below: str


SIGNALS: Mapping[str, Signal] = {
    "influence": Signal(influence, "it harms more than the others", "it helps more than the others"),
    "direction": Signal(
        direction, "its updates lead away from lower loss", "its updates lead to lower loss more directly"
    ),
    "size": Signal(size, "its updates are larger", "its updates are smaller"),
    "distance": Signal(
        distance, "its updates are far from those of the others", "its updates are unusually close to the others'"
    ),
}


def signal_scores(
    network: Network, round_: Round, evaluation: Evaluation, signals: Mapping[str, Signal] = SIGNALS
) -> Float[Tensor, "signals n n"]:
    """Score every source j by each signal, for every receiver k: `[signal, j, k]`. Meaningless where k did not hear j.

    Args:
        evaluation: On each participant's own data: `evaluate_on(network, own_data(network, size))`.
        signals: name -> signal; `SIGNALS` by default.

    Returns:
        A matrix for each signal, in their order.

    Example:
        >>> signal_scores(network, rounds[0], evaluate_on(network, own_data(network, 80))).shape
    """
    return scores_of(receive(network, round_, evaluation), signals)


def scores_of(received: Received, signals: Mapping[str, Signal] = SIGNALS) -> Float[Tensor, "signals n n"]:
    """`signal_scores` for what was received."""
    return torch.stack([signal.score(received).to(received.inner) for signal in signals.values()])
