"""What is left of something in models that should have forgotten it: how far they are from never having known it."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.data import Samples
from cascadice.engine.fast.rows import over_rows
from cascadice.engine.learner import Participants, score
from cascadice.engine.networks import Network
from cascadice.engine.simulation import evaluate
from cascadice.influence.measures import per_sample


def distance(
    corrected: Participants, trained: Participants, replayed: Participants, *, start: Participants | None = None
) -> float:
    """What is left of the way: |θ_corrected − θ_replayed| / |θ_trained − θ_replayed| over all participants.

    0: as if never used. 1: nothing gained. Above 1: worse than leaving it. NaN where there was nothing to forget. Where
    the corrected and the replayed have both trained on since, `start` is the replayed as they were before.
    """
    left = float((corrected.theta - replayed.theta).double().norm())
    way = float((trained.theta - (replayed if start is None else start).theta).double().norm())
    return left / way if way else float("nan")


def losses(
    network: Network, participants: Participants, samples: Samples, chunk: int = 512
) -> Float[Tensor, "n samples"]:
    """The loss of every participant's model on each sample by itself. Cost: a forward pass each."""
    each = (per_sample(network.learner.loss),)
    found = []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(samples), device=network.device), chunk):
            x, y = samples.take(index)
            x = x.to(participants.theta.dtype) if x.is_floating_point() else x
            found.append(over_rows(score, network.strategy, network.learner, x, y, each)(participants)[0])
    return torch.cat(found, dim=1)


def advantage(members: Float[Tensor, "n members"], fresh: Float[Tensor, "n fresh"]) -> Float[Tensor, " n"]:
    """AUC of the attack that calls a sample known where its loss is low (Yeom et al. 2018): ½ is a guess.

    P(ℓ(member) < ℓ(fresh)) + ½ P(equal),   for each participant's model
    """
    ordered = fresh.sort(dim=1).values
    above = fresh.shape[1] - torch.searchsorted(ordered, members.contiguous(), right=True)
    not_below = fresh.shape[1] - torch.searchsorted(ordered, members.contiguous())
    return (above + not_below).double().mean(1) / (2 * fresh.shape[1])


class Trace(NamedTuple):
    """Of each participant's model: test loss and accuracy, and how well the attack tells members from fresh samples."""

    loss: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]
    membership: Float[Tensor, " n"]


def trace(network: Network, participants: Participants, members: Samples, fresh: Samples | None = None) -> Trace:
    """What `members`, which should be forgotten, still are to these models; `fresh` (the test data) were never seen."""
    fresh = network.data.test if fresh is None else fresh
    judged = evaluate(network, participants, fresh)
    known = advantage(losses(network, participants, members), losses(network, participants, fresh))
    return Trace(judged.loss, judged.accuracy, known)
