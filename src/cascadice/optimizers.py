"""Optimizers as pure functions on flat parameters, so that a step can be replayed, vmapped and differentiated.

`theta` is one participant's parameters `[d]` or everyone's `[n, d]`; `lr` has one entry for each row of `theta`.
`theta + delta` is the new theta. Inputs are never modified, and rows never mix.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from math import log
from typing import Any, NamedTuple, ParamSpec

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.names import lookup

State = dict[str, Tensor]
Rows = Float[Tensor, "*rows d"]
PerRow = Float[Tensor, "*rows"]
Options = ParamSpec("Options")


class Optimizer(NamedTuple):
    """An optimizer: two pure functions, and optional hints that make it faster.

    Example:
        >>> def update(gradient, state, theta, lr):
        ...     return -lr[..., None] * gradient / gradient.norm(dim=-1, keepdim=True), state
        >>> normalised = Optimizer(init=lambda theta: {}, update=update)
    """

    init: Callable[[Tensor], State]
    """theta -> state"""
    update: Callable[[Tensor, State, Tensor, Tensor], tuple[Tensor, State]]
    """(gradient, state, theta, lr) -> (delta, state)"""
    descend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    """(gradient, theta, lr, out) -> out: the same step of one participant, fused, on any slice of its parameters.

    Only for optimizers that keep no state, are linear, and treat every parameter alike and by itself."""
    linear: bool = False
    """Whether `update` is linear in the gradient: its derivative is then the same at every gradient."""
    size: int | None = None
    """The number of parameters, if they are not all treated alike."""
    settings: tuple[tuple[str, Any], ...] = ()
    """What builds it again: its name as "optimizer", its options, and "clip"; empty for one of your own."""

    @property
    def name(self) -> str:
        """Its name in `OPTIMIZERS`, or that of the function that defines its update."""
        built = dict(self.settings).get("optimizer")
        return str(built or getattr(self.update, "__qualname__", self.update)).split(".")[0]


def _named(make: Callable[Options, Optimizer]) -> Callable[Options, Optimizer]:
    """Store in the optimizers that `make` returns how they were made."""

    @wraps(make)
    def named(*given: Options.args, **options: Options.kwargs) -> Optimizer:
        bound = signature(make).bind(*given, **options)
        bound.apply_defaults()
        # hashable, because optimizers are keys of caches
        used = ((name, tuple(value) if isinstance(value, list) else value) for name, value in bound.arguments.items())
        return make(*given, **options)._replace(settings=(("optimizer", make.__name__), *used))

    return named


@_named
def sgd(weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent: delta = −lr (g + weight_decay θ). It keeps no state.

    Args:
        weight_decay: Added to the gradient, times θ.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> theta, gradient = torch.tensor([1.0]), torch.tensor([2.0])
        >>> sgd(weight_decay=0.5).update(gradient, {}, theta, torch.tensor(0.1))[0]
        tensor([-0.2500])
    """
    _require_at_least_zero(weight_decay=weight_decay)

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        return _scale(_decayed(gradient, theta, weight_decay), -lr), state

    def descend(gradient: Tensor, theta: Tensor, lr: Float[Tensor, ""], out: Tensor) -> Tensor:
        gradient = _decayed(gradient, theta, weight_decay)
        return torch.addcmul(theta, gradient, lr.to(theta.dtype), value=-1, out=out)

    return Optimizer(lambda theta: {}, update, descend, linear=True)


@_named
def momentum(beta: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Heavy-ball momentum: delta = −lr b with b ← beta b + g + weight_decay θ, as torch.optim.SGD without dampening.

    Args:
        beta: Decay of the momentum b.
        weight_decay: Added to the gradient, times θ.
        nesterov: Whether to look ahead: delta = −lr (g + beta b).

    Returns:
        The optimizer.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> sorted(momentum(0.9).init(torch.zeros(2)))
        ['momentum']
    """
    _require_at_least_zero(weight_decay=weight_decay)
    _require_decay_rates(beta)

    def init(theta: Rows) -> State:
        return {"momentum": torch.zeros_like(theta)}

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        gradient = _decayed(gradient, theta, weight_decay)
        buffer = torch.add(gradient, state["momentum"], alpha=beta)
        direction = torch.add(gradient, buffer, alpha=beta) if nesterov else buffer
        return _scale(direction, -lr), {"momentum": buffer}

    return Optimizer(init, update, linear=True)


@_named
def nesterov(beta: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """Nesterov momentum: delta = −lr (g + beta b) with b ← beta b + g.

    Args:
        beta: Decay of the momentum b.
        weight_decay: Added to the gradient, times θ.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> sorted(nesterov(0.9).init(torch.zeros(2)))
        ['momentum']
    """
    return momentum(beta, weight_decay, nesterov=True)


@_named
def adam(betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    """Adam (Kingma & Ba 2015), as torch.optim.Adam: the weight decay is added to the gradient.

        delta = −lr m̂ / (√v̂ + eps),   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   x̂ = x / (1 − βᶜᵒᵘⁿᵗ)

    The step count is a float, one for each participant, so that states can be interpolated and differentiated.

    Args:
        betas: Decay of m and of v.
        eps: Added to √v̂.
        weight_decay: Added to the gradient, times θ.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> sorted(adam(betas=(0.9, 0.99)).init(torch.zeros(2)))
        ['count', 'm', 'v']
    """
    return _adam_step(betas, eps, weight_decay)


def amsgrad(betas: tuple[float, float], eps: float, weight_decay: float) -> Optimizer:
    """Adam with the largest v so far (Reddi et al. 2018), as torch.optim.Adam with amsgrad.

    Args:
        betas: As in `adam`.
        eps: As in `adam`.
        weight_decay: As in `adam`.

    Returns:
        The optimizer.

    Example:
        >>> sorted(amsgrad((0.9, 0.999), 1e-8, 0.0).init(torch.zeros(2, 3)))
        ['count', 'm', 'v', 'v_max']
    """
    return _adam_step(betas, eps, weight_decay, amsgrad=True)


def _adam_step(betas: tuple[float, float], eps: float, weight_decay: float, amsgrad: bool = False) -> Optimizer:
    _require_at_least_zero(weight_decay=weight_decay, eps=eps)
    _require_decay_rates(*betas)
    beta1, beta2 = betas

    def init(theta: Rows) -> State:
        # in bfloat16 a count would stop at 256
        count = torch.zeros_like(theta[..., 0], dtype=torch.promote_types(theta.dtype, torch.float32))
        greatest = {"v_max": torch.zeros_like(theta)} if amsgrad else {}
        return {"m": torch.zeros_like(theta), "v": torch.zeros_like(theta), **greatest, "count": count}

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        gradient = _decayed(gradient, theta, weight_decay)
        count = state["count"] + 1
        m = torch.lerp(state["m"], gradient, 1 - beta1)
        v = torch.addcmul(beta2 * state["v"], gradient, gradient, value=1 - beta2)
        greatest = {"v_max": torch.maximum(state["v_max"], v)} if amsgrad else {}
        unbias = _bias(beta2, count).sqrt()
        # √ has no derivative at 0, the v of coordinates that never had a gradient: 0 · ∞ would make tangents NaN
        root = (greatest.get("v_max", v) + torch.finfo(v.dtype).tiny).sqrt()
        delta = _scale(m / (root + (eps * _column(unbias, unbias)).to(root.dtype)), -lr * unbias / _bias(beta1, count))
        return delta, {"m": m, "v": v, **greatest, "count": count}

    return Optimizer(init, update)


@_named
def adamw(betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019): Adam's delta − lr weight_decay θ.

    Args:
        betas: Decay of m and of v.
        eps: Added to √v̂.
        weight_decay: Subtracted from θ directly, times lr and θ.

    Returns:
        The optimizer.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> sorted(adamw(weight_decay=0.1).init(torch.zeros(2)))
        ['count', 'm', 'v']
    """
    return decoupled(_adam_step(betas, eps, 0.0), weight_decay)


def decoupled(undecayed: Optimizer, weight_decay: float) -> Optimizer:
    """Add decoupled weight decay to an optimizer: delta − lr weight_decay θ.

    Args:
        undecayed: The optimizer.
        weight_decay: The rate of decay.

    Returns:
        The optimizer with decay.

    Example:
        >>> optimizer = decoupled(momentum(), weight_decay=0.01)
    """
    _require_at_least_zero(weight_decay=weight_decay)

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        delta, state = undecayed.update(gradient, state, theta, lr)
        return torch.addcmul(delta, theta, _column(lr, theta), value=-weight_decay), state

    return Optimizer(undecayed.init, update)


def ascending(optimizer: Optimizer) -> Optimizer:
    """Step up the gradient, as torch.optim with maximize; weight decay still pulls towards 0.

    Args:
        optimizer: The optimizer that steps down.

    Returns:
        The same optimizer, stepping up.

    Example:
        >>> ascending(sgd()).update(torch.ones(1, 1), {}, torch.zeros(1, 1), torch.tensor([0.5]))[0]
        tensor([[0.5000]])
    """

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        return optimizer.update(-gradient, state, theta, lr)

    return Optimizer(optimizer.init, update, linear=optimizer.linear)


def clip(optimizer: Optimizer, max_norm: float) -> Optimizer:
    """Scale every participant's gradient to a norm of at most `max_norm` before the optimizer's step.

        g ← g · min(1, max_norm / (‖g‖ + 1e-6))      as torch.nn.utils.clip_grad_norm_

    Args:
        optimizer: The optimizer.
        max_norm: The largest norm of a gradient.

    Returns:
        The optimizer with clipping.

    Raises:
        ValueError: If `max_norm` is not positive.

    Example:
        >>> clipped = clip(build("adam"), max_norm=1.0)
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive; found {max_norm}. Leave clipping out to have none.")

    def update(gradient: Rows, state: State, theta: Rows, lr: PerRow) -> tuple[Rows, State]:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1)
        return optimizer.update(gradient * factor, state, theta, lr)

    settings = dict(optimizer.settings)
    known = settings and "clip" not in settings
    clipped = (*settings.items(), ("clip", float(max_norm))) if known else ()
    return Optimizer(optimizer.init, update, size=optimizer.size, settings=clipped)


OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], str]] = {
    "sgd": (sgd, "stochastic gradient descent"),
    "momentum": (momentum, "SGD with heavy-ball momentum"),
    "nesterov": (nesterov, "SGD with Nesterov momentum"),
    "adam": (adam, "Adam; weight decay added to the gradient"),
    "adamw": (adamw, "Adam with decoupled weight decay"),
}


def build(name: str, **options: Any) -> Optimizer:
    """Make an optimizer by name.

    Args:
        name: One of OPTIMIZERS.
        **options: Keyword arguments of the function listed there.

    Returns:
        The optimizer.

    Raises:
        ValueError: If the name or an option is unknown, or out of range.

    Example:
        >>> optimizer = build("momentum", beta=0.95)
    """
    builder, _ = lookup(OPTIMIZERS, name, "optimizer")
    for option in options:
        lookup(signature(builder).parameters, option, f"option of {name}")
    return builder(**options)


def resolve(optimizer: Any) -> Optimizer:
    """Make an optimizer from anything that `network(optimizer=…)` accepts.

    Args:
        optimizer: A name, which gets its default options, or an Optimizer.

    Returns:
        The optimizer.

    Raises:
        TypeError: For a class of torch.optim, which cannot be replayed or differentiated; the message says what to use.

    Example:
        >>> resolve("sgd").linear
        True
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        return build(optimizer)
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    remedy = f"Use one of {', '.join(OPTIMIZERS)}, or optimizers.build(name, …)."
    if issubclass(optimizer if isinstance(optimizer, type) else type(optimizer), torch.optim.Optimizer):
        remedy = "Write its step as a pure function: optimizers.Optimizer(init, update)."
        if (same := name.lower()) in OPTIMIZERS:
            remedy = f"Use {same!r}, or optimizers.build({same!r}, …) to set options."
        name = f"torch.optim.{name}"
    raise TypeError(f"optimizer must be a name or an optimizers.Optimizer; found {name}. {remedy}")


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 − beta^count, without the cancellation that costs float32 four digits at beta = 0.999."""
    # as a column, because forward mode turns a float32 scalar times a number into float64
    return -torch.expm1((_column(count, count) * log(max(beta, 1e-300)))[..., 0])


def _decayed(gradient: Tensor, theta: Tensor, weight_decay: float) -> Tensor:
    return torch.add(gradient, theta, alpha=weight_decay) if weight_decay else gradient


def _scale(rows: Tensor, factor: Tensor) -> Tensor:
    return rows * _column(factor, rows)


def _column(per_row: Tensor, like: Tensor) -> Tensor:
    """Broadcastable over the row, and of its dtype: float32 rates must not promote bfloat16 parameters."""
    return per_row[..., None].to(like.dtype)


def _require_at_least_zero(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0; found {value}.")
        if value > (most := torch.finfo(torch.float32).max):
            raise ValueError(f"{name} must be at most {most:.3g}, the largest float32; found {value}.")


def _require_decay_rates(*betas: float) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"beta must lie in [0, 1); found {', '.join(map(str, betas))}.")
