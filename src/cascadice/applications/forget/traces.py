"""How far models are from never having used some data, and whether its samples can still be recognised."""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data import Samples
from cascadice.data.inputs import in_precision
from cascadice.engine import Network, Participants, evaluate
from cascadice.engine.operator import row_measures
from cascadice.influence.measures import per_sample

Total = Callable[..., tuple[float, ...]]
"""Sums of this process -> sums over all processes."""


def distance(
    corrected: Participants, trained: Participants, replayed: Participants, *, start: Participants | None = None,
    total: Total = lambda *squares: squares,
) -> float:  # fmt: skip
    """The distance left to models that never used it: |θ_corrected − θ_replayed| / |θ_trained − θ_replayed|.

    0: as if never used; 1: as trained; above 1: the correction did harm; NaN: there was nothing to forget.

    Args:
        corrected: The models that `forget` returned.
        trained: The models as they were trained.
        replayed: The models of an exact replay.
        start: The replayed models before repair, if both the corrected and the replayed ones were repaired afterwards.
        total: Adds up sums of squares over processes.

    Returns:
        One number for all models together.

    Example:
        >>> distance(estimate.participants, rounds[-1].after, exact.participants)
    """
    left = float((corrected.theta - replayed.theta).double().square().sum())
    whole = float((trained.theta - (replayed if start is None else start).theta).double().square().sum())
    left, whole = total(left, whole)
    return sqrt(left / whole) if whole else float("nan")


def sample_losses(
    network: Network, participants: Participants, samples: Samples, chunk: int = 512
) -> Float[Tensor, "n samples"]:
    """The loss of every participant's model on each single sample. Cost: one forward pass each.

    Args:
        network: The network whose loss it is.
        participants: The models.
        samples: The samples.
        chunk: How many samples to evaluate at once.

    Returns:
        A loss for each model and sample.

    Example:
        >>> losses = sample_losses(network, rounds[-1].after, network.data.test)  # doctest: +SKIP
    """
    measure = (per_sample(network.learner.loss),)
    losses = []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(samples), device=network.device), chunk):
            x, y = samples.take(index)
            x = in_precision(x, participants.theta.dtype)
            losses.append(row_measures(network.learner, network.strategy, participants, x, y, measure)[0])
    return torch.cat(losses, dim=1)


def membership_auc(members: Float[Tensor, "n members"], fresh: Float[Tensor, "n fresh"]) -> Float[Tensor, " n"]:
    """AUC of the attack that takes samples with low loss for training samples (Yeom et al. 2018); 0.5 is chance.

        P(ℓ(member) < ℓ(fresh)) + ½ P(equal)

    Args:
        members: Losses of each participant's model on the samples in question.
        fresh: Its losses on samples that were never used.

    Returns:
        An AUC for each participant's model.

    Example:
        >>> membership_auc(torch.tensor([[0.1, 0.2]]), torch.tensor([[0.3, 0.2]]))
        tensor([0.8750], dtype=torch.float64)
    """
    ordered = fresh.sort(dim=1).values
    above = fresh.shape[1] - torch.searchsorted(ordered, members.contiguous(), right=True)
    not_below = fresh.shape[1] - torch.searchsorted(ordered, members.contiguous())
    return (above + not_below).double().mean(1) / (2 * fresh.shape[1])


class Trace(NamedTuple):
    """Each participant's test loss and accuracy, and the AUC of the membership attack on the forgotten samples."""

    loss: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]
    membership: Float[Tensor, " n"]


def trace(network: Network, participants: Participants, members: Samples) -> Trace:
    """Measure models on the test data, and how well `members` can be told from test samples, which were never used.

    Args:
        members: The forgotten samples; without any, the AUC is NaN.

    Returns:
        Test loss, test accuracy and membership AUC of each participant's model.

    Example:
        >>> trace(network, corrected.participants, network.data.train.subset(torch.tensor([5, 9]))).membership
    """
    test = network.data.test
    metrics = evaluate(network, participants, test)
    if not len(members):
        return Trace(metrics.loss, metrics.accuracy, torch.full_like(metrics.loss, torch.nan, dtype=torch.float64))
    losses = (sample_losses(network, participants, samples) for samples in (members, test))
    return Trace(metrics.loss, metrics.accuracy, membership_auc(*losses))
