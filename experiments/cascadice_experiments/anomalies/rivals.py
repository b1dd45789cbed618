"""Scores from the literature, to compare with the detector's signals."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.applications.detect.signals import Signal
from cascadice.applications.neighbours import Received
from cascadice.engine import Operator, Participants


def own_cosine(received: Received) -> Float[Tensor, "n n"]:
    """cos(Δ_k, Δ_j): how much j's update agrees with the receiver's own."""
    norms = received.inner.diag().sqrt()
    lengths = torch.outer(norms, norms)
    return torch.where(lengths > 0, received.inner / lengths, 0.0)


def received_loss(received: Received) -> Float[Tensor, "n n"]:
    """The loss on k's data of the model that j sent. Cost: a forward pass a link."""
    network, half, operator = received.network, received.round_.half, Operator(received.network)
    losses = half.theta.new_zeros(network.nodes, network.nodes)
    for pairs in torch.split(received.heard.nonzero(), network.nodes):
        source, receiver = pairs.to(losses.device).unbind(1)
        buffers = {name: buffer[source] for name, buffer in half.buffers.items()}
        sent = Participants(half.theta[source], {}, buffers)
        loss = operator.losses(received.evaluation, sent, pairs[:, 1].tolist())
        losses[source, receiver] = loss.to(losses)
    return losses


# The norm of the update and Krum's distance, also in use, are signals.
RIVALS: Mapping[str, Signal] = {
    "cosine to own update": Signal(
        own_cosine, "its updates agree more with the receiver's", "its updates agree less with the receiver's"
    ),
    "loss of received model": Signal(received_loss, "its models have a higher loss", "its models have a lower loss"),
}
