"""How good each participant's model is."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data import Samples
from cascadice.data.inputs import IGNORED, in_precision
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.operator import row_measures
from cascadice.losses import accuracy

CHUNK = 512  # samples in one pass


class Metrics(NamedTuple):
    """Of each participant's model; accuracy is NaN where targets are not classes."""

    loss: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]


def evaluate(
    network: Network, participants: Participants, samples: Samples | None = None, chunk: int = CHUNK
) -> Metrics:
    """Loss and accuracy of every participant. Cost: a forward pass each.

    Args:
        participants: What they carry, e.g. `round.after`.
        samples: What to evaluate on; the test data unless given.
        chunk: Samples in one pass: more need more memory.

    Returns:
        `loss` and `accuracy`, each with one value a participant.

    Example:
        >>> float(evaluate(network, rounds[-1].after).accuracy.mean())
    """
    samples = network.data.test if samples is None else samples
    if len(samples) == 0:
        raise ValueError("the evaluation set must hold at least one sample; it is empty.")
    classify = not samples.y.is_floating_point()
    measures = (network.learner.loss, accuracy) if classify else (network.learner.loss,)
    totals, counted = list[Tensor](), _targets(samples.y)
    with torch.no_grad():
        for index in torch.split(torch.arange(len(samples), device=network.device), chunk):
            x, y = samples.take(index)
            x = in_precision(x, participants.theta.dtype)
            if share := _targets(y) / counted:
                totals.append(share * row_measures(network.learner, network.strategy, participants, x, y, measures))
    loss, *rest = torch.stack(totals).sum(0)
    return Metrics(loss, rest[0] if rest else torch.full_like(loss, torch.nan))


def _targets(y: Tensor) -> int:
    """How many targets a mean loss is over, but for a factor."""
    return len(y) if y.is_floating_point() else int((y != IGNORED).sum())
