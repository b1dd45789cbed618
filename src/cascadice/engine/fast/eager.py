"""One training step by plain autograd, for the strategy "loop": torch.func adds as much again as a small model's step.

A module is given the participant's parameters as views of its row, so almost nothing is copied; the gradient of each
parameter is applied straight to its part of the new row if the optimizer can do that (`Optimizer.descend`).

Traps: the module is modified, so each thread needs a twin of its own; steps with weights on samples, and passes in low
precision under activation checkpoints, go through torch.func or without checkpoints.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cascadice.data.inputs import Inputs
from cascadice.engine.fast.double_backward import non_reentrant_checkpoints, tolerate_user_hooks, without_checkpoints
from cascadice.engine.fast.hooks import LayerCalls, Tape
from cascadice.engine.learner import Alphas, Buffers, Learner, Step, forward, loss_of, pure_step, trainable, unflatten
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


def eager_loss(learner: Learner, own: dict[str, Any], buffers: Buffers, x: Inputs, y: Tensor) -> tuple[Tensor, Buffers]:
    """The training loss of a module that has its parameters already, and the buffers afterwards."""
    x = channels_last(x)
    if learner.compute is not None:
        with without_checkpoints():  # recomputed layers would see the parameters in full precision
            return loss_of(own, learner, buffers, x, y)
    if buffers:
        return loss_of(own, learner, buffers, x, y)
    learner.masks.rewind()
    with learner.casting(y.device):
        return learner.loss(forward(learner.training, None, x, None), y), {}


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
    row = parameters[0].new_empty(sum(sizes))  # reused: fresh memory costs more than filling it

    def step(
        theta: Tensor, state: State, buffers: Buffers, x: Inputs, y: Tensor, lr: Tensor, samples: Alphas,
        out: Tensor | None,
    ) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
        if samples:
            with without_checkpoints(), tolerate_user_hooks(learner.training):
                return pure_step(learner, theta, state, buffers, x, y, lr, samples, out)
        own = assign_parameters(learner.training, theta)
        calls.start()
        with torch.enable_grad(), non_reentrant_checkpoints():
            value, after = eager_loss(learner, own, buffers, x, y)
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
