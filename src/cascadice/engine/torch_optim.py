"""Read torch.optim optimizers as pure functions, and the models that they train as flat rows."""

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cascadice import optimizers
from cascadice.data.inputs import at, stacked
from cascadice.engine.learner import Participants, check_same_frozen, flatten, trainable
from cascadice.names import lookup
from cascadice.optimizers import Optimizer, State


def _sgd(momentum: float, nesterov: bool, weight_decay: float) -> Optimizer:
    return optimizers.momentum(momentum, weight_decay, nesterov) if momentum else optimizers.sgd(weight_decay)


def _adam(betas: Any, eps: float, weight_decay: float, amsgrad: bool = False) -> Optimizer:
    return (optimizers.amsgrad if amsgrad else optimizers.adam)(tuple(betas), eps, weight_decay)


def _adamw(betas: Any, eps: float, weight_decay: float, amsgrad: bool = False) -> Optimizer:
    if amsgrad:
        return optimizers.decoupled(optimizers.amsgrad(tuple(betas), eps, 0.0), weight_decay)
    return optimizers.adamw(tuple(betas), eps, weight_decay)


# our own pure step for a kind, as a function of its options; and the options that it does not support
PURE: dict[type, tuple[Callable[..., Optimizer], tuple[str, ...]]] = {
    torch.optim.SGD: (_sgd, ("dampening",)),
    torch.optim.Adam: (_adam, ("decoupled_weight_decay",)),
    torch.optim.AdamW: (_adamw, ()),
}
# kinds for which torch's own step is differentiated
OTHERS: tuple[type, ...] = (
    torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
    torch.optim.RMSprop,
)  # fmt: skip
TORCH_NAMES = {  # our name of optimizer state -> torch's
    "momentum": "momentum_buffer", "m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq", "count": "step",
}  # fmt: skip
OMITTED_UNLESS_SET = ("amsgrad", "maximize")  # of our own steps, so that saved settings stay as they were
EXECUTION_OPTIONS = ("params", "lr", "foreach", "capturable", "differentiable", "fused")  # do not change the step


class Settings(NamedTuple):
    """What determines an optimizer's step. All but `lr` must stay the same while it is watched."""

    kind: type  # in torch.optim
    options: tuple[dict[str, Any], ...]  # of each parameter group
    parts: tuple[float, ...]  # the learning rate of each parameter group, divided by the highest
    lr: float  # the highest learning rate


def settings(optimizer: torch.optim.Optimizer) -> Settings:
    """The current settings of a torch.optim optimizer; subclasses are refused, because they may step in any way."""
    kind, groups = type(optimizer), optimizer.param_groups
    if kind not in PURE and kind not in OTHERS:
        known = ", ".join(f"torch.optim.{name.__name__}" for name in (*PURE, *OTHERS))
        raise TypeError(f"optimizers must be one of {known}, whose steps can be replayed; found {kind.__name__}.")
    for option in PURE[kind][1] if kind in PURE else ():
        if any(group.get(option) for group in groups):
            raise ValueError(f"{kind.__name__} with {option} is not supported. Leave {option} out.")
    takes = [*signature(PURE[kind][0]).parameters, "maximize"] if kind in PURE else signature(kind).parameters
    names = [name for name in takes if name not in EXECUTION_OPTIONS]
    rates = [float(group["lr"]) for group in groups]
    # a warm-up may start at 0
    usual = rates if any(rates) else [float(group.get("initial_lr", 1.0)) for group in groups]
    quiet = OMITTED_UNLESS_SET if kind in PURE else ()
    options = tuple(
        {name: _plain(group[name]) for name in names if name in group and (group[name] or name not in quiet)}
        for group in groups
    )
    return Settings(kind, options, tuple(rate / (max(usual) or 1.0) for rate in usual), max(rates))


def _plain(value: Any) -> Any:
    """Numbers as floats: torch also takes integers and tensors."""
    if isinstance(value, bool) or value is None:
        return value
    return tuple(map(float, value)) if isinstance(value, Sequence) else float(value)


def describe(settings: Settings) -> str:
    """The settings of each parameter group in words."""
    groups = zip(settings.options, settings.parts, strict=True)
    each = [{"lr": part * settings.lr, **options} for options, part in groups]
    return "; ".join(", ".join(f"{name}={value}" for name, value in group.items()) for group in each)


def same_step(one: Settings, other: Settings) -> bool:
    """Whether both make the same step up to the learning rate; parts may differ by rounding, as schedulers multiply."""
    near = all(abs(a - b) <= 1e-6 for a, b in zip(one.parts, other.parts, strict=False))
    return one[:2] == other[:2] and near


def pure_version(settings: Settings, places: Sequence[Tensor]) -> Optimizer:
    """The pure step that these settings describe; `places` has the indices of each group's parameters in a flat row."""
    kind = settings.kind

    def made(options: dict[str, Any]) -> Optimizer:
        if kind not in PURE:
            return torch_step(kind, options)
        step = PURE[kind][0](**{name: value for name, value in options.items() if name != "maximize"})
        return optimizers.ascending(step) if options.get("maximize") else step

    groups = list(zip(settings.options, settings.parts, strict=True))
    if all(group == groups[0] for group in groups):
        step = made(settings.options[0])
    else:
        step = grouped([(made(options), own, part) for (options, part), own in zip(groups, places, strict=True)])
    return step if step.settings else step._replace(settings=_as_text(settings, places))


TORCH = "torch.optim."


def _as_text(settings: Settings, places: Sequence[Tensor]) -> tuple[tuple[str, Any], ...]:
    """What `rebuilt` needs to make the same step; places are written as ranges, [first, last + 1]."""
    runs = [torch.tensor_split(place, (place.diff() != 1).nonzero()[:, 0] + 1) for place in places]
    spans = [[[int(run[0]), int(run[-1]) + 1] for run in own if len(run)] for own in runs]
    groups = json.dumps(list(zip(settings.options, settings.parts, spans, strict=True)))
    return ("optimizer", f"{TORCH}{settings.kind.__name__}"), ("groups", groups)


def rebuilt(saved: Mapping[str, Any]) -> Optimizer:
    """Rebuild an optimizer from its settings: a name in `OPTIMIZERS` or of torch.optim, options, perhaps `clip`."""
    options = dict(saved)
    name, clip, groups = options.pop("optimizer"), options.pop("clip", None), options.pop("groups", None)
    if groups is None:
        step = optimizers.build(name, **options)
    else:
        kind = lookup({f"{TORCH}{kind.__name__}": kind for kind in (*PURE, *OTHERS)}, name, "optimizer")
        each, parts, spans = zip(*json.loads(groups), strict=True)
        places = [torch.cat([torch.arange(0), *(torch.arange(*span) for span in own)]) for own in spans]
        step = pure_version(Settings(kind, each, parts, 1.0), places)
    return step if clip is None else optimizers.clip(step, clip)


def pure_versions(models: Sequence[nn.Module], watched: Sequence[torch.optim.Optimizer]) -> list[Optimizer]:
    """The pure step of each participant's optimizer; those that make the same step share one object."""
    known: list[tuple[Settings, list[Tensor], Optimizer]] = []  # one entry a step: places are as long as the model
    steps = []
    for model, optimizer in zip(models, watched, strict=True):
        own, places = settings(optimizer), group_places(model, optimizer)
        alike = (step for one, where, step in known if same_step(own, one) and all(map(torch.equal, places, where)))
        if (step := next(alike, None)) is None:
            step = pure_version(own, places)
            known.append((own, places, step))
        steps.append(step)
    return steps


def group_places(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The indices of each group's parameters in the model's flat row."""
    own = list(trainable(model).values())
    pieces = torch.split(torch.arange(sum(p.numel() for p in own)), [p.numel() for p in own])
    where = {id(p): piece for p, piece in zip(own, pieces, strict=True)}
    groups = [[where[id(p)] for p in group["params"] if id(p) in where] for group in optimizer.param_groups]
    return [torch.cat(group) if group else torch.arange(0) for group in groups]


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, pure: Optimizer) -> Participants:
    """A copy of what one participant carries: parameters as a row, optimizer state under our names, buffers."""
    theta, own = flatten(model), list(trainable(model).values())
    known = [optimizer.state.get(parameter, {}) for parameter in own]
    # torch counts steps per parameter; those without gradients so far lag behind, and have no moments to unbias
    ahead = max(known, key=lambda state: float(state.get("step", 0)))
    state: State = {}
    for name, blank in pure.init(theta).items():
        torch_name = TORCH_NAMES.get(name, name)
        if blank.dim() == 0:
            value = ahead.get(torch_name)
            state[name] = blank if value is None else blank.new_tensor(float(value))
        else:  # torch creates state at the first step
            starts = torch.split(blank, [p.numel() for p in own])
            values = [each.get(torch_name) for each in known]
            pieces = [start if value is None else value for value, start in zip(values, starts, strict=True)]
            state[name] = torch.cat([piece.detach().reshape(-1) for piece in pieces])
    return Participants(theta, state, {name: buffer.detach().clone() for name, buffer in model.named_buffers()})


def check_alike(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """Check that all models have one layout, and that each has an optimizer for exactly its parameters."""
    if not models or len(models) != len(optimizers):
        counts = f"{len(models)} models and {len(optimizers)} optimizers"
        raise ValueError(f"each participant must have a model and an optimizer; found {counts}.")
    named = [(*model.named_parameters(), *model.named_buffers()) for model in models]
    layouts = [[(name, v.shape, v.dtype, v.device, v.requires_grad) for name, v in each] for each in named]
    for k, layout in enumerate(layouts):
        if layout != layouts[0]:
            raise ValueError(f"all models must have the same names, shapes, dtypes and device; {k} differs from 0.")
    check_same_frozen(models)
    owners: dict[int, int] = {}
    for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        own = {id(p) for p in trainable(model).values()}
        if not own <= stepped <= {id(p) for p in model.parameters()}:
            raise ValueError(f"optimizer {k} must step all parameters of model {k}, and no others; it does not.")
        if (owner := owners.setdefault(min(own), k)) != k:
            raise ValueError(f"participants must not share parameters; {owner} and {k} do.")


class _DifferentiableRoots(TorchFunctionMode):
    """Square roots of 0, as of gradients that were always 0, have the derivative 0 instead of infinity times 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.sqrt, Tensor.sqrt, Tensor.sqrt_):
            args = (args[0] + torch.finfo(args[0].dtype).tiny,)
        return func(*args, **(kwargs or {}))


def torch_step(kind: Any, options: dict[str, Any]) -> Optimizer:
    """The step that torch.optim's `kind` makes with these options, computed by torch's differentiable implementation.

    Rows are stepped one by one, because torch reads the values of step counts, which vmap does not allow.
    """

    def optimizer(theta: Tensor, gradient: Tensor, lr: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind([theta], **options, lr=1.0, differentiable=True, foreach=False)
        made.param_groups[0]["lr"] = lr  # not above: it may be a tangent, which the constructor would refuse
        theta.grad = gradient
        return made

    def init(theta: Tensor) -> State:
        if theta.dim() > 1:
            state: State = stacked(map(init, theta))
            return state
        parameter = theta.detach().clone()
        made: Any = optimizer(parameter, torch.zeros_like(parameter), 1.0)
        lists = len(signature(made._init_group).parameters) - 1
        made._init_group(made.param_groups[0], *([] for _ in range(lists)))
        return {name: torch.as_tensor(value).clone() for name, value in made.state[parameter].items()}

    def update(gradient: Tensor, state: State, theta: Tensor, lr: Tensor) -> tuple[Tensor, State]:
        if theta.dim() > 1:
            rows = (at((gradient, state, theta, lr), i) for i in range(len(theta)))
            both: tuple[Tensor, State] = stacked([update(*row) for row in rows])
            return both
        parameter = theta.clone()
        made = optimizer(parameter, gradient, lr.to(theta.dtype))
        made.state[parameter] = {name: value.clone() for name, value in state.items()}
        with _DifferentiableRoots():
            made.step()
        return parameter - theta, {name: made.state[parameter][name] for name in state}

    return Optimizer(init, update)


def grouped(parts: Sequence[tuple[Optimizer, Tensor, float]]) -> Optimizer:
    """One optimizer for several parameter groups: (step, indices in a flat row, part of the learning rate) of each.

    State per parameter is concatenated in the order of the row; counts of steps are the same in all groups.
    """
    order = torch.cat([places for _, places, _ in parts]).argsort()

    def together(pieces: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(pieces), -1)[..., order.to(pieces[0].device)]

    def own(rows: Tensor, places: Tensor) -> Tensor:
        return rows[..., places.to(rows.device)]

    def merged(states: Sequence[State], previous: Sequence[State], theta: Tensor) -> State:
        """All groups' state by name; a group without that name keeps its old value."""
        result: State = {}
        for name in dict.fromkeys(name for state in states for name in state):
            values = [state.get(name, old.get(name)) for state, old in zip(states, previous, strict=True)]
            first = next(value for value in values if value is not None)
            if first.dim() < theta.dim():
                result[name] = first
                continue
            blank = [torch.zeros_like(own(theta, places)) for _, places, _ in parts]
            result[name] = together([b if value is None else value for value, b in zip(values, blank, strict=True)])
        return result

    def split(state: State, theta: Tensor, places: Tensor) -> State:
        return {name: own(value, places) if value.dim() == theta.dim() else value for name, value in state.items()}

    def init(theta: Tensor) -> State:
        states = [optimizer.init(own(theta, places)) for optimizer, places, _ in parts]
        return merged(states, states, theta)

    def update(gradient: Tensor, state: State, theta: Tensor, lr: Tensor) -> tuple[Tensor, State]:
        previous = [split(state, theta, places) for _, places, _ in parts]
        steps = [
            optimizer.update(own(gradient, places), before, own(theta, places), part * lr)
            for (optimizer, places, part), before in zip(parts, previous, strict=True)
        ]
        return together([delta for delta, _ in steps]), merged([after for _, after in steps], previous, theta)

    return Optimizer(init, update, linear=all(optimizer.linear for optimizer, _, _ in parts), size=len(order))
