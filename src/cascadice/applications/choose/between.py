"""What the participants of one process learn about those they hear, where participants are in several processes.

In each round everybody sends its update to everybody that ever hears it. Scores of pairs, no models and no data, are
then told to the other processes.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cascadice.applications.choose.balance import Balance, balance_over_time
from cascadice.applications.choose.idea import Observed, well_known
from cascadice.applications.neighbours import placed, updates_of_neighbours
from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.engine.exchange import cosine_trust
from cascadice.engine.exchange.geometry import inner_products
from cascadice.engine.operator import Exchange
from cascadice.influence.proximity import Proximity, in_turn
from cascadice.runs.processes import World


def observe_here(
    network: Network, rounds: Iterable[Round], evaluation: Evaluation, world: World, exchange: Exchange, *,
    hears: Bool[Tensor, "n n"], samples: int, every: int,
) -> Observed:  # fmt: skip
    """What `idea.observe` shows where participants hear those that they `hear` and nobody else.

    Cost: an update an edge and round, and n² numbers in the end, and 2n for each round.
    """
    own, nodes, count = list(network.members), network.whole, 0
    seen = sorted({*own, *hears[own].any(0).nonzero().flatten().tolist()})
    trust = cosine_trust.initial_trust(network.initial.theta.new_zeros(len(seen), network.learner.size))
    received, fading = hears[seen][:, seen], _fading(network, world)
    total = torch.zeros(nodes, nodes, dtype=torch.float64)

    def proximities() -> Iterator[Proximity]:
        nonlocal trust, count
        for round_ in rounds:
            updates = updates_of_neighbours(network, round_, exchange, hears)
            rows = torch.stack([updates[j] for j in seen])
            trust, count = cosine_trust.learn(trust, rows, received, fading), count + 1
            total.add_(round_.W.to_dense().cpu())
            influence = _proximal(network, round_, in_turn(evaluation, round_.t, samples), rows, seen)
            yield Proximity(round_.t, influence, torch.zeros_like(influence))

    balance = balance_over_time(proximities(), every)
    places, learnt = [seen.index(k) for k in own], (trust.total, trust.weight, trust.trusted)
    told = _sums(world, torch.stack([placed(network, value[places].double().cpu(), own, seen) for value in learnt]))
    all_trust = trust._replace(total=told[0], weight=told[1], trusted=(told[2] > 0) | (told[1] == 0))
    _, *ours = balance
    return Observed(well_known(all_trust), Balance(balance.t, *(_sums(world, own) for own in ours)), total / count)


def _proximal(
    network: Network, round_: Round, evaluation: Evaluation, rows: Float[Tensor, "seen d"], seen: list[int]
) -> Float[Tensor, "n n"]:
    """The proximal influence on own participants of those they hear, `[j, k]`; of others, 0."""
    _, gradient = Operator(network).gradients(evaluation, round_.after, range(network.nodes))
    inner, own = inner_products(rows, gradient), list(network.members)
    W = round_.W.to_dense().to(inner)[own][:, seen].T
    return placed(network, (W * network.weights.to(inner) * inner).double().cpu(), seen, own)


def _fading(network: Network, world: World) -> float:
    """As `cosine_trust.epoch_fading` of the whole network."""
    _, steps, size = network.batches(0).shape
    held = sum(len(part) // size for part in network.partition or ())
    whole, worked = world.total(held, steps * network.nodes)
    return max(0.9, 1 - 1 / max(1, -(-int(whole) // int(worked))))


def _sums(world: World, values: Tensor) -> Tensor:
    """The sums over processes, of which each has its own entries; nothing is added to another number than 0."""
    told = world.tell(values.double().tolist())
    return torch.stack([torch.tensor(one, dtype=torch.float64) for one in told]).sum(0)
