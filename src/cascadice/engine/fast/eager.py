"""One training step by plain autograd, for the strategy "loop": torch.func adds as much again as a small model's step.

A module is given the participant's parameters as views of its row, so almost nothing is copied; the gradient of each
parameter is applied straight to its part of the new row if the optimizer can do that (`Optimizer.descend`).

Traps: the module is modified, so each thread needs a twin of its own; passes in low precision ignore activation
checkpoints.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cascadice.data.inputs import Inputs
from cascadice.engine.fast.double_backward import non_reentrant_checkpoints, without_checkpoints
from cascadice.engine.fast.hooks import LayerCalls, Tape
from cascadice.engine.learner import (
    Alphas,
    Buffers,
    Learner,
    Step,
    broadcast,
    forward,
    outputs_of,
    trainable,
    unflatten,
)
from cascadice.optimizers import State


def assign_parameters(module: nn.Module, theta: Tensor) -> dict[str, nn.Parameter]:
    """Make the module's parameters views of this row, and return them by name.

    On CPU, convolution kernels are copied to channels-last instead, which every pass would otherwise do for itself.
    """
    own = trainable(module)
    for name, value in unflatten(module, theta):
        parameter = own[name]
        if value.dim() == 4 and not value.is_cuda:
            if not parameter.is_contiguous(memory_format=torch.channels_last):
                parameter.data = torch.empty_like(value, memory_format=torch.channels_last)
            parameter.data.copy_(value)
        else:
            parameter.data = value
    return own


def eager_loss(
    learner: Learner, own: dict[str, Any], buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas = ()
) -> tuple[Tensor, Buffers]:
    """The training loss of a module that has its parameters already, and the buffers afterwards.

    Weights on samples multiply their terms in its gradient, as in `learner.gradient`.
    """
    x, low_precision = channels_last(x), learner.compute is not None
    # recomputed layers would see the parameters in full precision
    with without_checkpoints() if low_precision else nullcontext(), learner.casting(y.device):
        if buffers or low_precision:
            outputs, after = outputs_of(own, learner, buffers, x)
        else:
            learner.masks.rewind()
            outputs, after = forward(learner.training, None, x, None), {}
        if samples:
            outputs = _Weighted.apply(outputs, samples[0])  # type: ignore[no-untyped-call]
        return learner.loss(outputs, y), after


class _Weighted(torch.autograd.Function):
    """The outputs themselves, whose gradient is multiplied by a weight for each sample on its way back."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return outputs.clone()  # a loss may change them in place

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> Any:
        return by_output * broadcast(ctx.saved_tensors[0], by_output), None


def channels_last(x: Inputs) -> Inputs:
    """Images on CPU in channels-last, which convolutions and pooling run twice as fast; other inputs unchanged."""
    images = isinstance(x, Tensor) and x.dim() == 4 and not x.is_cuda
    return x.contiguous(memory_format=torch.channels_last) if images else x  # type: ignore[union-attr]


def eager_step(learner: Learner, tapes: list[Tape] | None = None) -> Step:
    """A step like `learner.pure_step`, by plain autograd.

    The learner must be a twin that nobody else uses. If its layers are hooked, the tape of each pass goes to `tapes`.
    """
    calls = getattr(learner.training, "calls", LayerCalls())
    parameters = list(trainable(learner.training).values())
    sizes = [p.numel() for p in parameters]
    # reused: fresh memory costs more than filling it; but an optimizer of others may keep the gradient in its state
    row = parameters[0].new_empty(sum(sizes)) if learner.optimizer.settings else None

    def step(
        theta: Tensor, state: State, buffers: Buffers, x: Inputs, y: Tensor, lr: Tensor, samples: Alphas,
        out: Tensor | None,
    ) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
        own = assign_parameters(learner.training, theta)
        calls.start()
        with torch.enable_grad(), non_reentrant_checkpoints():
            value, after = eager_loss(learner, own, buffers, x, y, samples)
            made = calls.stop()
            inputs = [*own.values(), *(call.output for call in made)]
            gradients = torch.autograd.grad(value, inputs, materialize_grads=True)
        if tapes is not None:
            tapes.append(tuple(zip([call.input.detach() for call in made], gradients[len(own) :], strict=True)))
        pieces, loss, buffers = gradients[: len(own)], value.detach(), {name: b.detach() for name, b in after.items()}
        descend = learner.optimizer.descend
        if descend is None:
            by_theta = torch.cat([p.reshape(-1) for p in pieces], out=row)
            delta, state = learner.optimizer.update(by_theta, state, theta, lr)
            return torch.add(theta, delta, out=out), state, buffers, loss
        out = torch.empty_like(theta) if out is None else out
        for piece, old, new in zip(pieces, torch.split(theta, sizes), torch.split(out, sizes), strict=True):
            descend(piece, old.view(piece.shape), lr, new.view(piece.shape))
        return out, state, buffers, loss

    return step
