"""How good each participant's model is."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data import Samples
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

    Example:
        >>> float(evaluate(network, rounds[-1].after).accuracy.mean())
    """
    samples = network.data.test if samples is None else samples
    if len(samples) == 0:
        raise ValueError("the evaluation set must hold at least one sample; it is empty.")
    classify = not samples.y.is_floating_point()
    measures = (network.learner.loss, accuracy) if classify else (network.learner.loss,)
    totals: list[Tensor] = []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(samples), device=network.device), chunk):
            x, y = samples.take(index)
            x = x.to(participants.theta.dtype) if x.is_floating_point() else x
            part = row_measures(network.learner, network.strategy, participants, x, y, measures)
            totals.append(part * (len(index) / len(samples)))
    loss, *rest = torch.stack(totals).sum(0)
    return Metrics(loss, rest[0] if rest else torch.full_like(loss, torch.nan))
