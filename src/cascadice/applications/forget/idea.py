"""Forget: take samples, batches or participants out of models that were trained with them.

    δ^{t+½} = (I − η H) δ^t + (the forgotten part of Δ^t),   δ^{t+1} = W^t δ^{t+½},   corrected = θ^T − δ^T

One perturbation δ for all that is forgotten is carried through the rounds as they are read; what is forgotten in a
round joins it there. Influence is the same δ, seen through a loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from cascadice.applications.forget.corrections import Correct, along, coasted, pushed, replayed, work_without
from cascadice.applications.forget.removals import Part, Removal, check, part_of
from cascadice.applications.forget.traces import Trace, advantage, distance, losses, trace
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network, draw
from cascadice.engine.exchange.stacked import mix
from cascadice.engine.rounds import Round
from cascadice.engine.operator import Operator
from cascadice.influence.checks import check_form, check_replays
from cascadice.influence.quadrature import gauss_legendre
from cascadice.names import lookup

__all__ = [
    "LEVELS",
    "Corrected",
    "Level",
    "Removal",
    "Trace",
    "advantage",
    "distance",
    "forget",
    "losses",
    "repair",
    "trace",
]


class Corrected(NamedTuple):
    """The participants before round t as if what was removed had not been used, and how much that was.

    So many `updates` were left out whole, and sample i of the removal `uses[i]` times.
    """

    level: str
    t: int
    participants: Participants
    updates: int
    uses: Int[Tensor, " samples"]


def forget(
    network: Network, rounds: Iterable[Round], removal: Removal, level: str = "replay", points: int = 2
) -> Corrected:
    """Everybody's model after the last of these rounds without what is to be forgotten, by one of `LEVELS`.

    Consecutive rounds, recorded or from `simulate`, are read once, one at a time. Batches, W and learning rates are
    held as they were; what was learned before the first of the rounds stays. Cost, in gradients a round of everybody
    reached: gossip none (one where samples are forgotten), first-order 2 to 3, path-integrated as many for each of its
    `points`, replay 1. Replay is exact: whoever has the recording, the data and the time for it should use it.
    """
    correct = lookup(LEVELS, level, "level").correct
    check(network, removal)
    span: list[int] = []
    updates, uses = torch.zeros((), dtype=torch.int64), torch.zeros(len(removal.samples), dtype=torch.int64)

    def parts() -> Iterator[tuple[Round, Part]]:
        for done in rounds:
            _check_next(network, removal, done, span)
            part = part_of(removal, done.draw, network.nodes)
            if bool(part.nodes.any()) and not int(updates + uses.sum()):
                check_replays(network, done)
            updates.add_(part.updates.sum())
            uses.add_((done.draw.batch.cpu()[part.samples][:, None] == torch.tensor(removal.samples)).sum(0))
            span.append(done.t)
            yield done, part

    participants = correct(network, parts(), points)
    _check_end(removal, span, int(updates + uses.sum()))
    return Corrected(level, span[-1] + 1, participants, int(updates), uses)


def _check_next(network: Network, removal: Removal, done: Round, span: Sequence[int]) -> None:
    check_form(network, done)
    if span and done.t != span[-1] + 1:
        raise ValueError(f"rounds must follow one another; round {span[-1]} is followed by {done.t}.")
    if not span and removal.rounds is not None and removal.rounds.start < done.t:
        raise ValueError(f"round {removal.rounds.start} is to be forgotten; the first round there is, is {done.t}.")


def _check_end(removal: Removal, span: Sequence[int], found: int) -> None:
    if not span:
        raise ValueError("there must be rounds to forget something in; found none.")
    if removal.rounds is not None and removal.rounds[-1] > span[-1]:
        raise ValueError(f"round {removal.rounds[-1]} is to be forgotten; the last round there is, is {span[-1]}.")
    if not found:
        looked = span if removal.rounds is None else removal.rounds
        who = f"participants {', '.join(map(str, removal.nodes))} did not use" if removal.nodes else "nobody used"
        raise ValueError(f"{who} any of these samples in rounds {looked[0]} to {looked[-1]}: nothing to forget.")


def repair(network: Network, corrected: Corrected, removal: Removal, rounds: int) -> Corrected:
    """Train on for so many rounds without what was removed, which mends part of what a rough correction did.

    Samples are left out, and a participant does no work, whether all of its updates were removed or some. The rounds
    are those that would have followed, with their batches, W and learning rates. How much nearer that brings models to
    those that never used it is measured in docs/applications.md. Cost: that of training.
    """
    if rounds < 0:
        raise ValueError(f"rounds to repair must be at least 0; found {rounds}.")
    now, everyone, operator = corrected.participants, list(range(network.nodes)), Operator(network)
    for t in range(corrected.t, corrected.t + rounds):
        drawn = draw(network, t)
        part = part_of(replace(removal, rounds=None), drawn, network.nodes)
        now = mix(drawn.W, work_without(operator, drawn, now, part, everyone, now))
    return corrected._replace(participants=now, t=corrected.t + rounds)


class Level(NamedTuple):
    """A way to forget."""

    correct: Correct
    description: str


LEVELS: Mapping[str, Level] = {
    "gossip": Level(along(coasted, lambda points: [(1.0, 1.0)]), "products of W only, no Hessian"),
    "first-order": Level(along(pushed, lambda points: [(1.0, 1.0)]), "a Hessian-vector product a round"),
    "path-integrated": Level(along(pushed, gauss_legendre), "first order along the way, at several points"),
    "replay": Level(replayed, "train again without it: exact"),
}
