"""torch.optim optimizers and the models they train, read as pure functions and flat rows."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn

from cascadice import optimizers
from cascadice.engine.learner import Participants, flatten
from cascadice.optimizers import Optimizer, State


def _sgd(momentum: float, nesterov: bool, weight_decay: float) -> Optimizer:
    return optimizers.momentum(momentum, weight_decay, nesterov) if momentum else optimizers.sgd(weight_decay)


# for each kind: its step as a pure function of its options, and the options that this function does not know
KINDS: dict[type, tuple[Callable[..., Optimizer], tuple[str, ...]]] = {
    torch.optim.SGD: (_sgd, ("dampening", "maximize")),
    torch.optim.Adam: (optimizers.adam, ("amsgrad", "maximize", "decoupled_weight_decay")),
    torch.optim.AdamW: (optimizers.adamw, ("amsgrad", "maximize")),
}
TORCH_NAMES = {"momentum": "momentum_buffer", "m": "exp_avg", "v": "exp_avg_sq", "count": "step"}  # of our state


class Settings(NamedTuple):
    """What decides an optimizer's step: its kind and options, which must not change, and the learning rate."""

    kind: type
    options: dict[str, Any]
    lr: float


def settings(optimizer: torch.optim.Optimizer) -> Settings:
    """The settings of a torch.optim optimizer as they are now; subclasses may step as they like, and are refused."""
    kind = type(optimizer)
    if kind not in KINDS:
        known = ", ".join(f"torch.optim.{name.__name__}" for name in KINDS)
        raise TypeError(f"optimizers must be one of {known}, whose steps can be replayed; found {kind.__name__}.")
    make, unknown = KINDS[kind]
    names = signature(make).parameters
    groups = [
        Settings(kind, {n: _plain(group[n]) for n in names}, float(group["lr"])) for group in optimizer.param_groups
    ]
    if different := [group for group in groups if group != groups[0]]:
        both = f"{_text(groups[0])} and {_text(different[0])}"
        raise ValueError(f"all parameter groups of an optimizer must have the same settings; found {both}.")
    for option in unknown:
        if any(group.get(option) for group in optimizer.param_groups):
            raise ValueError(f"{kind.__name__} with {option} is not known here; leave {option} out.")
    return groups[0]


def _plain(value: Any) -> Any:
    """As floats: torch takes integers and tensors too."""
    if isinstance(value, bool):
        return value
    return tuple(map(float, value)) if isinstance(value, Sequence) else float(value)


def _text(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in {"lr": settings.lr, **settings.options}.items())


def pure_version(settings: Settings) -> Optimizer:
    """The pure step that these settings describe."""
    return KINDS[settings.kind][0](**settings.options)


def carried(model: nn.Module, optimizer: torch.optim.Optimizer, pure: Optimizer) -> Participants:
    """What one participant carries, copied: its row of parameters, its optimizer's state in our names, its buffers."""
    theta = flatten(model)
    state: State = {}
    for name, blank in pure.init(theta).items():
        values = [optimizer.state.get(parameter, {}).get(TORCH_NAMES[name]) for parameter in model.parameters()]
        # torch counts steps for each parameter; one that never had a gradient is behind, and has nothing to unbias
        if blank.dim() == 0:
            state[name] = blank + max(float(value or 0) for value in values)
        else:  # torch makes state at the first step, and until then it is zero
            pairs = zip(model.parameters(), values, strict=True)
            state[name] = torch.cat([(torch.zeros_like(p) if v is None else v).detach().reshape(-1) for p, v in pairs])
    return Participants(theta, state, {name: buffer.detach().clone() for name, buffer in model.named_buffers()})


def check_alike(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """There must be an optimizer for each model, all of one kind and of one layout, each for exactly its own model."""
    if not models or len(models) != len(optimizers):
        counts = f"{len(models)} models and {len(optimizers)} optimizers"
        raise ValueError(f"each participant must have a model and an optimizer; found {counts}.")
    first, layout = settings(optimizers[0]), _layout(models[0])
    owners: dict[int, int] = {}
    for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        if _layout(model) != layout:
            raise ValueError(f"all models must be alike, in names, shapes, dtypes and device; {k} is not like 0.")
        if (other := settings(optimizer))[:2] != first[:2]:
            both = f"0 has {first.kind.__name__} with {_text(first)}, {k} {other.kind.__name__} with {_text(other)}"
            raise ValueError(f"all optimizers must be alike, but for the learning rate; {both}.")
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if stepped != {id(p) for p in model.parameters()}:
            raise ValueError(f"optimizer {k} must step all parameters of model {k}, and no others; it does not.")
        if (owner := owners.setdefault(min(stepped), k)) != k:
            raise ValueError(f"each participant must have parameters of its own; {owner} and {k} share theirs.")


def _layout(model: nn.Module) -> list[tuple[Any, ...]]:
    named = (*model.named_parameters(), *model.named_buffers())
    return [(name, value.shape, value.dtype, value.device) for name, value in named]
