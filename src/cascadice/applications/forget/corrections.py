"""Ways from the models that were trained to those that would have been without a part of every round.

What is to be forgotten has the weight α in training: 1 as it was, 0 as if it had never been used. θ(1) is what was
trained, θ(0) what is wanted; dθ/dα is carried through the rounds, or training is done again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import jvp
from torch.utils._pytree import tree_map

from cascadice.applications.forget.removals import Part
from cascadice.engine import behaviours as behaviour
from cascadice.engine.fast.rows import Local, local_work, over_rows, seeded
from cascadice.engine.learner import Learner, Participants, local_steps, pure_step
from cascadice.engine.networks import Network, load, terms
from cascadice.engine.rounds import Draw, Round, mix
from cascadice.influence.carrying import check_differentiable, row_strategy
from cascadice.influence.measures import per_sample
from cascadice.optimizers import Optimizer, State
from cascadice.topology import links

Parts = Iterator[tuple[Round, Part]]
"""Rounds as they are read, with what of each is to be forgotten."""

Correct = Callable[[Network, Parts, int], Participants]
"""(network, parts, points) -> the participants after the last round without those parts, or nearly so."""


class _Along(NamedTuple):
    """Where training with weight α has come to (None: where it really was), dθ/dα there, and whom that has reached."""

    alpha: float
    weight: float
    at: Participants | None
    tangent: Participants
    reached: Bool[Tensor, " n"]


Push = Callable[[Network, Round, Part, Participants, _Along, list[int]], tuple[Participants, Participants]]
"""(…, θ(α) before the round, along, whom it concerns) -> θ(α) after everybody's whole local work, and dθ/dα there."""


def carry(push: Push, places: Callable[[int], list[tuple[float, float]]]) -> Correct:
    """θ(1) − Σ weight · dθ/dα(α): perturbations of all points carried side by side."""

    def correct(network: Network, parts: Parts, points: int) -> Participants:
        nobody = torch.zeros(network.nodes, dtype=torch.bool)
        all_along = [
            _Along(alpha, weight, None, _bare(tree_map(torch.zeros_like, network.initial)), nobody)
            for alpha, weight in places(points)
        ]
        trained = network.initial
        for done, part in parts:
            all_along = [_advanced(network, done, part, along, push) for along in all_along]
            trained = done.after
        return _less(trained, all_along)

    return correct


def _less(trained: Participants, all_along: Sequence[_Along]) -> Participants:
    def corrected(own: Tensor, *off: Tensor) -> Tensor:
        return own - sum(along.weight * tangent for along, tangent in zip(all_along, off, strict=True))

    found = tree_map(corrected, _bare(trained), *(along.tangent for along in all_along))
    # Adam divides by the root of its second moment: below zero, where a line may end, there is none to go on with
    state = {name: own if bool((own >= 0).all()) else found.state[name] for name, own in trained.state.items()}
    return Participants(found.theta, state, trained.buffers)


def _advanced(network: Network, done: Round, part: Part, along: _Along, push: Push) -> _Along:
    """The same, a round later: local work, of which α where it is forgotten, then gossip."""
    reached = along.reached | part.nodes
    if not bool(reached.any()):
        return along
    at = done.before if along.at is None else along.at
    worked, pushed = push(network, done, part, at, along, _places(reached))
    whole = part.updates.nonzero().flatten().to(network.device)
    tangent = _lerp(along.tangent, pushed, along.alpha, whole, at, worked)
    return along._replace(
        at=None if along.alpha == 1 else mix(done.W, _lerp(at, worked, along.alpha, whole)),
        tangent=mix(done.W, tangent),
        reached=_heard(done.W, reached, bool(tangent.state)),
    )


def _lerp(old: Participants, new: Participants, alpha: float, rows: Tensor, *ends: Participants) -> Participants:
    """`new`, but in these rows only α of the way from `old`, and the way between the `ends` besides. In place."""

    def part_way(before: Tensor, after: Tensor, *ends: Tensor) -> None:
        there = torch.lerp(before[rows], after[rows], alpha)
        after[rows] = there + ends[1][rows] - ends[0][rows] if ends else there

    if len(rows):
        tree_map(part_way, *map(_bare, (old, new, *ends)))
    return new


def pushed(
    network: Network, done: Round, part: Part, at: Participants, along: _Along, rows: list[int]
) -> tuple[Participants, Participants]:
    """The derivative of everybody's whole step, of the optimizer's state too. Cost: a Hessian-vector product a row."""
    worked, tangent = _swept(network, done.draw, _rows(at, rows), _rows(along.tangent, rows), along.alpha, part, rows)
    if along.alpha == 1:
        return done.half, _put(along.tangent, tangent, rows)
    return _put(done.half, _noisy(network, done.t, worked, rows), rows), _put(along.tangent, tangent, rows)


def coasted(
    network: Network, done: Round, part: Part, at: Participants, along: _Along, rows: list[int]
) -> tuple[Participants, Participants]:
    """The derivative of everybody's step as if no gradient answered to a change: H is dropped, momentum rolls on.

    Cost: passes over δ; a gradient for each row of which samples are forgotten.
    """
    optimizer = network.learner.optimizer
    if not optimizer.linear:
        raise ValueError(
            "gossip alone carries changes through optimizers that are linear in the gradient (sgd, momentum, nesterov, "
            "without clipping); this one is not. Use first-order or replay."
        )
    lr, conduct = terms(network, done.draw)
    tangent, steps = along.tangent, done.draw.batch.shape[1]
    if optimizer.descend is None:
        tangent = _rolled(optimizer, tangent, lr, conduct, steps)
    else:  # it treats all parameters alike: what it does to one of a row, it does to all
        one = Participants(torch.ones_like(tangent.theta[:, :1]), {}, {})
        growth = _rolled(optimizer, one, lr, conduct, steps).theta
        tangent = tangent if bool((growth == 1).all()) else tangent._replace(theta=growth * tangent.theta)
    if marked := _marked(part):
        without = _reweighted(network, done.draw, _rows(at, marked), part, marked)
        own = tree_map(torch.sub, _rows(_bare(done.half), marked), _bare(without))
        tangent = _put(tangent, tree_map(torch.add, _rows(tangent, marked), own), marked)
    return done.half, tangent


def _rolled(optimizer: Optimizer, change: Participants, lr: Tensor, conduct: Any, steps: int) -> Participants:
    """What local steps make of a change where gradients stay as they were."""
    theta, state, _ = change
    for _ in range(steps):
        delta, state = optimizer.update(torch.zeros_like(theta), state, theta, lr)
        theta = theta + delta
    if conduct:
        taken, factor = conduct
        theta = torch.lerp(change.theta, theta, (taken * factor)[:, None])
        state = {name: torch.lerp(change.state[name], value, taken[:, None]) for name, value in state.items()}
    return Participants(theta, state, {})


def _swept(
    network: Network, drawn: Draw, at: Participants, tangent: Participants, alpha: float, part: Part, rows: list[int]
) -> tuple[Participants, Participants]:
    """Local work of these rows from θ(α), and dθ/dα after it."""
    check_differentiable(network)
    alphas, gone = at.theta.new_full((len(rows),), alpha), _gone(part, rows, network)
    sweep = over_rows(_row_swept, network.strategy, network.learner, workers=1)
    inputs = load(network, drawn, rows)[:4]
    (theta, state), (off, state_off) = sweep(at, tangent.theta, tangent.state, alphas, gone, *inputs)
    # with Adam in float32, the tangent of θ comes in double precision
    return Participants(theta, state, at.buffers), Participants(off.to(theta), state_off, {})


def _row_swept(
    learner: Learner, mine: Participants, theta: Tensor, state: State, alpha: Tensor, gone: Any, *inputs: Any
) -> Any:
    def work(theta: Tensor, state: State, alpha: Tensor) -> tuple[Tensor, State]:
        done = _partly(learner, Participants(theta, state, mine.buffers), alpha, gone, *inputs)
        return done.theta, done.state

    return jvp(work, (mine.theta, mine.state, alpha), (theta, state, torch.ones_like(alpha)))


def _partly(
    learner: Learner, mine: Participants, alpha: Tensor, gone: Any, x: Tensor, y: Tensor, lr: Tensor, conduct: Any
) -> Participants:
    """Local work in which samples that are gone have the weight α in the mean over the batch, whose size stays."""
    if not gone:
        return local_steps(learner, mine, x, y, lr, conduct)[0]
    each, weights = per_sample(learner.loss), iter(torch.where(gone[0], alpha, 1.0) / gone[0].shape[-1])

    def step(theta: Tensor, state: State, buffers: Any, x: Tensor, y: Tensor, lr: Tensor, into: Tensor | None) -> Any:
        weight = next(weights)
        weighted = replace(learner, loss=lambda outputs, targets: (weight * each(outputs, targets)).sum())
        return pure_step(weighted, theta, state, buffers, x, y, lr, into)

    return local_steps(learner, mine, x, y, lr, conduct, step=step)[0]


def replay(network: Network, parts: Parts, points: int) -> Participants:
    """θ(0), by training again: those it has reached work again, the others have done so. Cost: a step a row."""
    now, reached = network.initial, torch.zeros(network.nodes, dtype=torch.bool)
    redo = redone(network)
    for done, part in parts:
        at = now if bool(reached.any()) else done.before
        reached = reached | part.nodes
        if bool(reached.any()):
            now = mix(done.W, redo(done.draw, at, part, _places(reached), done.half))
            reached = _heard(done.W, reached, bool(now.state))
        else:
            now = done.after
    return now


def redone(network: Network) -> Callable[[Draw, Participants, Part, list[int], Participants], Participants]:
    """Everybody after local work without the part: rows do theirs from `at`, the others have done it."""
    work = local_work(row_strategy(network), network.learner)

    def redo(drawn: Draw, at: Participants, part: Part, rows: list[int], others: Participants) -> Participants:
        def fetch(some: list[int] | None) -> Local:
            return load(network, drawn, rows if some is None else [rows[place] for place in some])

        worked, _, _ = work(_rows(at, rows), fetch, None)
        half = _put(others, _noisy(network, drawn.t, worked, rows), rows)
        if marked := _marked(part):
            half = _put(half, _reweighted(network, drawn, _rows(at, marked), part, marked), marked)
        whole = _places(part.updates)
        return _put(half, _rows(at, whole), whole) if whole else half

    return redo


def _reweighted(network: Network, drawn: Draw, mine: Participants, part: Part, rows: list[int]) -> Participants:
    x, y, lr, conduct, dropout = load(network, drawn, rows)
    drawn_by = (torch.tensor(dropout),) if dropout else ()
    sweep = over_rows(_row_partly, network.strategy, network.learner, workers=1 if dropout else None)
    found: Participants = sweep(mine, lr.new_zeros(len(rows)), _gone(part, rows, network), x, y, lr, conduct, drawn_by)
    return found


def _row_partly(learner: Learner, mine: Participants, *inputs: Any) -> Participants:
    *work, dropout = inputs
    with seeded(int(dropout[0]) if dropout else None, mine.theta.device):
        return _partly(learner, mine, *work)


def _gone(part: Part, rows: list[int], network: Network) -> tuple[Tensor, ...]:
    marks = part.samples[rows]
    return (marks.to(network.device),) if bool(marks.any()) else ()


def _noisy(network: Network, t: int, worked: Participants, rows: list[int]) -> Participants:
    for row, noise in behaviour.noise(network.behaviours, t, rows, worked.theta, network.seed).items():
        worked.theta[row] += noise
    return worked


def _heard(W: Float[Tensor, "n n"], reached: Tensor, stateful: bool) -> Bool[Tensor, " n"]:
    """Whom a change has reached after gossip; state stays with whom it changed."""
    receivers, senders, _ = (column.cpu() for column in links(W))
    heard = reached.clone() if stateful else torch.zeros_like(reached)
    heard[receivers[reached[senders]]] = True
    return heard


def _places(chosen: Tensor) -> list[int]:
    found: list[int] = chosen.nonzero().flatten().tolist()
    return found


def _marked(part: Part) -> list[int]:
    return _places(part.samples.flatten(1).any(1))


def _bare(people: Participants) -> Participants:
    return people._replace(buffers={})


def _rows(people: Participants, rows: list[int]) -> Participants:
    if len(rows) == len(people.theta):
        return people
    index = torch.tensor(rows, device=people.theta.device)
    chosen: Participants = tree_map(lambda tensor: tensor[index], people)
    return chosen


def _put(people: Participants, some: Participants, rows: list[int]) -> Participants:
    """`people` with these rows replaced; the given stay as they are."""
    if len(rows) == len(people.theta):
        return some
    index = torch.tensor(rows, device=people.theta.device)
    put: Participants = tree_map(lambda old, new: old.index_copy(0, index, new), people, some)
    return put
