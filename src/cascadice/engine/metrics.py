"""Loss and accuracy of each participant's model."""

from collections.abc import Callable, Sequence
from math import nan
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cascadice.data import Samples
from cascadice.data.inputs import IGNORED, in_precision
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.operator import row_measures
from cascadice.engine.rounds import rows_of
from cascadice.losses import Loss, accuracy, cross_entropy, mse

CHUNK = 512  # samples in one pass
MOST_OUTPUTS = 2**25  # numbers held at once if a loss must see a participant's outputs for all samples

Run = Callable[[Participants, Tensor, tuple[Loss, ...]], Tensor]
"""(participants, indices of samples, measures) -> [measures, n]: each measure of each participant on these samples."""


class Metrics(NamedTuple):
    """Loss and accuracy of each participant's model; accuracy is NaN if targets are not classes."""

    loss: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]


def evaluate(
    network: Network, participants: Participants, samples: Samples | None = None, chunk: int = CHUNK
) -> Metrics:
    """Loss and accuracy of every participant. Cost: a forward pass each.

    Models run on chunks of the samples. The library's own losses are means over samples, and are averaged over the
    chunks. Any other loss is applied once to all outputs of a participant, so these must fit into memory.

    Args:
        network: The network to be evaluated.
        participants: What they carry, e.g. `round.after`.
        samples: What to evaluate on; by default the test data.
        chunk: Samples in one pass; more need more memory.

    Returns:
        `loss` and `accuracy`, each with one value per participant.

    Raises:
        ValueError: If there are no samples.

    Example:
        >>> float(evaluate(network, rounds[-1].after).accuracy.mean())
    """
    samples = network.data.test if samples is None else samples
    if len(samples) == 0:
        raise ValueError("the evaluation set must hold at least one sample; it is empty.")
    classify = not samples.y.is_floating_point()
    measures = (network.learner.loss, accuracy) if classify else (network.learner.loss,)
    chunks = torch.split(torch.arange(len(samples), device=network.device), chunk)

    def run(rows: Participants, index: Tensor, measures: tuple[Loss, ...]) -> Tensor:
        x, y = samples.take(index)
        return row_measures(network.learner, network.strategy, rows, in_precision(x, rows.theta.dtype), y, measures)

    with torch.no_grad():
        if len(chunks) == 1:
            loss, *rest = run(participants, chunks[0], measures)
        elif any(network.learner.loss is mean for mean, _ in MEANS):
            loss, *rest = _average(run, participants, samples.y, chunks, measures)
        else:
            loss, *rest = _at_once(run, participants, samples.y, chunks, measures)
    return Metrics(loss, rest[0] if rest else torch.full_like(loss, torch.nan))


def _targets(y: Tensor) -> int:
    return len(y) if y.is_floating_point() else int((y != IGNORED).sum())


MEANS: tuple[tuple[Loss, Callable[[Tensor], int]], ...] = (
    (cross_entropy, _targets), (F.cross_entropy, _targets), (accuracy, _targets), (mse, len), (F.mse_loss, len),
)  # fmt: skip
"""Measures that are plain means, each with the number of its terms for given targets, up to a constant factor."""


def _average(
    run: Run, participants: Participants, y: Tensor, chunks: Sequence[Tensor], measures: tuple[Loss, ...]
) -> Float[Tensor, "measures n"]:
    """Means over all samples: the means of the chunks, weighted by their shares of the terms."""
    counts = [count for measure in measures for mean, count in MEANS if mean is measure]
    parts = []
    for index, targets in zip(chunks, torch.split(y, len(chunks[0])), strict=True):
        shares = [count(targets) / (count(y) or nan) for count in counts]
        if any(shares):
            values = zip(shares, run(participants, index, measures), strict=True)
            # the mean of a chunk without terms is NaN, and must not count
            parts.append(torch.stack([share * value if share else torch.zeros_like(value) for share, value in values]))
    return torch.stack(parts).sum(0)


def _at_once(
    run: Run, participants: Participants, y: Tensor, chunks: Sequence[Tensor], measures: tuple[Loss, ...]
) -> Float[Tensor, "measures n"]:
    """Any measures, applied to the outputs for all samples, a few participants at a time."""
    everything, given = torch.cat(tuple(chunks)), (lambda outputs, _: outputs,)
    one, two = (run(rows_of(participants, slice(1)), everything[:many], given)[0, 0] for many in (1, 2))
    if len(two) != 2 * len(one):  # not one row of outputs per sample, so outputs of chunks cannot be joined
        return run(participants, everything, measures)
    together, parts = max(1, MOST_OUTPUTS // (len(y) * one.numel())), []
    for start in range(0, len(participants.theta), together):
        rows = rows_of(participants, slice(start, start + together))
        outputs = torch.cat([run(rows, index, given)[0] for index in chunks], 1)
        values = [torch.stack([measure(own, y.to(own.device)) for own in outputs]) for measure in measures]
        parts.append(torch.stack(values))
    return torch.cat(parts, 1)
