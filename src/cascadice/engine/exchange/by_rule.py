"""The exchange of a round that a rule mixed, not a matrix: trimmed means, medians and the like.

A rule is a function of what everyone had before the round and sends in it, so changes are replayed through the rule
itself, and its derivatives are torch's.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp
from torch.utils._pytree import tree_map

from cascadice import topology
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint, MixingRule, Perturbation, Round

R = TypeVar("R")


def apply_rule(round_: Round, rule: MixingRule) -> Round:
    """The round with the W that the rule chose, or mixed by the rule itself where it does not average."""
    chosen = rule(round_.draw, round_.before, round_.half)
    if isinstance(chosen, Participants):
        return round_._replace(after=_checked_rows(chosen, round_, rule), rule=rule)
    if chosen is round_.W:
        return round_
    return round_._replace(draw=round_.draw._replace(W=_checked(chosen, round_, rule)))


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
    name = _name(rule)
    where, nodes = f"the W that the rule {name} returned in round {round_.t} cannot be used", len(round_.half.theta)
    if not isinstance(W, Tensor):
        raise TypeError(f"{where}: it must be a tensor, or Participants; found {type(W).__name__}.")
    if W.shape != (nodes, nodes):
        shape = " x ".join(map(str, W.shape)) or "a single number"
        raise ValueError(f"{where}: it must have a row and a column for each of {nodes}; found {shape}.")
    try:
        topology.check(W.detach().cpu())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return W.detach().clone()


class ByRule:
    """Each source costs a call of the rule, on everybody's rows."""

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        """What participants have after this round if they send `half`."""
        return _called(round_, round_.before, half)

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> Perturbation:
        """What becomes of a change of what is sent, and of what was there before: exactly."""

        def again(source: int) -> Tensor:
            changed_before = round_.before.theta + _dense(round_, before, source)
            changed_half = round_.half.theta + _dense(round_, half, source)
            return _theta(round_)(changed_before, changed_half) - round_.after.theta

        return _gathered(round_, half, again)

    def push(
        self, round_: Round, at: tuple[Perturbation | None, Perturbation] | None, before: Perturbation | None,
        half: Perturbation,
    ) -> Perturbation:  # fmt: skip
        """The derivative of the rule, `at` a change of (before, half) or where the round really was."""

        def along(source: int) -> Tensor:
            moved = (None, None) if at is None else at
            point = (
                round_.before.theta + _dense(round_, moved[0], source),
                round_.half.theta + _dense(round_, moved[1], source),
            )
            tangent = (_dense(round_, before, source), _dense(round_, half, source))
            change: Tensor = _derived(round_, lambda: jvp(_theta(round_), point, tangent))[1]
            return change

        return _gathered(round_, half, along)

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint:
        """Its transpose: the adjoint of what was sent, plus `plus`."""
        of_before, of_half = _derived(
            round_, lambda: vjp(_theta(round_), round_.before.theta, round_.half.theta)[1](adjoint.theta)
        )
        if bool(of_before.any()):
            raise ValueError(
                f"the rule that mixed round {round_.t} depends on what participants had before it; a reverse sweep "
                "follows only what they send. Use truth or first_order."
            )
        # a copy: a rule may hand on what it was given, and its adjoint with it
        return adjoint._replace(theta=of_half.clone() if plus is None else of_half + plus)


def _called(round_: Round, before: Participants, half: Participants) -> Participants:
    assert round_.rule is not None
    mixed = round_.rule(round_.draw, before, half)
    if not isinstance(mixed, Participants):
        raise TypeError(f"the rule of round {round_.t} gave participants when it trained; now it gave a matrix.")
    return mixed


def _theta(round_: Round) -> Callable[[Tensor, Tensor], Tensor]:
    def mixed(before: Tensor, half: Tensor) -> Tensor:
        return _called(round_, round_.before._replace(theta=before), round_.half._replace(theta=half)).theta

    return mixed


def _derived(round_: Round, derive: Callable[[], R]) -> R:
    try:
        return derive()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
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


def _gathered(round_: Round, half: Perturbation, change_of: Callable[[int], Tensor]) -> Perturbation:
    """The changes of all sources as pairs; state stays with whom it changed."""
    nodes, sources, theta = [], [], []
    state: dict[str, list[Tensor]] = {name: [] for name in half.state}
    for source in sorted(set(half.sources.tolist())):
        change, chosen = change_of(source), half.sources == source
        own = torch.zeros(len(change), dtype=torch.bool, device=change.device)
        own[half.nodes[chosen]] = bool(half.state)
        reached = (change != 0).any(1) | own
        nodes.append(reached.nonzero().flatten())
        sources.append(torch.full_like(nodes[-1], source))
        theta.append(change[reached])
        for name, values in half.state.items():
            kept: Any = values.new_zeros(len(change), *values.shape[1:])
            kept[half.nodes[chosen]] = values[chosen]
            state[name].append(kept[reached])
    return Perturbation(
        torch.cat(nodes),
        torch.cat(sources),
        torch.cat(theta),
        {name: torch.cat(parts) for name, parts in state.items()},
    )
