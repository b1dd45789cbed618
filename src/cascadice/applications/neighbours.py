"""The updates that participants receive, and the own samples by which they judge them; for `detect` and `choose`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.data.batches import used
from cascadice.engine import Evaluation, Network, Participants, Round, evaluate_on
from cascadice.engine.exchange.geometry import inner_products, neighbours
from cascadice.engine.operator import Exchange
from cascadice.influence.proximity import Proximity, own_data, placed, proximity_of
from cascadice.runs import store
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.recording import Recording

SAMPLES = 128  # to evaluate on in a round, if participants hold as many
LEAST = 3  # neighbours; of two that differ, nobody can tell which is the odd one out


def with_holdings(recording: Recording) -> Network:
    """The recorded network; if it was given batches, everybody holds what it used in the recorded rounds."""
    network, folder = recording.network, recording.folder
    if network.partition is not None:
        return network
    holdings = used([store.load_draw(folder, t).batch for t in recording.round_numbers])
    if (row := next((row for row, part in enumerate(holdings) if not len(part)), None)) is not None:
        node = (network.members or range(network.nodes))[row]
        raise ValueError(
            f"participants judge one another by samples of their own; participant {node} used none in the recorded "
            "rounds. Build the network with partition=..., or record rounds in which it trains."
        )
    return replace(network, partition=holdings)


def own_samples(network: Network, asked: int | None = None, world: World = ONE_PROCESS) -> tuple[Evaluation, int]:
    """An evaluation on each participant's own samples, and how many of them to use in a round, in turn."""
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # without one, own_data refuses
    least = min(world.tell(least))
    if asked is not None and not 1 <= asked <= least:
        raise ValueError(f"--own-samples must be in 1..{least}, the fewest that a participant holds; found {asked}.")
    evaluation = evaluate_on(network, own_data(network, min(least, 4 * SAMPLES)))
    return evaluation, min(asked or SAMPLES, least)


def updates_of_neighbours(
    network: Network, round_: Round, exchange: Exchange, hears: Bool[Tensor, "n n"] | None = None
) -> dict[int, Tensor]:
    """Δ_j of this process's participants and of everybody they hear, by number. By default W says who hears whom.

    Mixing with weight 1 for one neighbour each delivers that neighbour's update unchanged.
    """
    updates = dict(zip(network.members, round_.update, strict=True))
    sent = Participants(round_.update, {}, round_.half.buffers)
    heard = neighbours(round_.W) if hears is None else hears
    lists = [row.nonzero().flatten().tolist() for row in heard.cpu()]
    for turn in range(max(map(len, lists))):
        W = torch.zeros(network.whole, network.whole, dtype=torch.float64)
        for k, sources in enumerate(lists):
            W[k, sources[turn : turn + 1]] = 1
        one = round_._replace(draw=round_.draw._replace(W=W))
        delivered = exchange.apply(one, sent).theta
        arrived = zip(network.members, delivered, strict=True)
        updates |= {lists[k][turn]: row for k, row in arrived if turn < len(lists[k])}
    return updates


@dataclass(frozen=True, eq=False)
class Received:
    """What the receivers in one process see of a round: the updates of these sources, and their own data.

    In all matrices, `[j, k]` is about what k received from j; 0 for receivers in other processes.
    """

    network: Network
    round_: Round
    evaluation: Evaluation
    sources: Sequence[int]
    updates: Float[Tensor, "sources d"]

    @cached_property
    def heard(self) -> Bool[Tensor, "n n"]:
        """Whether k hears j ≠ k; on CPU, where W is drawn."""
        here = torch.zeros(self.network.whole, dtype=torch.bool)
        here[list(self.network.members or range(self.network.nodes))] = True
        return neighbours(self.round_.W).T.cpu() & here

    @cached_property
    def inner(self) -> Float[Tensor, "n n"]:
        """Inner products of the updates of all pairs."""
        return placed(self.network, inner_products(self.updates, self.updates), self.sources, self.sources)

    @cached_property
    def proximity(self) -> Proximity:
        """Influence over each link, and cos(∇L_k, Δ_j). Cost: a gradient per receiver, one product of [n, d]."""
        return proximity_of(self.network, self.round_, self.evaluation, self.sources, self.updates)


def receive(
    network: Network, round_: Round, evaluation: Evaluation, exchange: Exchange | None = None,
    hears: Bool[Tensor, "n n"] | None = None,
) -> Received:  # fmt: skip
    """What this process's participants see of a round: everything, or what an `exchange` between processes delivers.

    With an exchange, everybody sends its update beside its model to those that hear it, by W or by `hears[k, j]`, which
    doubles the bytes sent.
    """
    if exchange is None:
        return Received(network, round_, evaluation, range(network.nodes), round_.update)
    updates = updates_of_neighbours(network, round_, exchange, hears)
    sources = sorted(updates)
    return Received(network, round_, evaluation, sources, torch.stack([updates[j] for j in sources]))
