"""Steps of torch.optim's own optimizers, and of parameter groups, as pure functions of flat rows."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from cascadice.data.inputs import stacked
from cascadice.optimizers import Optimizer, State


def torch_step(kind: Any, options: dict[str, Any]) -> Optimizer:
    """The step that torch.optim's `kind` makes with these options, by torch itself in its differentiable form.

    Rows are stepped one by one: torch looks at the values of counts, which a vectorised sweep cannot.
    """

    def optimizer(theta: Tensor, gradient: Tensor, lr: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind([theta], **options, lr=1.0, differentiable=True, foreach=False)
        made.param_groups[0]["lr"] = lr  # not checked: it may be a tangent
        theta.grad = gradient
        return made

    def init(theta: Tensor) -> State:
        if theta.dim() > 1:
            state: State = stacked([init(row) for row in theta])
            return state
        parameter = theta.detach().clone()
        made: Any = optimizer(parameter, torch.zeros_like(parameter), 1.0)
        lists = len(signature(made._init_group).parameters) - 1
        made._init_group(made.param_groups[0], *([] for _ in range(lists)))
        return {name: torch.as_tensor(value).clone() for name, value in made.state[parameter].items()}

    def update(gradient: Tensor, state: State, theta: Tensor, lr: Tensor) -> tuple[Tensor, State]:
        if theta.dim() > 1:
            rows = range(len(theta))
            both: tuple[Tensor, State] = stacked(
                [update(gradient[i], {name: value[i] for name, value in state.items()}, theta[i], lr[i]) for i in rows]
            )
            return both
        parameter = theta.clone()
        made = optimizer(parameter, gradient, lr.to(theta.dtype))
        made.state[parameter] = {name: value.clone() for name, value in state.items()}
        made.step()
        return parameter - theta, {name: made.state[parameter][name] for name in state}

    return Optimizer(init, update)


def grouped(parts: Sequence[tuple[Optimizer, Tensor, float]]) -> Optimizer:
    """One optimizer of several parameter groups: (its step, its places in a flat row, its part of the learning rate).

    What optimizers keep for each parameter is put together again; counts of steps are the same in all groups.
    """
    order = torch.cat([places for _, places, _ in parts]).argsort()

    def together(pieces: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(pieces), -1)[..., order.to(pieces[0].device)]

    def own(rows: Tensor, places: Tensor) -> Tensor:
        return rows[..., places.to(rows.device)]

    def merged(states: Sequence[State], kept: Sequence[State], theta: Tensor) -> State:
        """Each name of any group; where a group does not have it, what was kept there."""
        result: State = {}
        for name in dict.fromkeys(name for state in states for name in state):
            values = [state.get(name, old.get(name)) for state, old in zip(states, kept, strict=True)]
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
        kept = [split(state, theta, places) for _, places, _ in parts]
        steps = [
            optimizer.update(own(gradient, places), before, own(theta, places), part * lr)
            for (optimizer, places, part), before in zip(parts, kept, strict=True)
        ]
        return together([delta for delta, _ in steps]), merged([after for _, after in steps], kept, theta)

    return Optimizer(init, update, linear=all(optimizer.linear for optimizer, _, _ in parts), size=len(order))
