"""Who substitutes whom: how the whole-run influence of everybody changes when somebody is left out."""

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network
from cascadice.influence.run_at import Rounds
from cascadice.influence.whole_run import whole_run


def interplay(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, at: float = 1.0, on: str | int = "all"
) -> Float[Tensor, "n n"]:
    """`[j, i]`: how much i's influence changes when j is left out.

        ∂f/∂α_i (α − α e_j) − ∂f/∂α_i (α)

    Negative: without j, i helps more, so the two substitute each other. Positive: i helps less, so they complement each
    other. NaN on the diagonal. Cost: n + 1 × `whole_run`.

    Args:
        rounds: How many rounds to train; or rounds that were kept, from the first to the last.
        at: α, the weight of everybody's updates in the run that is looked at; 1 is the run itself.
        on: Whose final models: "all", weighted by q; "average", the average model; or the number of a participant.

    Returns:
        `[j, i]`, j the one left out and i the one whose influence changes.

    Example:
        >>> interplay(network, 100, evaluate_on(network))[3].argmin()  # who stands in best for participant 3
    """
    together = whole_run(network, rounds, evaluation, at=at, on=on, samples=False).participants
    without = [influence_without(j, network, rounds, evaluation, at=at, on=on) for j in range(network.nodes)]
    return torch.stack(without) - together


def influence_without(
    left_out: int, network: Network, rounds: Rounds, evaluation: Evaluation, *, at: float = 1.0, on: str | int = "all"
) -> Float[Tensor, " n"]:
    """∂f/∂α_i of everybody, in the run at α in which one participant's updates do not count; NaN for that one.

    Example:
        >>> influence_without(3, network, 100, evaluate_on(network))
    """
    alpha = torch.full((network.nodes,), at, dtype=torch.float64)
    alpha[left_out] = 0
    return whole_run(network, rounds, evaluation, at=alpha, on=on, samples=False).participants
