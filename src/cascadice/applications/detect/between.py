"""What the receivers in one process see of a round, where participants are in several: what came to them, no more.

Beside its model, everybody sends its update to those that hear it: as many bytes again.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.applications.neighbours import placed, updates_of_neighbours
from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.engine.exchange.geometry import inner_products, neighbours, norms
from cascadice.engine.operator import Exchange


@dataclass(frozen=True, eq=False)
class ReceivedHere:
    """`Received` by the participants of this process; what belongs to other receivers is 0, and they heard nobody."""

    heard: Bool[Tensor, "n n"]
    inner: Float[Tensor, "n n"]
    gradient_cosine: Float[Tensor, "n n"]


def receive(network: Network, round_: Round, evaluation: Evaluation, exchange: Exchange) -> ReceivedHere:
    """What own participants see of a round. Cost: a message a link, and an evaluation gradient each."""
    updates = updates_of_neighbours(network, round_, exchange)
    own, seen = network.members, sorted(updates)
    rows = torch.stack([updates[j] for j in seen])
    _, gradient = Operator(network).gradients(evaluation, round_.after, range(network.nodes))
    inner = placed(network, inner_products(rows, rows), seen, seen)
    products, lengths = inner_products(rows, gradient), torch.outer(norms(rows), norms(gradient))
    cosine = placed(network, torch.where(lengths > 0, products / lengths, 0.0), seen, own)
    here = torch.zeros(network.whole, dtype=torch.bool).index_fill_(0, torch.tensor(own), True)
    held = (round_.W.to_dense().T > 0).to(cosine.device)
    return ReceivedHere(neighbours(round_.W).T.cpu() & here, inner, torch.where(held, cosine, 0.0))
