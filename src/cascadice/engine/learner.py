"""What one participant computes: its model, loss and optimizer as pure functions of a flat row of parameters."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from cascadice.engine.fast.hooks import Reel, Tape
from cascadice.losses import Loss
from cascadice.optimizers import Optimizer, State

Buffers = dict[str, Tensor]
Conduct = tuple[Tensor, ...]  # () for the honest, else (taken, factor)


class Participants(NamedTuple):
    """What participants carry from round to round, stacked on a leading axis; one of them has no such axis."""

    theta: Float[Tensor, "*n d"]
    state: State
    buffers: Buffers


@dataclass(frozen=True, eq=False)
class Learner:
    """A model, its loss and its optimizer. Both copies of the model are only templates: parameters come from outside.

    A module is not safe to call from two threads (its parameters are swapped in and out), so each has its own `twin`.
    """

    training: nn.Module
    evaluating: nn.Module
    loss: Loss
    optimizer: Optimizer
    compute: torch.dtype | None = None
    stochastic: bool = False

    @property
    def size(self) -> int:
        """Parameters of one participant."""
        return sum(p.numel() for p in self.training.parameters())

    def twin(self) -> "Learner":
        """The same learner with modules of its own."""
        return replace(self, training=deepcopy(self.training), evaluating=deepcopy(self.evaluating))


def learner(model: nn.Module, loss: Loss, optimizer: Optimizer, compute: torch.dtype | None = None) -> Learner:
    """A learner from copies of the user's model; `compute` is the precision of its forward and backward passes."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("the model must have parameters to train; found none with requires_grad.")
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        raise ValueError(f"every parameter must be trained; {frozen[0]!r} is frozen. Register it as a buffer instead.")
    return Learner(deepcopy(model).train(), deepcopy(model).eval(), loss, optimizer, compute)


def flatten(model: nn.Module) -> Float[Tensor, " d"]:
    """The parameters of a model as one row."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def unflatten(model: nn.Module, theta: Float[Tensor, " d"]) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each parameter: views of the row. Split, not sliced: its backward is one concatenation."""
    named = dict(model.named_parameters())
    pieces = torch.split(theta, [p.numel() for p in named.values()])
    return ((name, piece.view(p.shape)) for (name, p), piece in zip(named.items(), pieces, strict=True))


def forward(model: nn.Module, mine: dict[str, Tensor], x: Tensor, compute: torch.dtype | None) -> Tensor:
    """The model's output with the parameters and buffers `mine`; buffers are updated in place, as modules do."""
    if compute is not None:
        mine = {name: value.to(compute) if value.is_floating_point() else value for name, value in mine.items()}
        x = x.to(compute) if x.is_floating_point() else x
    output: Tensor = functional_call(model, mine, (x,))
    return output


def objective(theta: Tensor, learner: Learner, buffers: Buffers, x: Tensor, y: Tensor) -> tuple[Tensor, Buffers]:
    """The training loss of one participant on one batch as a function of its row, and its buffers afterwards."""
    return _loss(dict(unflatten(learner.training, theta)), learner, buffers, x, y)


def _loss(
    parameters: dict[str, Tensor], learner: Learner, buffers: Buffers, x: Tensor, y: Tensor
) -> tuple[Tensor, Buffers]:
    # in the precision of the pass, or what it writes into them (running statistics) would go into copies and be lost
    after = {name: value.to(_precision(value, learner), copy=True) for name, value in buffers.items()}
    loss = learner.loss(forward(learner.training, {**parameters, **after}, x, learner.compute), y)
    return loss, {name: value.to(buffers[name].dtype) for name, value in after.items()}


def _precision(buffer: Tensor, learner: Learner) -> torch.dtype:
    return learner.compute if learner.compute is not None and buffer.is_floating_point() else buffer.dtype


@runtime_checkable
class Step(Protocol):
    """(theta, state, buffers, x, y, lr, room for the new theta) -> theta, state, buffers, loss: an optimizer's step."""

    def __call__(
        self, theta: Tensor, state: State, buffers: Buffers, x: Tensor, y: Tensor, lr: Tensor, into: Tensor | None
    ) -> tuple[Tensor, State, Buffers, Tensor]: ...


def gradient(learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Buffers]:
    """The gradient by torch.func: can be vmapped, compiled and differentiated again."""
    slope, (value, after) = grad_and_value(objective, has_aux=True)(theta, learner, buffers, x, y)
    return slope, value, after


def pure_step(
    learner: Learner,
    theta: Tensor,
    state: State,
    buffers: Buffers,
    x: Tensor,
    y: Tensor,
    lr: Tensor,
    into: Tensor | None,
) -> tuple[Tensor, State, Buffers, Tensor]:
    """One step by torch.func: can be vmapped, compiled and differentiated again."""
    slope, loss, buffers = gradient(learner, theta, buffers, x, y)
    delta, state = learner.optimizer.update(slope, state, theta, lr)
    return torch.add(theta, delta, out=into), state, buffers, loss


def lend(module: nn.Module, theta: Tensor) -> dict[str, nn.Parameter]:
    """Let the module run with this row of parameters, mostly without a copy; gives them by name.

    On CPU kernels are copied, to channels-last, once, or each pass would do so for itself.
    """
    own = dict(module.named_parameters())
    for name, value in unflatten(module, theta):
        mine = own[name].requires_grad_(True)
        if value.dim() == 4 and not value.is_cuda:
            if not mine.is_contiguous(memory_format=torch.channels_last):
                mine.data = torch.empty_like(value, memory_format=torch.channels_last)
            mine.data.copy_(value)
        else:
            mine.data = value
    return own


def eager_loss(learner: Learner, own: dict[str, Any], buffers: Buffers, x: Tensor, y: Tensor) -> tuple[Tensor, Buffers]:
    """The training loss by plain autograd, the module having been lent its parameters; and buffers afterwards."""
    if x.dim() == 4 and not x.is_cuda:
        x = channels_last(x)
    if buffers or learner.compute is not None:
        return _loss(own, learner, buffers, x, y)
    return learner.loss(learner.training(x), y), {}


def eager_step(learner: Learner, tapes: list[Tape] | None = None) -> Step:
    """The same step by plain autograd, for loops, where torch.func costs as much again as a small model.

    The learner must be a twin of its own: its modules are lent the parameters. If its layers are wired to a reel, what
    they note is added to `tapes`.
    """
    reel = getattr(learner.training, "reel", Reel())
    sizes = [p.numel() for p in learner.training.parameters()]
    row = flatten(learner.training)  # fresh memory costs more than what fills it

    def slopes(theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor, Buffers]:
        own = lend(learner.training, theta)
        reel.start()
        with torch.enable_grad():
            loss, after = eager_loss(learner, own, buffers, x, y)
            noted = reel.stop()
            found = torch.autograd.grad(loss, [*own.values(), *noted.outputs], materialize_grads=True)
        if tapes is not None:
            tapes.append(tuple(zip([x.detach() for x in noted.inputs], found[len(own) :], strict=True)))
        return list(found[: len(own)]), loss.detach(), {name: b.detach() for name, b in after.items()}

    def step(
        theta: Tensor, state: State, buffers: Buffers, x: Tensor, y: Tensor, lr: Tensor, into: Tensor | None
    ) -> tuple[Tensor, State, Buffers, Tensor]:
        pieces, loss, buffers = slopes(theta, buffers, x, y)
        descend = learner.optimizer.descend
        if descend is None:
            slope = torch.cat([p.reshape(-1) for p in pieces], out=row)
            delta, state = learner.optimizer.update(slope, state, theta, lr)
            return torch.add(theta, delta, out=into), state, buffers, loss
        into = torch.empty_like(theta) if into is None else into
        for slope, old, new in zip(pieces, torch.split(theta, sizes), torch.split(into, sizes), strict=True):
            descend(slope, old.view(slope.shape), lr, new.view(slope.shape))
        return into, state, buffers, loss

    return step


def channels_last(images: Tensor) -> Tensor:
    """Twice as fast for convolutions and pooling on CPU."""
    return images.contiguous(memory_format=torch.channels_last)


def local_steps(
    learner: Learner,
    mine: Participants,
    x: Float[Tensor, "steps batch ..."] | Tensor,
    y: Tensor,
    lr: Float[Tensor, ""],
    conduct: Conduct = (),
    *,
    step: Step | None = None,
    into: Tensor | None = None,
) -> tuple[Participants, Float[Tensor, ""]]:
    """One participant's local work in a round: θ^{t+½} = O(θ^t, z), one optimizer step for each of its batches.

    `conduct` is how much of it was really done and sent: θ^{t+½} = θ^t + taken · factor · Δ, and `taken` of the change
    of the optimizer's state. (1, 1) is the honest step, bit for bit; taken = 0 skips it, which is how the influence of
    an update is defined. `step` is another way to make a step; `into` receives θ^{t+½}.
    """
    theta, state, buffers = mine
    step = partial(pure_step, learner) if step is None else step
    losses = []
    for i in range(x.shape[0]):
        last = i == x.shape[0] - 1
        room = into if last and not conduct else None
        theta, state, buffers, loss = step(theta, state, buffers, x[i], y[i], lr, room)
        losses.append(loss)
    done = Participants(theta, state, buffers)
    return (_conducted(mine, done, conduct, into) if conduct else done), torch.stack(losses).mean()


def _conducted(mine: Participants, done: Participants, conduct: Conduct, into: Tensor | None) -> Participants:
    taken, factor = conduct
    sent = mine.theta + (taken * factor).to(mine.theta.dtype) * (done.theta - mine.theta)
    sent = torch.where(taken * factor == 1, done.theta, sent)
    state = {name: torch.lerp(mine.state[name], value, taken.to(value.dtype)) for name, value in done.state.items()}
    buffers = {name: torch.where(taken > 0, value, mine.buffers[name]) for name, value in done.buffers.items()}
    return Participants(sent if into is None else into.copy_(sent), state, buffers)


def score(
    learner: Learner, mine: Participants, x: Tensor, y: Tensor, measures: tuple[Callable[[Tensor, Tensor], Tensor], ...]
) -> tuple[Tensor, ...]:
    """Each measure of one participant's outputs on (x, y), in evaluation mode."""
    tensors = {**dict(unflatten(learner.evaluating, mine.theta)), **mine.buffers}
    output = forward(learner.evaluating, tensors, x, learner.compute)
    return tuple(measure(output, y) for measure in measures)
