"""Scores of samples, and Hessian-vector products, from a tape: each layer's input and the gradient of its output.

A layer that is linear in its parameters, called with a change A of them as its parameters, returns the change of its
output. So the derivative of a sample's loss along A is, summed over layers,

    ⟨∂ℓ_i/∂output_i, layer(input_i; A)⟩

one forward pass of the layers, whatever A is; no gradient of a single sample is formed. Differentiating the sum over
samples once more gives the Hessian-vector product H A, without the gradient itself.

Chosen when all trainable parameters are in such layers and `verified_layers` finds the scores right; all other models
use `generic_directional`, which is slower (docs/performance.md).

Trap: a model may use a layer's parameters without calling the layer, or change an output in place. That cannot be seen
from outside, so the scores are compared once, in float64, with those of `generic_directional`.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad

from cascadice.data.inputs import Inputs, in_precision
from cascadice.engine.dropout import Masks
from cascadice.engine.fast.double_backward import FastConvDoubleBackward, twice_differentiable
from cascadice.engine.fast.eager import assign_parameters, eager_loss
from cascadice.engine.fast.hooks import Tape, hook_layers
from cascadice.engine.learner import (
    Alphas,
    Buffers,
    Learner,
    broadcast,
    forward,
    gradient,
    objective,
    trainable,
    unflatten,
)  # fmt: skip
from cascadice.optimizers import State

Directional = Callable[..., tuple[Tensor | None, Tensor | None]]
"""(learner, theta, buffers, x, y, samples, direction, score, hvp) -> the derivative of each sample's part of the loss
along the direction, and H · direction; either may be None unless `score` or `hvp` asks for it."""


class Layers(NamedTuple):
    """A learner whose layers are hooked, the names of the layers a batch calls, and the shapes of their outputs."""

    learner: Learner
    names: tuple[str, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]


def layers(learner: Learner, x: Inputs, buffers: Buffers) -> Layers | None:
    """The layers that one participant's batch calls, in order; None if some parameter is outside the known layers."""
    twin = learner.twin()
    module: Any = twin.training
    if not hook_layers(module):
        return None
    module.calls.start()
    with torch.no_grad():
        parameters = {name: p.detach() for name, p in trainable(module).items()}
        forward(module, {**parameters, **{name: b.clone() for name, b in buffers.items()}}, x, learner.compute)
    made = module.calls.stop()
    shapes = tuple((call.output.shape, call.output.dtype) for call in made)
    return Layers(twin, tuple(call.name for call in made), shapes)


_known: MutableMapping[Learner, dict[tuple[str, int], Layers | None]] = WeakKeyDictionary()


def verified_layers(
    learner: Learner, strategy: str, size: int, example: Callable[[], tuple[Tensor, Buffers, Inputs, Tensor]]
) -> Layers | None:
    """The learner's layers for batches of this size, or None if scores by layers are wrong on the example.

    The example is (theta, buffers, x, y); it is tried once per learner, strategy and size.
    """
    if learner.autocast is not None:  # a layer called by itself would not run in the precision of its pass
        return None
    known = _known.setdefault(learner, {})
    if (strategy, size) not in known:
        known[strategy, size] = _verify(learner, strategy, *example())
    return known[strategy, size]


def _verify(learner: Learner, strategy: str, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor) -> Layers | None:
    """Compare in float64: in float32, a model with kinks may land on the other side of one."""
    x64, buffers64 = in_precision(x, torch.float64), in_precision(buffers, torch.float64)
    numbers = torch.arange(learner.size, device=y.device, dtype=torch.float64)
    # not at the initial parameters: many of those are 0, which hides errors in the layers below
    arguments = (theta.double() + 0.03 * numbers.cos(), buffers64, x64, y, (), numbers.sin(), True)
    try:
        exact = replace(learner, training=deepcopy(learner.training).double(), compute=None, masks=Masks())
        hooked = layers(exact, x64, buffers64)
        if hooked is None:
            return None
        with torch.no_grad(), twice_differentiable(), exact.masks.of(0 if learner.stochastic else None, y.device):
            directional = directional_for(strategy, hooked)
            both = directional(hooked.learner.twin(), *arguments, True)
            scores_alone = directional(hooked.learner.twin(), *arguments, False)
            expected = generic_directional(exact, *arguments, True)
        pairs = ((both[0], expected[0]), (scores_alone[0], expected[0]), (both[1], expected[1]))
        return layers(learner, x, buffers) if all(_near(*pair) for pair in pairs) else None
    except Exception:  # whatever the model does with its layers, there is the generic way
        return None


def _near(value: Any, expected: Any) -> bool:
    near = (value - expected).abs().max() <= 1e-8 * expected.abs().max()
    return value.shape == expected.shape and bool(near.item())


def read(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> Float[Tensor, " batch"]:
    """The derivative of each sample's part of the loss along a direction. Cost: a forward pass of the layers.

    `learner` is the layers' own, or a twin of it.
    """
    return _scores(layer_tangents(layers, learner, tape, direction), tape)


def layer_tangents(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> list[Tensor]:
    """The output of each layer for its input, with the direction as its parameters."""
    module: Any = learner.training
    along = dict(unflatten(module, direction))
    names = {id(p): name for name, p in trainable(module).items()}
    outputs = []
    for name, (given, by_output) in zip(layers.names, tape, strict=True):
        layer = module.get_submodule(name)
        change = {own: along[names[id(p)]].to(by_output.dtype) for own, p in layer.named_parameters()}
        outputs.append(functional_call(layer, change, (given,)))
    return outputs


def eager_read(layers: Layers, learner: Learner, tape: Tape, direction: Float[Tensor, " d"]) -> Float[Tensor, " batch"]:
    """`read` for loops: assigns the direction to the layers, so earlier outputs of theirs cannot be differentiated."""
    if learner.compute is not None:
        return read(layers, learner, tape, direction)
    module: Any = learner.training
    assign_parameters(module, direction)
    calls = zip(layers.names, tape, strict=True)
    return _scores([module.get_submodule(name)(given) for name, (given, _) in calls], tape)


def _scores(tangents: Sequence[Tensor], tape: Tape) -> Float[Tensor, " batch"]:
    """⟨∂ℓ_i/∂output_i, change of output_i⟩ of each sample, summed over layers."""
    each = [
        (a * b).sum(tuple(range(1, a.dim())), dtype=torch.promote_types(a.dtype, torch.float32))
        for a, (_, b) in zip(tangents, tape, strict=True)
    ]
    return torch.stack(each).sum(0) if len(each) > 1 else each[0]


def pure_tape(
    layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas
) -> Tape:
    """The tape of a pass, by torch.func. Cost: a training pass less the gradients of parameters."""
    probes = _probes(layers, y)
    by_outputs, (inputs, _, _) = grad(partial(_probed, learner), has_aux=True)(probes, theta, buffers, x, y)
    return _weighted(tuple(zip(inputs, by_outputs, strict=True)), samples)


def _weighted(tape: Tape, samples: Alphas) -> Tape:
    """The tape with weights on samples: outputs of one sample do not depend on the others, so each term just scales."""
    return tuple((given, by * broadcast(samples[0], by)) for given, by in tape) if samples else tape


def _probes(layers: Layers, y: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape, dtype=dtype, device=y.device) for shape, dtype in layers.shapes)


def _probed(learner: Learner, probes: Any, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor) -> Any:
    module: Any = learner.training
    module.calls.start(probes)
    loss, after = objective(theta, learner, buffers, x, y)
    return loss, (tuple(call.input for call in module.calls.stop()), loss, after)


def taped_step(
    layers: Layers, tapes: list[Tape], theta: Tensor, state: State, buffers: Buffers, x: Inputs, y: Tensor, lr: Tensor,
    samples: Alphas, out: Tensor | None,
) -> tuple[Tensor, State, Buffers, Tensor]:  # fmt: skip
    """`pure_step`, with the tape of its pass added to `tapes`."""
    assert not samples
    both = grad(partial(_probed, layers.learner), argnums=(0, 1), has_aux=True)
    (by_outputs, by_theta), (inputs, loss, buffers) = both(_probes(layers, y), theta, buffers, x, y)
    tapes.append(tuple(zip(inputs, by_outputs, strict=True)))
    delta, state = layers.learner.optimizer.update(by_theta, state, theta, lr)
    return torch.add(theta, delta, out=out), state, buffers, loss


def directional_for(strategy: str, layers: Layers | None) -> Directional:
    """How scores and Hessian-vector products are computed with this strategy, and these layers if there are any."""
    if layers is None:
        return generic_directional
    return partial(eager_directional if strategy == "loop" else pure_directional, layers)


def pure_directional(
    layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas,
    direction: Tensor, score: bool, hvp: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """`Directional` by torch.func, from a tape."""

    def total(theta: Tensor) -> tuple[Tensor, Tensor]:
        scores = read(layers, learner, pure_tape(layers, learner, theta, buffers, x, y, samples), direction)
        return scores.sum(), scores

    if not hvp:
        return total(theta)[1], None
    product, scores = grad(total, has_aux=True)(theta)
    return scores, product


def eager_directional(
    layers: Layers, learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas,
    direction: Tensor, score: bool, hvp: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """`Directional` by plain autograd, from a tape, for loops; `learner` is a twin of the layers' own."""
    module: Any = learner.training
    own = assign_parameters(module, theta)
    module.calls.start()
    with torch.enable_grad():
        fast_conv = FastConvDoubleBackward() if hvp and learner.compute is None else nullcontext()
        with fast_conv, _frozen(own, not hvp):
            loss, _ = eager_loss(learner, own, buffers, x, y)
        made = module.calls.stop()
        by_outputs = torch.autograd.grad(loss, [call.output for call in made], create_graph=hvp)
        tape = _weighted(tuple(zip([call.input for call in made], by_outputs, strict=True)), samples)
        if not hvp:
            with torch.no_grad():
                return eager_read(layers, learner, tape, direction), None
        outputs = layer_tangents(layers, learner, tape, direction)
        product = _gradient_of_sum(outputs, tape, list(own.values()))
    with torch.no_grad():
        return _scores(outputs, tape) if score else None, product


@contextmanager
def _frozen(own: dict[str, nn.Parameter], frozen: bool) -> Iterator[None]:
    """Within, parameters need no gradients if `frozen`, which makes the pass shorter."""
    for parameter in own.values():
        parameter.requires_grad_(not frozen)
    try:
        yield
    finally:
        for parameter in own.values():
            parameter.requires_grad_(True)


def _gradient_of_sum(tangents: Sequence[Tensor], tape: Tape, own: list[nn.Parameter]) -> Float[Tensor, " d"]:
    """The gradient of Σ ⟨a, b⟩ over layers, without forming the products: ∂⟨a, b⟩/∂a = b and ∂⟨a, b⟩/∂b = a."""
    pairs = [(a, b) for a, (_, b) in zip(tangents, tape, strict=True)]
    both = [*pairs, *((b, a) for a, b in pairs)]
    outputs, by = zip(*((one, other.detach()) for one, other in both if one.requires_grad), strict=True)
    pieces = torch.autograd.grad(outputs, own, by, materialize_grads=True)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def generic_directional(
    learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, samples: Alphas, direction: Tensor,
    score: bool, hvp: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """`Directional` for any model: backward twice, with respect to the parameters and to the samples' weights α.

    ∂/∂θ ⟨direction, ∇L⟩ = H · direction        ∂/∂α_i ⟨direction, Σ_i α_i J_iᵀ ∂L/∂output_i⟩ = i's part
    """

    def slope(theta: Tensor, samples: Alphas) -> Tensor:
        return (gradient(learner, theta, buffers, x, y, samples)[0] * direction).sum()

    scores = product = None
    if score:
        weights = samples[0] if samples else theta.new_ones(len(y))
        scores = weights * grad(lambda weights: slope(theta, (weights,)))(weights)
    if hvp:
        product = grad(slope)(theta, samples)
    return scores, product
