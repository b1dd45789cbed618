"""Adjoints backwards through local work, and the scores of samples on the way.

    λ ← (I − η H) λ        for SGD; for optimizers with state, of the pair (θ, state)

Strategy: steps are taken last to first. Each goes through the optimizer to an adjoint of the gradient, and one double
backward pass (`tape`) turns that into sample scores and a Hessian-vector product. An optimizer that treats all
parameters alike (`Optimizer.descend`) has two numbers per participant as its derivative; others are differentiated.

Traps: a round needs the parameters before each of its steps, so all steps but the last are made again; compiled sweeps
overwrite their results, so these are cloned.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp

from cascadice.data.inputs import Inputs, at
from cascadice.engine.dropout import DropoutStart
from cascadice.engine.fast.double_backward import twice_differentiable
from cascadice.engine.fast.hooks import Tape
from cascadice.engine.fast.rows import Fetch, each_row, over_rows, twin
from cascadice.engine.fast.tape import Directional, Layers, directional_for, eager_read, read
from cascadice.engine.learner import Alphas, Learner, Participants, gradient, pure_step
from cascadice.engine.rounds import Adjoint
from cascadice.optimizers import Optimizer, State

Factors = tuple[()] | tuple[Tensor, Tensor]

# always the same object for the same arguments, so that what was compiled for it is reused
_directional = lru_cache(maxsize=16)(directional_for)


def pull_rows(
    learner: Learner, strategy: str, layers: Layers | None, before: Participants, fetch: Fetch,
    lr: Float[Tensor, " n"], adjoint: Adjoint, *, scores: bool, through: bool, out: Tensor | None,
    starts: Sequence[DropoutStart] = (),
) -> tuple[Adjoint, Float[Tensor, " n"], Float[Tensor, "n samples"]]:  # fmt: skip
    """λ^t, what inner steps add to λ^{t+½} · Δ, and the samples' scores if requested.

    Without `through` only scores are computed, which needs no Hessian-vector product if there is one step.
    """
    acting = learner if layers is None else layers.learner
    to = None if not through else torch.empty_like(adjoint.theta) if out is None else out
    how: dict[str, Any] = {"steady": True, "out": to, "fetch": lambda rows: fetch(rows)[:4], "starts": starts}
    rows = over_rows(_steps_back, strategy, acting, _directional(strategy, layers), scores, through, **how)
    with twice_differentiable():
        results = rows(before, *adjoint, optimizer_factors(learner.optimizer, lr))
    if not through:
        return adjoint, adjoint.theta.new_zeros(len(adjoint.theta)), results.clone()
    theta, state, inner, by_sample = results
    pulled = Adjoint(theta, {name: value.clone() for name, value in state.items()})
    return pulled, inner.clone(), by_sample.clone()


def _steps_back(
    learner: Learner, one: Participants, theta: Tensor, state: State, factors: Factors, x: Inputs, y: Tensor,
    lr: Tensor, samples: Alphas, directional: Directional, score: bool, through: bool,
) -> Any:  # fmt: skip
    """One participant's steps, last to first: back through the optimizer to the gradient, and from there to θ.

    c = ∂(update)/∂g ᵀ λ        λ ← λ + ∂(update)/∂θ ᵀ λ + H c        inner = Σ_i (λ_{i+1} − λ^{t+½}) · (θ_{i+1} − θ_i)

    Each step is scored by the λ that reaches it, so λ^{t+½} · Δ + inner is what all steps contribute together.
    """
    at_half = theta
    batches: list[Any] = [(at(x, i), y[i], (samples[0][i],) if samples else ()) for i in range(len(y))]
    befores = [one]  # of each step
    for i, (x_i, y_i, weights) in enumerate(batches[:-1]):
        learner.masks.step(i)
        befores.append(Participants(*pure_step(learner, *befores[i], x_i, y_i, lr, weights)[:3]))
    inner, scores = theta.new_zeros(()), list[Tensor]()
    for i, here in reversed(list(enumerate(befores))):
        learner.masks.step(i)
        if i + 1 < len(befores):
            inner = inner + ((theta - at_half) * (befores[i + 1].theta - here.theta)).sum()
        x_i, y_i, weights = batches[i]
        batch = (here.theta, here.buffers, x_i, y_i, weights)
        if factors:
            by_gradient, by_theta = factors
            parts, product = directional(learner, *batch, theta, score, through)
            parts = None if parts is None else by_gradient * parts
            if product is not None:
                theta = torch.addcmul(torch.addcmul(theta, theta, by_theta), product, by_gradient)
        else:
            direction, by_state, of_theta = _through_optimizer(learner, *batch, here.state, lr, theta, state)
            parts, product = directional(learner, *batch, direction, score, through)
            if product is not None:
                theta, state = product.add_(theta).add_(of_theta), by_state
        scores.insert(0, theta.new_zeros(0) if parts is None else parts)
    if not through:
        return scores[0]
    return theta, state, inner, torch.cat(scores)


@lru_cache(maxsize=16)  # differentiating takes as long as a small model's step; equal rates are the same tensor
def optimizer_factors(optimizer: Optimizer, lr: Float[Tensor, " n"]) -> Factors:
    """∂(update)/∂g and ∂(update)/∂θ of each row, if the optimizer treats all parameters alike; else ()."""
    if optimizer.descend is None:
        return ()
    one = lr.new_ones(len(lr), 1)
    _, pull = vjp(lambda g, p: optimizer.update(g, {}, p, lr)[0], one, one)
    by_gradient, by_theta = pull(one)
    return by_gradient[:, 0], by_theta[:, 0]


def _through_optimizer(
    learner: Learner, here: Tensor, buffers: Any, x: Inputs, y: Tensor, samples: Alphas, old: State, lr: Tensor,
    theta: Tensor, state: State,
) -> tuple[Tensor, State, Tensor]:  # fmt: skip
    """Adjoints of the gradient, the state and the parameters, given those of the optimizer's results."""
    optimizer = learner.optimizer  # a linear one has the same derivative at any gradient
    by_theta = here if optimizer.linear else gradient(learner, here, buffers, x, y, samples)[0]
    _, pull = vjp(lambda g, s, p: optimizer.update(g, s, p, lr), by_theta, old, here)
    adjoints: tuple[Tensor, State, Tensor] = pull((theta, state))
    return adjoints


def scores_from_tape(
    strategy: str, layers: Layers, tape: Any, adjoint: Adjoint, by_optimizer: Factors, lr: Float[Tensor, " n"]
) -> Float[Tensor, "n samples"]:
    """The samples' scores from the tape of one step of a linear optimizer. Cost: a forward pass of the layers."""
    stacked = (*adjoint, by_optimizer, lr)
    if not isinstance(tape, list):
        scores: Tensor = over_rows(_read_row, strategy, layers.learner, layers, read, steady=True)(tape[0], *stacked)
        return scores

    def row(worker: int, k: int) -> Tensor:
        learner, own = twin(layers.learner, worker), at(stacked, k)
        return _read_row(learner, tape[k][0], *own, layers=layers, reading=eager_read)

    return torch.stack(each_row(row, len(lr), lr.device))


def _read_row(
    learner: Learner, tape: Tape, theta: Tensor, state: State, factors: Factors, lr: Tensor, layers: Layers,
    reading: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    if factors:
        return factors[0] * reading(layers, learner, tape, theta)
    # a step that is linear in the gradient has the same derivative at any gradient, state and parameters
    _, pull = vjp(lambda by_theta: learner.optimizer.update(by_theta, state, theta, lr), theta)
    return reading(layers, learner, tape, pull((theta, state))[0])


def dot_with_update(before: Participants, half: Participants, adjoint: Adjoint) -> Float[Tensor, " n"]:
    """λ · ((θ, state)^{t+½} − (θ, state)^t) of every participant."""
    of_state = (_dots(value, half.state[name], before.state[name]) for name, value in adjoint.state.items())
    return sum(of_state, start=_dots(adjoint.theta, half.theta, before.theta))


def _dots(adjoint: Tensor, new: Tensor, old: Tensor) -> Float[Tensor, " n"]:
    """On CPU row by row: temporaries as large as everybody's parameters would be fresh memory."""
    if adjoint.is_cuda:
        return _compiled_dots()(adjoint, new, old)
    rows = each_row(lambda _, k: (adjoint[k] * (new[k] - old[k])).sum().double(), len(adjoint), adjoint.device)
    return torch.stack(rows)


@cache
def _compiled_dots() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(lambda adjoint, new, old: (adjoint * (new - old)).reshape(len(adjoint), -1).sum(-1).double())
