"""Forget: remove samples, batches or participants from models that were trained with them.

    δ^{t+½} = (I − η H) δ^t + (the forgotten part of Δ^t),   δ^{t+1} = W^t δ^{t+½},   corrected = θ^T − δ^T

The effect δ of everything to be forgotten is pushed through the rounds as they are read. Influence measures the same δ
by a loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from cascadice.applications.forget.corrections import Correct, along, coasted, pushed, replayed, work_without
from cascadice.applications.forget.removals import Part, Removal, check_removal, part_of
from cascadice.engine import Network, Operator, Participants, Round, draw
from cascadice.influence.checks import check_form, check_joined, check_many, check_replays, check_samples_are_separate
from cascadice.influence.quadrature import weighted_points
from cascadice.names import lookup

__all__ = ["LEVELS", "Corrected", "Level", "Removal", "forget", "repair"]


class Corrected(NamedTuple):
    """Models corrected as if something had not been used.

    Attributes:
        level: How they were corrected, a name in `LEVELS`.
        t: The round that training would continue with.
        updates: How many whole updates were left out.
        uses: How many times each sample of the removal was left out.
    """

    level: str
    t: int
    participants: Participants
    updates: int
    uses: Int[Tensor, " samples"]


def forget(
    network: Network, rounds: Iterable[Round], removal: Removal, level: str = "replay", points: int = 2, *,
    operator: Operator | None = None,
) -> Corrected:  # fmt: skip
    """Correct everyone's model after the last of these rounds, as if what is removed had not been used in them.

    Batches, mixing matrices and learning rates stay as they were. What was learned before the first round stays too.
    Replay is exact: use it if you have the recording, the data and the time. Cost per round, in gradients of everyone
    reached: gossip none (one where samples are forgotten), first-order 2 to 3, path-integrated as many for each of its
    points, replay 1.

    Args:
        rounds: Consecutive rounds of one run, recorded or from `simulate`; read once, one at a time.
        level: A name in `LEVELS`.
        removal: What to forget.
        points: Points of the quadrature, for path-integrated.
        operator: The operator to use if participants do not exchange in memory. Corrections travel as parameters do. In
            one part of a network, everybody repeats every round, because no part knows whom a change has reached.

    Returns:
        Everyone's corrected model, and how much was left out.

    Example:
        >>> rounds = list(cd.simulate(network, 30))
        >>> corrected = forget(network, rounds, Removal(nodes=(2,))).participants
    """
    check_many(rounds)
    correct = lookup(LEVELS, level, "level").correct
    check_removal(network, removal)
    span: list[int] = []
    updates, uses = torch.zeros((), dtype=torch.int64), torch.zeros(len(removal.samples), dtype=torch.int64)

    def parts() -> Iterator[tuple[Round, Part]]:
        earlier = None
        for round_ in rounds:
            _check_next(network, removal, round_, earlier)
            part = part_of(removal, round_.draw, network.whole, network.members)
            if bool(part.nodes.any()) and not int(updates + uses.sum()):
                check_replays(network, round_)
                if removal.samples:
                    check_samples_are_separate(network, round_.draw, round_.before)
            updates.add_(part.updates.sum())
            uses.add_((round_.draw.batch.cpu()[part.samples][:, None] == torch.tensor(removal.samples)).sum(0))
            span.append(round_.t)
            earlier = round_
            yield round_, part

    participants = correct(operator or Operator(network), parts(), points)
    if not span:
        raise ValueError("there must be at least one round to forget something in; found none.")
    if removal.rounds is not None and removal.rounds[-1] > span[-1]:
        raise ValueError(f"round {removal.rounds[-1]} is to be forgotten, but the rounds end with {span[-1]}.")
    if not network.members and not bool(updates + uses.sum()):
        raise nothing_to_forget(removal, span)
    return Corrected(level, span[-1] + 1, participants, int(updates), uses)


def _check_next(network: Network, removal: Removal, round_: Round, earlier: Round | None) -> None:
    check_form(network, round_)
    if round_.rule is not None:  # whom a change has reached is known from W
        wrong = f"round {round_.t} was mixed by a rule that does not average; forgetting follows rounds that W mixed"
        raise ValueError(f"{wrong}. Train again without the data.")
    if earlier is not None:
        check_joined(earlier, round_)
    elif removal.rounds is not None and removal.rounds.start < round_.t:
        raise ValueError(f"round {removal.rounds.start} is to be forgotten, but the rounds begin with {round_.t}.")


def nothing_to_forget(removal: Removal, span: Sequence[int]) -> ValueError:
    """The error to raise if none of the samples was used in these rounds."""
    rounds = span if removal.rounds is None else removal.rounds
    who = f"participants {', '.join(map(str, removal.nodes))} did not use" if removal.nodes else "nobody used"
    return ValueError(f"{who} any of these samples in rounds {rounds[0]} to {rounds[-1]}: nothing to forget.")


def repair(
    network: Network, corrected: Corrected, removal: Removal, rounds: int, *, operator: Operator | None = None
) -> Corrected:
    """Continue training without the removed data, which reduces the error of a rough correction.

    The rounds are those that would have followed, with their batches, mixing matrices and learning rates. Removed
    samples are left out; a participant of which updates were removed, all or some, does no work. docs/applications.md
    measures the gain. Cost: that of training.

    Args:
        corrected: From `forget`.
        removal: What was forgotten.
        rounds: How many more rounds to train.
        operator: As for `forget`.

    Returns:
        The models after these rounds.

    Example:
        >>> repaired = repair(network, forget(network, recorded, removal, "gossip"), removal, rounds=5)
    """
    if rounds < 0:
        raise ValueError(f"rounds to repair must be at least 0; found {rounds}.")
    now, everyone, operator = corrected.participants, list(range(network.nodes)), operator or Operator(network)
    for t in range(corrected.t, corrected.t + rounds):
        drawn = draw(network, t)
        part = part_of(replace(removal, rounds=None), drawn, network.whole, network.members)
        half = work_without(operator, drawn, now, part, everyone, now)
        round_ = Round(drawn, now, half, half, half.theta.new_zeros(network.nodes))
        now = operator.exchange(round_).apply(round_, half)
    return corrected._replace(participants=now, t=corrected.t + rounds)


class Level(NamedTuple):
    """A method of forgetting."""

    correct: Correct
    description: str


LEVELS: Mapping[str, Level] = {
    "gossip": Level(along(coasted, lambda points: [(1.0, 1.0)]), "estimate by products of W alone, no Hessian"),
    "first-order": Level(along(pushed, lambda points: [(1.0, 1.0)]), "estimate by a Hessian-vector product a round"),
    "path-integrated": Level(along(pushed, weighted_points), "estimate by first order at several points of a path"),
    "replay": Level(replayed, "training again without it; exact"),
}
