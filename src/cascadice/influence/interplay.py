"""Who substitutes whom: how the whole-run influence of everybody changes when somebody is left out."""

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Evaluation, Network
from cascadice.influence.whole_run import Rounds, whole_run


def interplay(network: Network, rounds: Rounds, evaluation: Evaluation) -> Float[Tensor, "n n"]:
    """`[j, i]`: how much i's influence changes when j is left out.

        ∂f/∂α_i (1 − e_j) − ∂f/∂α_i (1)

    Negative: without j, i helps more, so the two substitute each other. Positive: i helps less, so they complement each
    other. NaN on the diagonal. Cost: n + 1 × `whole_run`.

    Args:
        rounds: How many rounds to train; or rounds that were kept, from the first to the last.

    Returns:
        `[j, i]`, j the one left out and i the one whose influence changes.

    Example:
        >>> interplay(network, 100, evaluate_on(network))[3].argmin()  # who stands in best for participant 3
    """
    together = whole_run(network, rounds, evaluation, samples=False).participants
    without = (1 - one for one in torch.eye(network.nodes, dtype=torch.float64))
    alone = [whole_run(network, rounds, evaluation, at=at, samples=False).participants for at in without]
    return torch.stack(alone) - together
