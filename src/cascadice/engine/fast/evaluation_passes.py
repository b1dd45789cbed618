"""Losses, gradients and other measures of rows of parameters on evaluation data.

Strategy: one sweep over all rows (`rows.over_rows`); with "loop", gradients by plain autograd, each written straight to
its row, which on CPU costs half as much for a small model. Evaluation sets of different sizes are swept size by size.

Trap: torch's kernels count what they fold into one batch in 32 bits, so sweeps are limited to `MOST_AT_ONCE` samples.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad_and_value
from torch.utils._pytree import tree_map

from cascadice.data.inputs import Inputs, at, stacked
from cascadice.engine.evaluation import Evaluation, check_measure_differentiable, check_rows, measured
from cascadice.engine.fast.double_backward import non_reentrant_checkpoints
from cascadice.engine.fast.eager import assign_parameters, channels_last
from cascadice.engine.fast.rows import each_row, over_rows, twin
from cascadice.engine.learner import Buffers, Learner, Participants, forward, measure_all, trainable
from cascadice.engine.networks import Network
from cascadice.engine.rounds import rows_of
from cascadice.losses import Loss


def row_losses(
    network: Network, evaluation: Evaluation, here: Participants, nodes: Sequence[int]
) -> Float[Tensor, " p"]:
    """L(θ_p; z') of rows that belong to these participants. Cost: a forward pass each."""
    losses: Tensor = _over_sets(measured, network, evaluation, here, nodes, steady=False)
    return losses


def row_gradients(
    network: Network, evaluation: Evaluation, here: Participants, nodes: Sequence[int], weights: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Float[Tensor, " p"], Float[Tensor, "p d"]]:  # fmt: skip
    """L(θ_p; z') and ∇L(θ_p; z'), the latter times weights if given. Cost: a forward and a backward pass each."""
    if network.strategy == "loop":
        check_rows(network, here.theta, nodes)
        return _eager_gradients(network.learner, evaluation, here.theta, here.buffers, nodes, weights, out)
    loss, gradient = _over_sets(_gradient_row, network, evaluation, here, nodes, steady=weights is not None)
    return loss, gradient if weights is None else torch.mul(gradient, weights[:, None], out=out)


def _gradient_row(learner: Learner, theta: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    def loss_at(theta: Tensor) -> Tensor:
        loss = measured(learner, theta, *rest)
        check_measure_differentiable(loss)
        return loss

    gradient, loss = grad_and_value(loss_at)(theta)
    return loss, gradient


def _over_sets(
    row: Callable[..., Any], network: Network, evaluation: Evaluation, here: Participants, nodes: Sequence[int],
    steady: bool,
) -> Any:  # fmt: skip
    """Run each row on its evaluation set; sets of the same size in one sweep."""
    check_rows(network, here.theta, nodes)
    (theta, _, buffers), learner, strategy = here, network.learner, network.strategy
    if not evaluation.own:
        shared = (evaluation.x, evaluation.y, evaluation.measure)
        return over_rows(row, strategy, learner, *shared, steady=steady)(theta, buffers)
    if isinstance(evaluation.y, Tensor):
        rows = torch.as_tensor(list(nodes), device=theta.device)
        sweep = over_rows(row, strategy, learner, evaluation.measure, steady=steady)
        return sweep(theta, buffers, at(evaluation.x, rows), evaluation.y[rows])
    sweep, parts, order = over_rows(row, strategy, learner, evaluation.measure), [], []
    for size in sorted({len(evaluation.y[k]) for k in nodes}):
        places = [place for place, k in enumerate(nodes) if len(evaluation.y[k]) == size]
        x, y = stacked([evaluation.of(nodes[place]) for place in places])
        index = torch.tensor(places, device=theta.device)
        parts.append(sweep(theta[index], {name: b[index] for name, b in buffers.items()}, x, y))
        order += places
    back = torch.tensor(order, device=theta.device).argsort()
    return tree_map(lambda *column: torch.cat(column)[back], *parts)


def _eager_gradients(
    learner: Learner, evaluation: Evaluation, theta: Tensor, buffers: Buffers, nodes: Sequence[int],
    weights: Tensor | None, out: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By plain autograd, each gradient written straight to its row."""
    gradients = torch.empty_like(theta) if out is None else out
    scale = theta.new_ones(len(theta)) if weights is None else weights
    sizes = [p.numel() for p in trainable(learner.evaluating).values()]

    def row(worker: int, k: int) -> Tensor:
        own = twin(learner, worker)
        x, y = evaluation.of(nodes[k])
        parameters, x = assign_parameters(own.evaluating, theta[k]), channels_last(x)
        with torch.enable_grad(), non_reentrant_checkpoints():
            plain = not buffers and own.compute is None
            tensors = None if plain else {**parameters, **at(buffers, k)}
            loss = evaluation.measure(forward(own.evaluating, tensors, x, own.compute), y)
            check_measure_differentiable(loss)
            pieces = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        for piece, place in zip(pieces, torch.split(gradients[k], sizes), strict=True):
            torch.mul(piece, scale[k], out=place.view(piece.shape))
        return loss.detach()

    return torch.stack(each_row(row, len(theta), theta.device)), gradients


MOST_AT_ONCE = 2**17  # participants times samples in one sweep


def row_measures(
    learner: Learner, strategy: str, here: Participants, x: Inputs, y: Tensor, measures: tuple[Loss, ...]
) -> Float[Tensor, "measures p ..."]:
    """Each measure of every participant on the same (x, y). Cost: a forward pass each."""
    sweep = over_rows(measure_all, strategy, learner, x, y, measures)
    together = max(1, MOST_AT_ONCE // len(y))
    starts = range(0, len(here.theta), together)
    return torch.cat([torch.stack(sweep(rows_of(here, slice(start, start + together)))) for start in starts], 1)
