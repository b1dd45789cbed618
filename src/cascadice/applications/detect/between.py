"""What the receivers in one process see of a round, where participants are in several: what came to them, no more.

Beside its model, everybody sends its update to those that hear it: as many bytes again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.engine import Evaluation, Network, Operator, Participants, Round
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


def updates_of_neighbours(
    network: Network, round_: Round, exchange: Exchange, hears: Bool[Tensor, "n n"] | None = None
) -> dict[int, Tensor]:
    """Δ_j of own participants, and of everybody they hear, by number; `hears[k, j]` unless it is by W.

    A mixing matrix that gives weight 1 to one neighbour each is an exchange of plain messages.
    """
    found = dict(zip(network.members, round_.update, strict=True))
    sent = Participants(round_.update, {}, round_.half.buffers)
    heard = neighbours(round_.W) if hears is None else hears
    lists = [row.nonzero().flatten().tolist() for row in heard.cpu()]
    for turn in range(max(map(len, lists))):
        W = torch.zeros(network.whole, network.whole, dtype=torch.float64)
        for k, sources in enumerate(lists):
            W[k, sources[turn : turn + 1]] = 1
        one = round_._replace(draw=round_.draw._replace(W=W))
        came = exchange.apply(one, sent).theta
        found |= {lists[k][turn]: row for k, row in zip(network.members, came, strict=True) if turn < len(lists[k])}
    return found


def placed(network: Network, values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Float[Tensor, "n n"]:
    """The matrix of everybody with these values in these rows and columns, and 0 elsewhere."""
    whole = values.new_zeros(network.whole, network.whole)
    whole[torch.tensor(rows)[:, None], torch.tensor(columns)] = values
    return whole
