"""A tape of a training pass: what went into each layer, and what its output was worth. Enough to score every sample.

A layer that is linear in its parameters answers a change A of them with its own output under the parameters A, so the
derivative of a sample's loss along A is, summed over layers,

    ⟨∂ℓ_i/∂output_i, layer(input_i; A)⟩

one forward pass of the layers, whatever A is; the gradient of a sample is never formed. Differentiated once more, their
sum gives the Hessian times A, and the gradient itself, which that would otherwise cost, is not needed.
"""

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from cascadice.engine.fast.convolution import TwiceDifferentiated
from cascadice.engine.fast.hooks import Tape, wire
from cascadice.engine.learner import (
    Buffers,
    Learner,
    Participants,
    eager_loss,
    forward,
    gradient,
    lend,
    objective,
    unflatten,
)
from cascadice.optimizers import State

Along = Callable[..., tuple[Tensor | None, Tensor | None]]
"""(learner, theta, buffers, x, y, direction, score, bend) -> slopes of the samples along it, H · direction."""


class Layers(NamedTuple):
    """A learner whose layers write a tape; the calls they make for a batch, and what these give."""

    learner: Learner
    names: tuple[str, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]


def layers(learner: Learner, x: Tensor, buffers: Buffers) -> Layers | None:
    """The layers as they are called for one participant's batch; None where parameters lie outside known layers."""
    twin = learner.twin()
    module: Any = twin.training
    if not wire(module):
        return None
    module.reel.start()
    with torch.no_grad():
        parameters = {name: p.detach() for name, p in module.named_parameters()}
        forward(module, {**parameters, **{name: b.clone() for name, b in buffers.items()}}, x, learner.compute)
    noted = module.reel.stop()
    return Layers(twin, tuple(noted.names), tuple((out.shape, out.dtype) for out in noted.outputs))


_known: MutableMapping[Learner, dict[tuple[str, int], Layers | None]] = WeakKeyDictionary()


def layered(
    learner: Learner, strategy: str, size: int, example: Callable[[], tuple[Participants, Tensor, Tensor]]
) -> Layers | None:
    """The learner's layers for batches of a size, or None where scores by layers are not what they should be.

    They are compared with scores that need no knowledge of layers, once, on an example (participant, x, y): a model may
    use the parameters of a layer without calling it, or change an output in place.
    """
    known = _known.setdefault(learner, {})
    if (strategy, size) not in known:
        known[strategy, size] = _verified(learner, strategy, *example())
    return known[strategy, size]


def _verified(learner: Learner, strategy: str, mine: Participants, x: Tensor, y: Tensor) -> Layers | None:
    """In double precision: in single, a model with kinks may be on either side of one."""
    x64 = x.double() if x.is_floating_point() else x
    buffers = {name: b.double() if b.is_floating_point() else b for name, b in mine.buffers.items()}
    numbers = torch.arange(learner.size, device=x.device, dtype=torch.float64)
    # not at the initial parameters: of those many are 0, and hide what is below them
    arguments = (mine.theta.double() + 0.03 * numbers.cos(), buffers, x64, y, numbers.sin(), True)
    try:
        exact = replace(learner.twin(), compute=None)
        exact.training.double()
        wired = layers(exact, x64, buffers)
        if wired is None:
            return None
        with torch.no_grad(), twice_differentiable():
            way = eager_along if strategy == "loop" else pure_along
            here, bent = way(wired, wired.learner.twin(), *arguments, True)
            again, _ = way(wired, wired.learner.twin(), *arguments, False)
            there, expected = generic_along(exact, *arguments, True)
        alike = all(_near(*pair) for pair in ((here, there), (again, there), (bent, expected)))
        return layers(learner, x, mine.buffers) if alike else None
    except Exception:  # whatever a model does to its layers, there is another way
        return None


def _near(here: Tensor | None, there: Tensor | None) -> bool:
    assert here is not None
    assert there is not None
    return here.shape == there.shape and bool(((here - there).abs().max() <= 1e-8 * there.abs().max()).item())


def twice_differentiable() -> AbstractContextManager[None]:
    """Fused attention has no second derivative; torch's plain one has."""
    return sdpa_kernel(SDPBackend.MATH)


def read(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> Float[Tensor, " batch"]:
    """The derivative of each sample's part of the loss along a direction. Cost: a forward pass of the layers.

    `learner` is the layers' own, or a twin of it.
    """
    return _scores(answers(layers, learner, tape, direction), [slope for _, slope in tape])


def answers(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> list[Tensor]:
    """What each layer gives for its input under the direction as its parameters."""
    module: Any = learner.training
    along = dict(unflatten(module, direction))
    known = {id(p): name for name, p in module.named_parameters()}
    found = []
    for name, (given, slope) in zip(layers.names, tape, strict=True):
        layer = module.get_submodule(name)
        change = {own: along[known[id(p)]].to(slope.dtype) for own, p in layer.named_parameters()}
        found.append(functional_call(layer, change, (given,)))
    return found


def eager_read(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> Float[Tensor, " batch"]:
    """The same, for loops: layers are lent the direction, so what they computed before cannot be differentiated now."""
    if learner.compute is not None:
        return read(layers, learner, tape, direction)
    module: Any = learner.training
    lend(module, direction)
    found = [module.get_submodule(name)(given) for name, (given, _) in zip(layers.names, tape, strict=True)]
    return _scores(found, [slope for _, slope in tape])


def _scores(answers: Sequence[Tensor], slopes: Sequence[Tensor]) -> Float[Tensor, " batch"]:
    """⟨slope_i, answer_i⟩ of each sample, summed over layers."""
    each = [
        (a * b).sum(tuple(range(1, a.dim())), dtype=torch.promote_types(a.dtype, torch.float32))
        for a, b in zip(answers, slopes, strict=True)
    ]
    return torch.stack(each).sum(0) if len(each) > 1 else each[0]


def pure_tape(layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor) -> Tape:
    """The tape of a pass by torch.func: can be vmapped, compiled and differentiated. Cost: a pass less its gradient."""
    slopes, (inputs, _, _) = grad(partial(_probed, learner), has_aux=True)(_probes(layers, x), theta, buffers, x, y)
    return tuple(zip(inputs, slopes, strict=True))


def _probes(layers: Layers, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape, dtype=dtype, device=x.device) for shape, dtype in layers.shapes)


def _probed(learner: Learner, probes: Any, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor) -> Any:
    module: Any = learner.training
    module.reel.start(probes)
    loss, after = objective(theta, learner, buffers, x, y)
    return loss, (tuple(module.reel.stop().inputs), loss, after)


def taped_step(
    layers: Layers, tapes: list[Tape], theta: Tensor, state: State, buffers: Buffers, x: Tensor, y: Tensor, lr: Tensor,
    into: Tensor | None,
) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
    """`pure_step`, with what its pass left on tape added to `tapes`."""
    both = grad(partial(_probed, layers.learner), argnums=(0, 1), has_aux=True)
    (slopes, slope), (inputs, loss, buffers) = both(_probes(layers, x), theta, buffers, x, y)
    tapes.append(tuple(zip(inputs, slopes, strict=True)))
    delta, state = layers.learner.optimizer.update(slope, state, theta, lr)
    return torch.add(theta, delta, out=into), state, buffers, loss


def pure_along(
    layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor, direction: Tensor,
    score: bool, bend: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """The slope of each sample's part of the loss along a direction and, to `bend` it, H · direction; by torch.func."""

    def total(theta: Tensor) -> tuple[Tensor, Tensor]:
        scores = read(layers, learner, pure_tape(layers, learner, theta, buffers, x, y), direction)
        return scores.sum(), scores

    if not bend:
        return total(theta)[1], None
    bent, scores = grad(total, has_aux=True)(theta)
    return scores, bent


def eager_along(
    layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor, direction: Tensor,
    score: bool, bend: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """The same by plain autograd, for loops; `learner` is a twin of the layers' own, and is lent the parameters."""
    module: Any = learner.training
    own = lend(module, theta)
    module.requires_grad_(bend)
    module.reel.start()
    with torch.enable_grad():
        with TwiceDifferentiated() if bend and learner.compute is None else nullcontext():
            loss, _ = eager_loss(learner, own, buffers, x, y)
        noted = module.reel.stop()
        slopes = torch.autograd.grad(loss, noted.outputs, create_graph=bend)
        tape = tuple(zip(noted.inputs, slopes, strict=True))
        if not bend:
            with torch.no_grad():
                return eager_read(layers, learner, tape, direction), None
        found = answers(layers, learner, tape, direction)
        bent = _bent(found, slopes, list(own.values()))
    with torch.no_grad():
        return _scores(found, slopes) if score else None, bent


def _bent(answers: Sequence[Tensor], slopes: Sequence[Tensor], own: list[nn.Parameter]) -> Float[Tensor, " d"]:
    """The gradient of Σ ⟨slope, answer⟩: each is the other's, and no product of the two need be formed."""
    pairs = [(a, b.detach()) for a, b in (*zip(answers, slopes, strict=True), *zip(slopes, answers, strict=True))]
    outputs, by = zip(*((output, by) for output, by in pairs if output.requires_grad), strict=True)
    pieces = torch.autograd.grad(outputs, own, by, materialize_grads=True)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def generic_along(
    learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor, direction: Tensor, score: bool, bend: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The same for any model: backwards twice, by the parameters, and by the weights w = 1 of the samples.

    ∂/∂θ ⟨direction, ∇L⟩ = H · direction        ∂/∂w_i ⟨direction, ∇ Σ_i w_i ℓ_i / B⟩ = slope of i's part
    """
    scores = bent = None
    if score:
        scores = grad(partial(_weighted, learner, theta, buffers, x, y, direction))(theta.new_ones(len(y)))
    if bend:
        bent = grad(partial(_slope_along, learner, buffers, x, y, direction))(theta)
    return scores, bent


def _weighted(
    learner: Learner, theta: Tensor, buffers: Buffers, x: Tensor, y: Tensor, direction: Tensor, weights: Tensor
) -> Tensor:
    _, back = vjp(partial(losses, learner, buffers, x, y), theta)
    slope: Tensor = back(weights / len(y))[0]
    return (slope * direction).sum()


def _slope_along(learner: Learner, buffers: Buffers, x: Tensor, y: Tensor, direction: Tensor, theta: Tensor) -> Tensor:
    return (gradient(learner, theta, buffers, x, y)[0] * direction).sum()


def losses(learner: Learner, buffers: Buffers, x: Tensor, y: Tensor, theta: Tensor) -> Float[Tensor, " batch"]:
    """The loss of each sample of a batch."""
    tensors = {**dict(unflatten(learner.training, theta)), **{name: b.clone() for name, b in buffers.items()}}
    outputs = forward(learner.training, tensors, x, learner.compute)
    found: Tensor = vmap(lambda output, target: learner.loss(output[None], target[None]))(outputs, y)
    return found
