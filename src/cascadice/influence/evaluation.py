"""What influence is measured on: a function of outputs on evaluation data z', which need not be the training loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad_and_value
from torch.utils._pytree import tree_map

from cascadice.data import Samples
from cascadice.engine.fast.rows import each_row, over_rows, twin
from cascadice.engine.learner import Buffers, Learner, Participants, channels_last, forward, lend, unflatten
from cascadice.engine.networks import Network
from cascadice.losses import Loss


@dataclass(frozen=True, eq=False)
class Evaluation:
    """L(θ_k; z'): `x, y` are shared by all, or, if `own`, participant k is judged on its own `x[k], y[k]`."""

    x: Tensor
    y: Tensor
    measure: Loss
    own: bool = False


def evaluate_on(
    network: Network,
    samples: Samples | Sequence[Samples] | None = None,
    measure: Loss | None = None,
) -> Evaluation:
    """Evaluation participants on `samples` (the test data), or each on its own from a sequence of equally many samples.

    `measure(outputs, targets)` must give a scalar; it is the training loss unless given. `influence.measures` has some.
    """
    chosen = network.data.test if samples is None else samples
    parts = [chosen] if isinstance(chosen, Samples) else list(chosen)
    if not isinstance(chosen, Samples) and len(parts) != network.nodes:
        raise ValueError(f"there must be evaluation data for each of {network.nodes} participants; found {len(parts)}.")
    if len({len(part) for part in parts}) > 1 or len(parts[0]) == 0:
        sizes = sorted({len(part) for part in parts})
        raise ValueError(f"evaluation sets must have one size, at least 1; found {sizes}. Use subset(index).")
    taken = [part.to(network.device).take(torch.arange(len(part), device=network.device)) for part in parts]
    x, y = (torch.stack(column) for column in zip(*taken, strict=True))
    x = x.to(network.initial.theta.dtype) if x.is_floating_point() else x
    found = measure or network.learner.loss
    for k in range(len(parts)):
        first: Participants = tree_map(lambda tensor, k=k: tensor[k], network.initial)
        _check_measured(_measured(network.learner, first, x[k], y[k], found))
    own = not isinstance(chosen, Samples)
    return Evaluation(x if own else x[0], y if own else y[0], found, own)


def _measured(learner: Learner, first: Participants, x: Tensor, y: Tensor, measure: Loss) -> Any:
    try:
        outputs = _outputs(learner, first.theta, first.buffers, x)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        said = str(error).strip().splitlines()[0]
        raise ValueError(
            f"evaluation data must be what the model takes; it cannot take {list(x.shape)} of {x.dtype}: {said}"
        ) from error
    return measure(outputs, y)


def _check_measured(value: Any) -> None:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"a measured function must give a tensor; found {kind}. Leave out .item(), float() and the like."
        )
    if value.dim() != 0:
        raise ValueError(f"a measured function must give a scalar; found shape {tuple(value.shape)}. Use e.g. .mean().")
    if not bool(value.isfinite()):
        raise ValueError(
            f"a measured function must give a number; at the initial parameters it is {float(value)}. "
            "Does it average over nothing, such as a class that no evaluation sample has?"
        )


def _outputs(learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
    return forward(learner.evaluating, {**dict(unflatten(learner.evaluating, theta)), **buffers}, x, learner.compute)


def _value(theta: Tensor, learner: Learner, buffers: Buffers, x: Tensor, y: Tensor, measure: Loss) -> Tensor:
    return measure(_outputs(learner, theta, buffers, x), y)


def _differentiable_value(theta: Tensor, *rest: Any) -> Tensor:
    value = _value(theta, *rest)
    _check_slope(value)
    return value


def _check_slope(value: Tensor) -> None:
    if not value.requires_grad:  # torch would call its slope 0
        raise ValueError(
            "the measured function has no derivative with respect to the outputs (accuracy has none). Use the ground "
            "truth, which needs none, or a smooth measure such as measures.negative_margin."
        )


def _value_row(learner: Learner, theta: Tensor, buffers: Buffers, *rest: Any) -> Tensor:
    return _value(theta, learner, buffers, *rest)


def _slope_row(learner: Learner, theta: Tensor, buffers: Buffers, *rest: Any) -> tuple[Tensor, Tensor]:
    slope, value = grad_and_value(_differentiable_value)(theta, learner, buffers, *rest)
    return value, slope


def values(
    network: Network, evaluation: Evaluation, theta: Float[Tensor, "p d"], buffers: Buffers, nodes: Sequence[int]
) -> Float[Tensor, " p"]:
    """L(θ_p; z') for rows of parameters that stand for these participants. Cost: a forward pass each."""
    found: Tensor = _judged(_value_row, network, evaluation, theta, buffers, nodes)
    return found


def slopes(
    network: Network,
    evaluation: Evaluation,
    theta: Float[Tensor, "p d"],
    buffers: Buffers,
    nodes: Sequence[int],
    weights: Tensor | None = None,
    into: Tensor | None = None,
) -> tuple[Float[Tensor, " p"], Float[Tensor, "p d"]]:
    """L(θ_p; z') and ∇L(θ_p; z'), the latter times weights if given. Cost: a forward and a backward pass each."""
    if network.strategy == "loop":
        _check_form(network, theta, nodes)
        return _eager_slopes(network, evaluation, theta, buffers, nodes, weights, into)
    value, slope = _judged(_slope_row, network, evaluation, theta, buffers, nodes, steady=weights is not None)
    return value, slope if weights is None else torch.mul(slope, weights[:, None], out=into)


def _eager_slopes(
    network: Network, evaluation: Evaluation, theta: Tensor, buffers: Buffers, nodes: Sequence[int], weights: Tensor | None,
    into: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By plain autograd, each slope straight to its place: on CPU half the cost for a small model."""
    found = torch.empty_like(theta) if into is None else into
    scale = theta.new_ones(len(theta)) if weights is None else weights
    sizes = [p.numel() for p in network.learner.evaluating.parameters()]

    def row(worker: int, k: int) -> Tensor:
        learner = twin(network.learner, worker)
        x, y = (evaluation.x[nodes[k]], evaluation.y[nodes[k]]) if evaluation.own else (evaluation.x, evaluation.y)
        own = lend(learner.evaluating, theta[k])
        x = channels_last(x) if x.dim() == 4 and not x.is_cuda else x
        with torch.enable_grad():
            mine = {name: buffer[k] for name, buffer in buffers.items()}
            plain = not mine and learner.compute is None
            value = evaluation.measure(
                learner.evaluating(x) if plain else forward(learner.evaluating, {**own, **mine}, x, learner.compute), y
            )
            _check_slope(value)
            pieces = torch.autograd.grad(value, list(own.values()), materialize_grads=True)
        for piece, place in zip(pieces, torch.split(found[k], sizes), strict=True):
            torch.mul(piece, scale[k], out=place.view(piece.shape))
        return value.detach()

    return torch.stack(each_row(row, len(theta), theta.device)), found


def _check_form(network: Network, theta: Tensor, nodes: Sequence[int]) -> None:
    expected = (len(nodes), network.learner.size)
    if theta.shape != expected:
        raise ValueError(
            f"parameters must be of this network, {list(expected)}; found {list(theta.shape)}. "
            "Build the network that was recorded."
        )


def _judged(
    row: Any, network: Network, evaluation: Evaluation, theta: Tensor, buffers: Buffers, nodes: Sequence[int],
    steady: bool = False,
) -> Any:  # fmt: skip
    _check_form(network, theta, nodes)
    if not evaluation.own:
        shared = (evaluation.x, evaluation.y, evaluation.measure)
        return over_rows(row, network.strategy, network.learner, *shared, steady=steady)(theta, buffers)
    rows = torch.as_tensor(list(nodes), device=evaluation.x.device)
    return over_rows(row, network.strategy, network.learner, evaluation.measure, steady=steady)(
        theta, buffers, evaluation.x[rows], evaluation.y[rows]
    )
