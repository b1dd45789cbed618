"""Interplay: how each participant's whole-run influence changes when another is left out.

interplay[j, i] = ∂f/∂α_i (α − α e_j) − ∂f/∂α_i (α)
"""

from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network
from cascadice.influence.weighted_run import Rounds, check_weight
from cascadice.influence.whole_run import whole_run


def interplay(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, at: float = 1.0, on: str | int = "all"
) -> Float[Tensor, "n n"]:
    """How i's influence changes when j is left out, for all pairs.

    Negative: without j, i helps more: they substitute for each other. Positive: i helps less: they complement each
    other. NaN on the diagonal. Cost: (n + 1) × `whole_run`.

    Args:
        network: The network to train, or that made the rounds.
        rounds: How many rounds to train (without a mixing rule), or recorded rounds up to the last; see `whole_run`.
        evaluation: What to measure, from `evaluate_on`.
        at: α, the weight of everyone's updates in the run, above 0; 1 is the run itself.
        on: The final models to measure: "all", weighted by q; "average", the average model; or a participant's number.

    Returns:
        `[j, i]`: the change in i's influence when j is left out.

    Raises:
        ValueError: As `whole_run` at another α than 1; if α is not one number above 0.
        DivergedError: If one of the runs diverges.

    Example:
        >>> interplay(network, 100, evaluate_on(network))[3].argmin()  # the best substitute for participant 3
    """
    check_weight(at, inf, "Use 1, which is the run itself.")
    together = whole_run(network, rounds, evaluation, at=at, on=on, samples=False).participants
    without = [influence_without(j, network, rounds, evaluation, at=at, on=on) for j in range(network.nodes)]
    return torch.stack(without) - together


def influence_without(
    left_out: int, network: Network, rounds: Rounds, evaluation: Evaluation, *, at: float = 1.0, on: str | int = "all"
) -> Float[Tensor, " n"]:
    """∂f/∂α_i of everyone in the run at α without the updates of one participant; NaN for that one."""
    if network.nodes < 2:
        raise ValueError("pairs need at least 2 participants; found 1. Use whole_run for its influence.")
    alpha = torch.full((network.nodes,), at, dtype=torch.float64)
    alpha[left_out] = 0
    return whole_run(network, rounds, evaluation, at=alpha, on=on, samples=False).participants
