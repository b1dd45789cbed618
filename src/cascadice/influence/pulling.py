"""λ through everybody's local work, backwards, and the scores of samples on the way: `carrying.push`, transposed.

λ ← (I − η H) λ        for SGD; for optimizers with state, of the pair (θ, state)
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp
from torch.utils._pytree import tree_map

from cascadice.engine.fast.hooks import Tape
from cascadice.engine.fast.rows import each_row, over_rows, twin
from cascadice.engine.fast.tape import (
    Along,
    Layers,
    eager_along,
    eager_read,
    generic_along,
    pure_along,
    read,
    twice_differentiable,
)
from cascadice.engine.learner import Learner, Participants, gradient, pure_step
from cascadice.engine.networks import Network, known_layers, load, terms
from cascadice.engine.rounds import Draw, Round
from cascadice.optimizers import Optimizer, State

Factors = tuple[()] | tuple[Tensor, Tensor]


class Adjoint(NamedTuple):
    """A_j: how the judged sum changes with what participant j carries after its local step in the first round."""

    theta: Float[Tensor, "n d"]
    state: State


def pulled(
    network: Network, done: Round, lam: Adjoint, into: Tensor | None, score: bool, bend: bool
) -> tuple[Adjoint, Float[Tensor, "n samples"]]:
    """λ through the local work of the round and, if asked, the scores of its samples on the way."""
    layers = known_layers(network, done.draw)
    learner = network.learner if layers is None else layers.learner
    shared = (_along(network.strategy, layers), score, bend)
    rows = over_rows(
        _steps_back,
        network.strategy,
        learner,
        *shared,
        steady=True,
        into=torch.empty_like(lam.theta) if bend and into is None else into,
        fetch=lambda rows: load(network, done.draw, rows)[:4],
    )
    with twice_differentiable():
        found = rows(done.before, *lam, factors(network, done.draw))
    if not bend:  # then there was one step, and only its scores are asked for
        return lam, found.clone()
    theta, state, scores = found
    return Adjoint(theta, {name: value.clone() for name, value in state.items()}), scores.clone()


@lru_cache(maxsize=16)
def _along(strategy: str, layers: Layers | None) -> Along:
    """One object for one way: what was compiled for it is found again."""
    if layers is None:
        return generic_along
    return partial(eager_along if strategy == "loop" else pure_along, layers)


def _steps_back(
    learner: Learner, mine: Participants, theta: Tensor, state: State, factors: Factors, x: Tensor, y: Tensor,
    lr: Tensor, conduct: Any, along: Along, score: bool, bend: bool,
) -> Any:  # fmt: skip
    """One participant's steps, last to first: through the optimizer to the gradient, through that to the parameters.

    c = ∂(update)/∂g ᵀ λ        λ ← λ + ∂(update)/∂θ ᵀ λ + H c
    """
    sent, own_theta, own_state = _conducted(theta, state, conduct)
    theta, state = sent
    carried = _before_each(learner, mine, x, y, lr)
    scores: list[Tensor] = []
    for i in reversed(range(x.shape[0])):
        at = carried[i]
        if factors:
            by_slope, by_theta = factors
            found, bent = along(learner, at.theta, at.buffers, x[i], y[i], theta, score, bend)
            found = None if found is None else by_slope * found
            theta = theta if bent is None else torch.addcmul(torch.addcmul(theta, theta, by_theta), bent, by_slope)
        else:
            worth, by_state, by_theta = _worth(learner, at, x[i], y[i], lr, theta, state)
            found, bent = along(learner, at.theta, at.buffers, x[i], y[i], worth, score, bend)
            theta, state = (theta, state) if bent is None else (bent.add_(theta).add_(by_theta), by_state)
        scores.insert(0, theta.new_zeros(0) if found is None else found)
    if not bend:
        return scores[0]
    kept = {name: value + own_state[name] for name, value in state.items()} if own_state else state
    return theta if own_theta is None else theta + own_theta, kept, torch.cat(scores)


def _conducted(theta: Tensor, state: State, conduct: Any) -> tuple[tuple[Tensor, State], Tensor | None, State]:
    """What of λ reaches the work that was done, and what goes past it; see `local_steps`."""
    if not conduct:
        return (theta, state), None, {}
    taken, factor = conduct
    done = taken * factor * theta, {name: taken * lam for name, lam in state.items()}
    return done, theta - done[0], {name: lam - done[1][name] for name, lam in state.items()}


def _before_each(learner: Learner, mine: Participants, x: Tensor, y: Tensor, lr: Tensor) -> list[Participants]:
    carried = [mine]
    for i in range(x.shape[0] - 1):
        theta, state, buffers = carried[-1]
        carried.append(Participants(*pure_step(learner, theta, state, buffers, x[i], y[i], lr, None)[:3]))
    return carried


def factors(network: Network, drawn: Draw) -> Factors:
    """∂(update)/∂g and ∂(update)/∂θ of everybody, [n] each, of an optimizer that treats all parameters alike."""
    optimizer = network.learner.optimizer
    return () if optimizer.descend is None else _factors(optimizer, terms(network, drawn)[0])


@lru_cache(maxsize=16)  # to differentiate takes as long as a small model's step, and rates are the same tensor if equal
def _factors(optimizer: Optimizer, lr: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    one = lr.new_ones(len(lr), 1)
    _, back = vjp(lambda g, p: optimizer.update(g, {}, p, lr)[0], one, one)
    by_slope, by_theta = back(one)
    return by_slope[:, 0], by_theta[:, 0]


def _worth(
    learner: Learner, mine: Participants, x: Tensor, y: Tensor, lr: Tensor, theta: Tensor, state: State
) -> tuple[Tensor, State, Tensor]:
    """What the gradient, the state and the parameters are worth to the optimizer's step, given what its results are."""
    optimizer = learner.optimizer  # one that is linear has the same derivative at any gradient
    slope = mine.theta if optimizer.linear else gradient(learner, mine.theta, mine.buffers, x, y)[0]
    _, back = vjp(lambda g, s, p: optimizer.update(g, s, p, lr), slope, mine.state, mine.theta)
    worth, by_state, by_theta = back((theta, state))
    return worth, by_state, by_theta


def from_tape(network: Network, first: Round, sensitivity: Adjoint) -> Float[Tensor, "n samples"]:
    layers = known_layers(network, first.draw)
    assert layers is not None
    stacked = (*sensitivity, factors(network, first.draw), *terms(network, first.draw))
    if not isinstance(first.tape, list):
        found: Tensor = over_rows(read_row, network.strategy, layers.learner, layers, read, steady=True)(
            first.tape[0], *stacked
        )
        return found.clone()

    def row(worker: int, k: int) -> Tensor:
        theta, state, own, lr, conduct = tree_map(lambda tensor: tensor[k], stacked)
        return read_row(
            twin(layers.learner, worker), first.tape[k][0], theta, state, own, lr, conduct, layers, eager_read
        )

    return torch.stack(each_row(row, network.nodes, network.device))


def read_row(
    learner: Learner, tape: Tape, theta: Tensor, state: State, factors: Factors, lr: Tensor, conduct: Any,
    layers: Layers, reading: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    sent, _, _ = _conducted(theta, state, conduct)
    if factors:
        return factors[0] * reading(layers, learner, tape, sent[0])
    # the derivative of a step that is linear in the gradient is the same at any gradient, state and parameters
    _, back = vjp(lambda slope: learner.optimizer.update(slope, state, theta, lr), theta)
    return reading(layers, learner, tape, back(sent)[0])
