"""Steps by plain autograd, for loops: torch.func costs as much again as a small model."""

from typing import Any

import torch
from torch import Tensor, nn

from cascadice.data.inputs import Inputs
from cascadice.engine.fast.hooks import LayerCalls, Tape
from cascadice.engine.fast.twice import computed_again, plain_checkpoints, tolerating_hooks
from cascadice.engine.learner import (
    Buffers,
    Learner,
    Maybe,
    Step,
    call,
    flatten,
    loss_of,
    pure_step,
    trained,
    unflatten,
)
from cascadice.optimizers import State


def lend(module: nn.Module, theta: Tensor) -> dict[str, nn.Parameter]:
    """Let the module run with this row of parameters, mostly without a copy; gives them by name.

    On CPU kernels are copied, to channels-last, once, or each pass would do so for itself.
    """
    own = trained(module)
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
    """The training loss by plain autograd, the module having been lent its parameters; and buffers afterwards."""
    x = channels_last(x)
    if learner.compute is not None:
        with plain_checkpoints():  # layers that are computed again would find parameters in full precision
            return loss_of(own, learner, buffers, x, y)
    if buffers:
        return loss_of(own, learner, buffers, x, y)
    learner.masks.rewind()
    with learner.casting(y.device):
        return learner.loss(call(learner.training, x), y), {}


def channels_last(x: Inputs) -> Inputs:
    """Images on CPU as convolutions and pooling take them twice as fast; the rest as it is."""
    images = isinstance(x, Tensor) and x.dim() == 4 and not x.is_cuda
    return x.contiguous(memory_format=torch.channels_last) if images else x  # type: ignore[union-attr]


def eager_step(learner: Learner, tapes: list[Tape] | None = None) -> Step:
    """The step of `learner.pure_step` by plain autograd.

    The learner must be a twin of its own: its modules are lent the parameters. If its layers are hooked, the tape of
    each pass is added to `tapes`. Steps with weights on samples are made by torch.func.
    """
    calls = getattr(learner.training, "calls", LayerCalls())
    sizes = [p.numel() for p in trained(learner.training).values()]
    row = flatten(learner.training)  # fresh memory costs more than what fills it

    def step(
        theta: Tensor, state: State, buffers: Buffers, x: Inputs, y: Tensor, lr: Tensor, samples: Maybe,
        out: Tensor | None,
    ) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
        if samples:
            with plain_checkpoints(), tolerating_hooks(learner.training):
                return pure_step(learner, theta, state, buffers, x, y, lr, samples, out)
        own = lend(learner.training, theta)
        calls.start()
        with torch.enable_grad(), computed_again():
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
