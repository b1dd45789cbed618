"""What must hold of a network, and of rows that stand for its participants, before derivatives and losses are taken."""

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from cascadice import optimizers
from cascadice.engine.networks import Network
from cascadice.optimizers import Optimizer


def check_differentiable(network: Network) -> None:
    """Derivatives need optimizers whose steps respond to gradients."""
    for learner in network.learners:
        _check_optimizer(learner.optimizer)


@lru_cache(maxsize=64)
def _check_optimizer(optimizer: Optimizer) -> None:
    optimizers.check_differentiable(optimizer)


def check_rows(network: Network, theta: Tensor, nodes: Sequence[int]) -> None:
    """There must be a row for each of these participants, as long as its parameters."""
    expected = (len(nodes), network.learner.size)
    if theta.shape != expected:
        raise ValueError(
            f"parameters must be of this network, {list(expected)}; found {list(theta.shape)}. "
            "Build the network that was recorded."
        )
