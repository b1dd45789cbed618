"""Evaluate on the first test samples of a run, or on all of them."""

import torch

from cascadice.engine import Evaluation, Network, evaluate_on


def check_eval_samples(count: int | None, network: Network) -> None:
    """Check that there are at least as many test samples as requested."""
    if (count or 0) > (available := len(network.data.test)):
        raise ValueError(f"--eval-samples must be at most {available}, the number of test samples; found {count}.")


def evaluate_on_first(count: int | None, network: Network) -> Evaluation:
    """The loss on the first `count` test samples, or on all of them.

    Example:
        >>> evaluate_on_first(100, network)
    """
    check_eval_samples(count, network)
    return evaluate_on(network, network.data.test.subset(torch.arange(count or len(network.data.test))))
