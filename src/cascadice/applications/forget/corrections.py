"""Correct trained models as if a part of every round had been left out.

Give the part to forget the weight α in training: 1 as it was, 0 as if it had never been used. θ(1) are the trained
models, θ(0) the wanted ones. Either dθ/dα is pushed through the rounds, or the rounds are replayed:

    θ(0) = θ(1) − ∫₀¹ dθ/dα dα ≈ θ(1) − Σ weight · dθ/dα(α)
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.applications.forget.removals import Part
from cascadice.engine import send
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network, Weights, rates
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Adjoint, Draw, Perturbation, Round, rows_of
from cascadice.topology import links

Parts = Iterator[tuple[Round, Part]]
"""Rounds as they are read, each with its part to forget."""

Correct = Callable[[Operator, Parts, int], Participants]
"""(operator, parts, points) -> the participants after the last round without those parts, exact or estimated."""


class _Trajectory(NamedTuple):
    """Training with weight α: θ(α) (None: as recorded), dθ/dα, and the participants that the change has reached."""

    alpha: float
    at: Participants | None
    tangent: Participants
    reached: Bool[Tensor, " n"]


Push = Callable[[Operator, Round, Part, Participants, _Trajectory, list[int]], tuple[Participants, Participants]]
"""(…, θ(α) before the round, trajectory, rows) -> θ(α) after local work, and dθ/dα there."""


def along(push: Push, points_and_weights: Callable[[int], list[tuple[float, float]]]) -> Correct:
    """θ(1) − Σ weight · dθ/dα(α), following the trajectories of all points α side by side."""

    def correct(operator: Operator, parts: Parts, points: int) -> Participants:
        trained, weighted = operator.network.initial, points_and_weights(points)
        nobody, still = torch.zeros(operator.network.nodes, dtype=torch.bool), tree_map(torch.zeros_like, trained)
        trajectories = [_Trajectory(alpha, None, still._replace(buffers={}), nobody) for alpha, _ in weighted]
        for round_, part in parts:
            trajectories = [_advanced(operator, round_, part, trajectory, push) for trajectory in trajectories]
            trained = round_.after
        tangents, weights = [trajectory.tangent for trajectory in trajectories], [weight for _, weight in weighted]
        total = tree_map(lambda *each: sum(w * one for w, one in zip(weights, each, strict=True)), *tangents)
        result = tree_map(torch.sub, trained._replace(buffers={}), total)
        # Adam takes the root of its second moment; a linear correction may make it negative, so keep the trained one
        state = {name: own if bool((own >= 0).all()) else result.state[name] for name, own in trained.state.items()}
        return Participants(result.theta, state, trained.buffers)

    return correct


def _advanced(operator: Operator, round_: Round, part: Part, trajectory: _Trajectory, push: Push) -> _Trajectory:
    """The trajectory one round later: local work, then gossip, which is linear and leaves optimizer state as it is."""
    rows = _repeating(operator, trajectory.reached, part)
    if not rows:
        return trajectory
    at = round_.before if trajectory.at is None else trajectory.at
    half, tangent = push(operator, round_, part, at, trajectory, rows)
    exchange = operator.exchange(round_)
    if operator.network.members:  # gossip is linear, so a change is sent as parameters are
        still = tree_map(torch.zeros_like, round_.half.buffers)
        theta = exchange.apply(round_, Participants(tangent.theta, {}, still)).theta
    else:  # cheaper if few are reached
        nodes = torch.tensor(rows, device=tangent.theta.device)
        sent = Perturbation(nodes, torch.zeros_like(nodes), tangent.theta[nodes], {})
        change = exchange.push(round_, None, None, sent)
        theta = torch.zeros_like(tangent.theta).index_copy_(0, change.nodes, change.theta)
    return trajectory._replace(
        at=None if trajectory.alpha == 1 else exchange.apply(round_, half),
        tangent=tangent._replace(theta=theta),
        reached=_reached_after(operator, round_, rows),
    )


def _repeating(operator: Operator, reached: Bool[Tensor, " n"], part: Part) -> list[int]:
    """Whose work is repeated: across processes everybody's, because no process knows whom a change has reached."""
    return list(range(len(reached))) if operator.network.members else _indices(reached | part.nodes)


def pushed(
    operator: Operator, round_: Round, part: Part, at: Participants, trajectory: _Trajectory, rows: list[int]
) -> tuple[Participants, Participants]:
    """Push dθ/dα through local steps, optimizer state included. Cost: a Hessian-vector product per row."""
    before, tangent = _rows(at, rows), Adjoint(*_rows(trajectory.tangent, rows)[:2])
    weights = _weights(part, rows, before.theta, trajectory.alpha, 1.0)
    velocity = _weights(part, rows, before.theta, 1.0, 0.0)
    half, change = operator.push_rows(round_.draw, before, tangent, rows, weights, velocity)
    moved = _put(trajectory.tangent, Participants(*change, {}), rows)
    return (round_.half if trajectory.alpha == 1 else _put(round_.half, half, rows)), moved


def coasted(
    operator: Operator, round_: Round, part: Part, at: Participants, trajectory: _Trajectory, rows: list[int]
) -> tuple[Participants, Participants]:
    """Push dθ/dα as if gradients did not depend on θ: the Hessian is dropped, momentum continues.

    Cost: passes over dθ/dα; a gradient for each row whose samples are forgotten.
    """
    network = operator.network
    if network.groups or network.uneven or network.compression is not None or not network.learner.optimizer.linear:
        raise ValueError(
            "the level gossip needs one optimizer for all that is linear in the gradient (sgd, momentum, nesterov, "
            "without clipping) and no compression; this network has others. Use first-order or replay."
        )
    tangent = _rolled(network, round_.draw, trajectory.tangent)
    if changed := _indices(part.nodes):
        without = work_without(operator, round_.draw, at, part, changed, round_.half)
        bare = (each._replace(buffers={}) for each in (round_.half, without))  # masks cannot be subtracted
        removed = tree_map(torch.sub, *bare)
        tangent = tree_map(torch.add, tangent, removed)
    return round_.half, tangent


def _rolled(network: Network, drawn: Draw, change: Participants) -> Participants:
    """A change of θ after local steps whose gradients stay the same."""
    if network.learner.optimizer.descend is None:
        return _steps_without_gradient(network, drawn, change)
    # such an optimizer treats all parameters of a row alike, so one of them shows what happens to all
    one = Participants(torch.ones_like(change.theta[:, :1]), {}, {})
    growth = _steps_without_gradient(network, drawn, one).theta
    return change if bool((growth == 1).all()) else change._replace(theta=growth * change.theta)


def _steps_without_gradient(network: Network, drawn: Draw, change: Participants) -> Participants:
    (theta, state, _), lr = change, rates(network, drawn)
    for _ in range(drawn.batch.shape[1]):
        delta, state = network.learner.optimizer.update(torch.zeros_like(theta), state, theta, lr)
        theta = theta + delta
    if drawn.conduct:
        taken, factor = send.conduct(network, drawn)
        theta = torch.lerp(change.theta, theta, factor)
        state = {name: torch.lerp(change.state[name], value, taken[:, None]) for name, value in state.items()}
    return Participants(theta, state, {})


def replayed(operator: Operator, parts: Parts, points: int) -> Participants:
    """θ(0) by replay: participants that the change has reached repeat their work. Cost: a step per row."""
    now, reached = operator.network.initial, torch.zeros(operator.network.nodes, dtype=torch.bool)
    for round_, part in parts:
        at = now if bool(reached.any()) else round_.before
        now = round_.after
        if rows := _repeating(operator, reached, part):
            half = work_without(operator, round_.draw, at, part, rows, round_.half)
            now, reached = operator.exchange(round_).apply(round_, half), _reached_after(operator, round_, rows)
    return now


def work_without(
    operator: Operator, drawn: Draw, at: Participants, part: Part, rows: list[int], others: Participants
) -> Participants:
    """Everybody after local work without the part: `rows` repeat theirs from `at`; `others` has the rest."""
    whole = _indices(part.updates)
    working = [row for row in rows if row not in whole]
    half = others
    if working:
        before = _rows(at, working)
        worked, _, _ = operator.work(drawn, before, working, _weights(part, working, before.theta, 0.0, 1.0))
        half = _put(half, worked, working)
    return _put(half, _rows(at, whole), whole) if whole else half


def _weights(part: Part, rows: list[int], like: Tensor, forgotten: float, kept: float) -> Weights:
    """Weights that are `forgotten` for the part to forget and `kept` elsewhere; () if there is nothing to forget."""
    numbers = like.new_tensor(forgotten), like.new_tensor(kept)
    chosen = (of[rows].to(like.device) for of in part)
    return Weights(*((torch.where(of, *numbers),) if bool(of.any()) else () for of in chosen))


def _reached_after(operator: Operator, round_: Round, rows: list[int]) -> Bool[Tensor, " n"]:
    """Whom a change of these rows has reached after gossip; changed optimizer state stays where it is."""
    here = torch.zeros(operator.network.nodes, dtype=torch.bool)
    here[rows] = True
    if operator.network.members:
        return here
    receivers, senders, _ = (column.cpu() for column in links(round_.W))
    after = here.clone() if round_.half.state else torch.zeros_like(here)
    after[receivers[here[senders]]] = True
    return after


def _indices(chosen: Tensor) -> list[int]:
    numbers: list[int] = chosen.nonzero().flatten().tolist()
    return numbers


def _rows(participants: Participants, rows: list[int]) -> Participants:
    if len(rows) == len(participants.theta):
        return participants
    return rows_of(participants, torch.tensor(rows, device=participants.theta.device))


def _put(participants: Participants, some: Participants, rows: list[int]) -> Participants:
    """The participants with these rows replaced, out of place."""
    if len(rows) == len(participants.theta):
        return some
    index = torch.tensor(rows, device=participants.theta.device)
    put: Participants = tree_map(lambda old, new: old.index_copy(0, index, new), participants, some)
    return put
