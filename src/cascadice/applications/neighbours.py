"""What participants hear of one another, and their own samples to judge it by: shared by `detect` and `choose`."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.engine import Evaluation, Network, Participants, Round, evaluate_on
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.operator import Exchange
from cascadice.influence import own_data
from cascadice.runs.processes import ONE_PROCESS, World

SAMPLES = 128  # to evaluate on in a round, where participants hold as many
LEAST = 3  # neighbours: of two that differ, nobody knows which is the odd one out


def own_samples(network: Network, asked: int | None = None, world: World = ONE_PROCESS) -> tuple[Evaluation, int]:
    """An evaluation on samples of each participant's own, and how many of these to use in a round, in turn."""
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # without one, own_data refuses
    least = min(world.tell(least))
    if asked is not None and not 1 <= asked <= least:
        raise ValueError(f"--own-samples must be in 1..{least}, the fewest that a participant holds; found {asked}.")
    evaluation = evaluate_on(network, own_data(network, min(least, 4 * SAMPLES)))
    return evaluation, min(asked or SAMPLES, least)


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
