"""The exchange of a round that a rule mixed, not a matrix: trimmed means, medians and the like.

A rule is a function of what everyone had before the round and sends in it, so changes are replayed through the rule
itself, and its derivatives are torch's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp
from torch.utils._pytree import tree_leaves, tree_map

from cascadice import topology
from cascadice.engine.exchange.stacked import Point
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint, MixingRule, Perturbation, Round

R = TypeVar("R")


def apply_rule(round_: Round, rule: MixingRule, networks: int = 1) -> Round:
    """The round with the W that the rule chose, or mixed by the rule itself where it does not average.

    Of several `networks` side by side, none may hear another.
    """
    given = tree_leaves((round_.before, round_.half))
    unchanged = [tensor._version for tensor in given]
    chosen = rule(round_.draw._replace(W=round_.W.clone()), round_.before, round_.half)
    if [tensor._version for tensor in given] != unchanged:
        raise ValueError(
            f"a mixing rule must not edit the participants that it is given; {_name(rule)} did in round {round_.t}. "
            "Use operations out of place, or edit a copy."
        )
    if isinstance(chosen, Participants):
        return round_._replace(after=_checked_rows(chosen, round_, rule), rule=rule)
    W = _checked(chosen, round_, rule)
    which = torch.arange(len(W), device=W.device) // (len(W) // networks)
    if networks > 1 and bool((W.to_dense() * (which[:, None] != which)).any()):
        what = f"the rule {_name(rule)} in round {round_.t}"
        raise ValueError(f"networks side by side must not hear each other; {what} lets them.")
    return round_._replace(draw=round_.draw._replace(W=W))


def _checked_rows(mixed: Participants, round_: Round, rule: MixingRule) -> Participants:
    """A copy of the participants that a rule returned (it may refill them next round), if they are like those sent."""

    def form(participants: Participants) -> list[tuple[Any, ...]]:
        parts = {"theta": participants.theta, **participants.state, **participants.buffers}
        return sorted((name, tuple(value.shape), str(value.dtype)) for name, value in parts.items())

    if (found := form(mixed)) != (sent := form(round_.half)):
        differs = next(part for part in (*sent, *found) if part not in sent or part not in found)
        raise ValueError(
            f"the participants that the rule {_name(rule)} returned in round {round_.t} must be like those sent; "
            f"{differs[0]} is not. Use half._replace(theta=...)."
        )
    copy: Participants = tree_map(torch.clone, mixed)
    return copy


def _name(rule: MixingRule) -> str:
    return str(getattr(rule, "__qualname__", type(rule).__name__)).split(".<locals>")[0]


def _checked(W: Any, round_: Round, rule: MixingRule) -> Float[Tensor, "n n"]:
    """A copy of the W that a rule returned (it may refill the tensor next round), once it is known to be one."""
    nodes = len(round_.half.theta)
    where = f"the W that the rule {_name(rule)} returned in round {round_.t} cannot be used"
    if not isinstance(W, Tensor):
        raise TypeError(f"{where}: it must be a tensor, or Participants; found {type(W).__name__}.")
    if W.shape != (nodes, nodes):
        shape = " x ".join(map(str, W.shape)) or "a single number"
        how = " Return mixed parameters as half._replace(theta=mixed)." if W.shape == round_.half.theta.shape else ""
        raise ValueError(f"{where}: it must have a row and a column for each of {nodes}; found {shape}.{how}")
    try:
        topology.check(W.detach().cpu())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return W.detach().clone()


class ByRule:
    """Each source costs a call of the rule, on everybody's rows."""

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        return _called(round_, round_.W, round_.before, half)

    def mixed(self, round_: Round) -> Float[Tensor, "n n"]:
        return round_.W  # it says who hears whom

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> Perturbation:
        def again(source: int) -> Tensor:
            return _theta(round_, round_.W, *_moved(round_, (before, half), source)) - round_.after.theta

        return _gathered(half, again)

    def push(self, round_: Round, at: Point, before: Perturbation | None, half: Perturbation) -> Perturbation:
        def along(source: int) -> Tensor:
            point, tangent = _moved(round_, at, source), (_dense(round_, before, source), _dense(round_, half, source))
            change: Tensor = _derived(round_, lambda mixed: jvp(mixed, point, tangent))[1]
            return change

        return _gathered(half, along)

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint:
        point = round_.before.theta, round_.half.theta
        of_before, of_half = _derived(round_, lambda mixed: vjp(mixed, *point)[1](adjoint.theta))
        if bool(of_before.any()):
            raise ValueError(
                f"the rule that mixed round {round_.t} depends on what participants had before it; a reverse sweep "
                "follows only what they send. Use truth or first_order."
            )
        # a copy: a rule may hand on what it was given, and its adjoint with it
        return adjoint._replace(theta=of_half.clone() if plus is None else of_half + plus)


def _called(round_: Round, W: Tensor, before: Participants, half: Participants) -> Participants:
    """What the rule makes of this; it gets a copy of W, which it may edit."""
    assert round_.rule is not None
    mixed = round_.rule(round_.draw._replace(W=W.clone()), before, half)
    if not isinstance(mixed, Participants):
        raise TypeError(f"the rule of round {round_.t} gave participants when it trained; now it gave a matrix.")
    return mixed


def _theta(round_: Round, W: Tensor, before: Tensor, half: Tensor) -> Tensor:
    return _called(round_, W, round_.before._replace(theta=before), round_.half._replace(theta=half)).theta


def _derived(round_: Round, derive: Callable[[Callable[..., Tensor]], R]) -> R:
    """A derivative of the rule. W is made dense before: inside, torch can neither copy a CSR nor make it dense."""
    try:
        return derive(partial(_theta, round_, round_.W.to_dense()))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the rule that mixed round {round_.t} cannot be differentiated: {reason}. Use truth, which replays it, "
            "or write the rule with out-of-place operations."
        ) from error


def _dense(round_: Round, change: Perturbation | None, source: int) -> Tensor:
    """The change that comes from one source, a row for every participant."""
    rows = torch.zeros_like(round_.half.theta)
    if change is not None:
        chosen = change.sources == source
        rows[change.nodes[chosen]] = change.theta[chosen]
    return rows


def _moved(round_: Round, at: Point, source: int) -> tuple[Tensor, Tensor]:
    """Everybody's parameters before and after local work, with the changes that come from one source."""
    before, half = at or (None, None)
    return round_.before.theta + _dense(round_, before, source), round_.half.theta + _dense(round_, half, source)


def _gathered(half: Perturbation, change_of: Callable[[int], Tensor]) -> Perturbation:
    """The changes of all sources as pairs; state stays with whom it changed."""
    parts = []
    for source in sorted(set(half.sources.tolist())):
        change, chosen = change_of(source), half.sources == source
        reached, own = (change != 0).any(1), half.nodes[chosen]
        if half.state:
            reached[own] = True
        everybody = {name: v.new_zeros(len(change), *v.shape[1:]) for name, v in half.state.items()}
        state = {name: v.index_copy(0, own, half.state[name][chosen])[reached] for name, v in everybody.items()}
        nodes = reached.nonzero().flatten()
        parts.append(Perturbation(nodes, torch.full_like(nodes, source), change[reached], state))
    gathered: Perturbation = tree_map(lambda *column: torch.cat(column), *parts)
    return gathered
