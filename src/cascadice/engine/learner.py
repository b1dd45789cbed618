"""What one participant computes: its model, loss and optimizer as pure functions of a flat row of parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vjp

from cascadice.data.inputs import Inputs, at, in_precision
from cascadice.engine.dropout import Masks
from cascadice.losses import Loss
from cascadice.optimizers import Optimizer, State

Buffers = dict[str, Tensor]
Alphas = tuple[()] | tuple[Tensor]
"""Weights α of updates or samples; () if all are 1, which pytrees and vmap handle better than None."""


class Participants(NamedTuple):
    """What participants carry from round to round, stacked on a leading axis; a single participant has no such axis.

    Attributes:
        theta: The trainable parameters, one flat row per participant.
        state: The optimizer's state by name, e.g. momentum.
        buffers: The model's buffers by name, e.g. running statistics of BatchNorm.
    """

    theta: Float[Tensor, "*n d"]
    state: State
    buffers: Buffers


@dataclass(frozen=True, eq=False)
class Learner:
    """A model, its loss and its optimizer. The modules are templates: parameters are passed in.

    Only parameters that require a gradient are trained, gossiped and measured. The frozen ones are the same for
    everybody, and all copies share them. A module is not safe to call from two threads, because its parameters are
    swapped in and out, so each thread has its own `twin`.
    """

    training: nn.Module
    evaluating: nn.Module
    loss: Loss
    optimizer: Optimizer
    compute: torch.dtype | None = None  # the precision of forward and backward passes; None for that of the parameters
    stochastic: bool = False  # whether the model draws random numbers in training (dropout)
    autocast: torch.dtype | None = None  # the precision of `torch.autocast`, if training runs in it
    masks: Masks = field(default_factory=Masks)

    @property
    def size(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in trainable(self.training).values())

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """The autocast context of a training pass; it caches no casts, because parameters are swapped."""
        on = self.autocast is not None
        return torch.autocast(device.type, self.autocast, cache_enabled=False) if on else nullcontext()

    def twin(self) -> "Learner":
        """The same learner with modules of its own."""
        return replace(self, training=_sharing(self.training), evaluating=_sharing(self.evaluating))


def learner(model: nn.Module, loss: Loss, optimizer: Optimizer, compute: torch.dtype | None = None) -> Learner:
    """A learner from copies of the user's model; `compute` is the precision of its forward and backward passes."""
    if not callable(loss):
        raise TypeError(f"the loss must be a function of (outputs, targets), such as losses.mse; found {loss!r}.")
    if not trainable(model):
        raise ValueError("the model must have parameters to train; found none with requires_grad.")
    own = deepcopy(model)
    for frozen in frozen_of(own):
        if compute is not None and frozen.is_floating_point():
            frozen.data = frozen.data.to(compute)
    return Learner(own.train(), _sharing(own).eval(), loss, optimizer, compute)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; those shared by several layers once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen_of(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not trained."""
    return [p for p in model.parameters() if not p.requires_grad]


def check_same_frozen(models: Sequence[nn.Module]) -> None:
    """Frozen parameters are kept once for everyone, so they must not differ."""
    for k, model in enumerate(models):
        if not all(map(torch.equal, frozen_of(models[0]), frozen_of(model))):
            raise ValueError(f"frozen parameters must be the same for everyone; those of participant {k} differ.")


def _sharing(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its frozen parameters, which may be nearly all of a large model."""
    return deepcopy(model, {id(p): p for p in frozen_of(model)})


def flatten(model: nn.Module) -> Float[Tensor, " d"]:
    """The trainable parameters of a model, as one row."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(model).values()])


def unflatten(model: nn.Module, theta: Float[Tensor, " d"]) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each parameter, as views of the row; `split`, whose backward is one concatenation."""
    named = trainable(model)
    pieces = torch.split(theta, [p.numel() for p in named.values()])
    return ((name, piece.view(p.shape)) for (name, p), piece in zip(named.items(), pieces, strict=True))


def logits_of(output: Any) -> Tensor:
    """The tensor that losses take: the model's output itself, or its `logits`."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"a model must return a tensor, or an output whose `logits` are a tensor; found {type(output).__name__}. "
            "Return the logits, or wrap the model in one that does."
        )
    return logits


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments with which a model takes these inputs."""
    if isinstance(x, dict):
        return (), x
    return (x, {}) if isinstance(x, tuple) else ((x,), {})


def forward(model: nn.Module, tensors: dict[str, Tensor] | None, x: Inputs, compute: torch.dtype | None) -> Tensor:
    """The model's logits with these parameters and buffers, which it updates in place; with its own if None."""
    if compute is not None and tensors is not None:
        tensors, x = in_precision(tensors, compute), in_precision(x, compute)
    args, named = arguments(x)
    return logits_of(model(*args, **named) if tensors is None else functional_call(model, tensors, args, named))


def outputs_of(parameters: dict[str, Tensor], learner: Learner, buffers: Buffers, x: Inputs) -> tuple[Tensor, Buffers]:
    """The training model's outputs on one batch, and its buffers afterwards."""
    after = {name: value.clone() for name, value in buffers.items()}
    if learner.compute is not None:  # or running statistics would be written into a cast copy and lost
        after = in_precision(after, learner.compute)
    learner.masks.rewind()
    outputs = forward(learner.training, {**parameters, **after}, x, learner.compute)
    return outputs, {name: value.to(buffers[name].dtype) for name, value in after.items()}


def loss_of(
    parameters: dict[str, Tensor], learner: Learner, buffers: Buffers, x: Inputs, y: Tensor
) -> tuple[Tensor, Buffers]:
    """The training loss on one batch as a function of named parameters, and the buffers afterwards."""
    with learner.casting(y.device):
        outputs, after = outputs_of(parameters, learner, buffers, x)
        return learner.loss(outputs, y), after


def objective(theta: Tensor, learner: Learner, buffers: Buffers, x: Inputs, y: Tensor) -> tuple[Tensor, Buffers]:
    """The training loss of one participant on one batch as a function of its row, and its buffers afterwards."""
    return loss_of(dict(unflatten(learner.training, theta)), learner, buffers, x, y)


def gradient(
    learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas = ()
) -> tuple[Tensor, Tensor, Buffers]:
    """The gradient by torch.func, the loss and the buffers afterwards; can be vmapped, compiled, differentiated again.

    Weights α on `samples` scale each sample's term in the gradient, not in the loss:

        g = Σ_i α_i J_iᵀ ∂L/∂output_i
    """
    if not samples:
        value, (loss, after) = grad_and_value(objective, has_aux=True)(theta, learner, buffers, x, y)
        return value, loss, after

    def outputs(theta: Tensor) -> tuple[Tensor, Buffers]:
        return outputs_of(dict(unflatten(learner.training, theta)), learner, buffers, x)

    with learner.casting(y.device):
        out, pull, after = vjp(outputs, theta, has_aux=True)
        by_output, loss = grad_and_value(learner.loss)(out, y)
    return pull(by_output * broadcast(samples[0], by_output))[0], loss, after


def broadcast(weights: Float[Tensor, " rows"], like: Tensor) -> Tensor:
    """Weights of rows or samples, shaped to multiply all entries of each."""
    return weights.view(-1, *[1] * (like.dim() - 1)).to(like.dtype)


Step = Callable[..., tuple[Tensor, State, Buffers, Tensor]]
"""One step of the optimizer on one batch: (theta, state, buffers, x, y, lr, samples, out) -> the new theta, state and
buffers, and the loss before it."""


def pure_step(
    learner: Learner, theta: Tensor, state: State, buffers: Buffers, x: Inputs, y: Tensor, lr: Tensor,
    samples: Alphas = (), out: Tensor | None = None,
) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
    """One step by torch.func: can be vmapped, compiled and differentiated again."""
    by_theta, loss, buffers = gradient(learner, theta, buffers, x, y, samples)
    delta, state = learner.optimizer.update(by_theta, state, theta, lr)
    return torch.add(theta, delta, out=out), state, buffers, loss


def local_steps(
    learner: Learner, before: Participants, x: Inputs, y: Tensor, lr: Float[Tensor, ""], samples: Alphas = (), *,
    step: Step | None = None, out: Tensor | None = None,
) -> tuple[Participants, Float[Tensor, ""]]:  # fmt: skip
    """One participant's local work in a round: θ^{t+½} = O(θ^t, z), a step per batch, into `out`; and its mean loss."""
    theta, state, buffers = before
    make = partial(pure_step, learner) if step is None else step
    losses = []
    for i in range(len(y)):
        target = out if i == len(y) - 1 else None
        weights: Any = (samples[0][i],) if samples else ()
        learner.masks.step(i)
        theta, state, buffers, loss = make(theta, state, buffers, at(x, i), y[i], lr, weights, target)
        losses.append(loss)
    return Participants(theta, state, buffers), torch.stack(losses).mean()


def measure_all(
    learner: Learner, one: Participants, x: Inputs, y: Tensor, measures: tuple[Callable[[Tensor, Tensor], Tensor], ...]
) -> tuple[Tensor, ...]:
    """Each measure of one participant's outputs on (x, y), in evaluation mode."""
    tensors = {**dict(unflatten(learner.evaluating, one.theta)), **one.buffers}
    output = forward(learner.evaluating, tensors, x, learner.compute)
    return tuple(measure(output, y) for measure in measures)
