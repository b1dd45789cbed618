"""What influence is measured on: a function of outputs on evaluation data z', which need not be the training loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vmap

from cascadice.data import Samples
from cascadice.data.inputs import Inputs, at, described, in_precision, stacked
from cascadice.engine.learner import Buffers, Learner, Participants, measure_all
from cascadice.engine.networks import Network
from cascadice.engine.rounds import rows_of
from cascadice.losses import Loss

NO_TEST_DATA = (
    "there is no test data to measure influence on. Pass test=Samples(x, y) to the Recorder, or "
    "evaluation=evaluate_on(network, samples)"
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """L(θ_k; z'), what influence is measured on; `evaluate_on` builds one.

    Attributes:
        x: Inputs, shared by all participants; if `own`, a set for each: stacked if all have one size, else a tuple.
        y: Targets, in the same form.
        measure: A scalar function of (outputs, targets) that goes down when things improve.
        own: Whether each participant is measured on its own set.
    """

    x: Inputs
    y: Tensor | tuple[Tensor, ...]
    measure: Loss
    own: bool = False

    def __repr__(self) -> str:
        name = getattr(self.measure, "__name__", type(self.measure).__name__)
        each = [len(y) for y in self.y] if self.own else [len(self.y)]
        count = f"{each[0]:,}" if len(set(each)) == 1 else f"{min(each):,} to {max(each):,}"
        whose = f"of its own for each of {len(each)} participants" if self.own else "for everyone"
        return f"Evaluation({name} on {count} samples, {whose})"

    def of(self, k: int) -> tuple[Any, Any]:
        """The inputs and targets of participant k."""
        if not self.own:
            return self.x, self.y
        return at(self.x, k) if isinstance(self.y, Tensor) else cast(Any, self.x)[k], self.y[k]


def evaluate_on(
    network: Network, samples: Samples | Sequence[Samples] | None = None, measure: Loss | None = None
) -> Evaluation:
    """Choose what influence is measured on: L(θ_k; z') of every participant k.

    Args:
        network: The network to be evaluated.
        samples: Evaluation data shared by all participants, or a sequence with a set for each, whose sizes may differ;
            by default the test data.
        measure: A scalar function of (outputs, targets) that goes down when things improve; by default the training
            loss. `influence.measures` has some.

    Returns:
        The evaluation that `truth`, `first_order`, `reverse_gossip` and the other estimators take.

    Raises:
        ValueError: If a set is empty, the model cannot take it, or the measure is not a finite scalar on it.
        TypeError: If the measure is not a function, or does not return a tensor.

    Example:
        >>> everyone = evaluate_on(network)
        >>> each_on_its_own = evaluate_on(network, own_data(network, 32))
    """
    _check_network(network)
    if measure is not None:
        _check_takes_two(measure)
    chosen = network.data.test if samples is None else samples
    own = not isinstance(chosen, Samples)
    parts = [chosen] if isinstance(chosen, Samples) else list(chosen)
    if own and len(parts) != network.nodes:
        raise ValueError(f"there must be evaluation data for each of {network.nodes} participants; found {len(parts)}.")
    for k, part in enumerate(parts):
        if not isinstance(part, Samples):
            raise TypeError(f"evaluation data must be Samples; found {type(part).__name__}. Use data.Samples(x, y).")
        if len(part) == 0 and not own and len(network.data.test) == 0:
            raise ValueError(f"{NO_TEST_DATA}.")
        if len(part) == 0:
            whose = f"that of participant {k}" if own else "it"
            raise ValueError(f"an evaluation set must hold at least one sample; {whose} is empty. Use subset(index).")
    dtype, function = network.initial.theta.dtype, measure or network.learner.loss
    sets = [part.to(network.device).take(torch.arange(len(part), device=network.device)) for part in parts]
    sets = [(in_precision(x, dtype), y) for x, y in sets]
    for k, (x, y) in enumerate(sets):
        _check_measured(network.learner, rows_of(network.initial, k), x, y, function)
    if network.strategy != "loop":
        _check_vectorises(network, *sets[0], function)
    if not own:
        return Evaluation(*sets[0], function)
    xs, ys = zip(*sets, strict=True)
    if len({len(part) for part in parts}) == 1:
        return Evaluation(stacked(xs), torch.stack(ys), function, own=True)
    return Evaluation(xs, ys, function, own=True)


def _check_takes_two(measure: Loss) -> None:
    needed = "a measure must be a function of (outputs, targets)"
    if not callable(measure):
        raise TypeError(f"{needed}; found {measure!r}.")
    try:
        signature(measure).bind(None, None)
    except ValueError:  # the signature of a function written in C may be unknown
        return
    except TypeError:
        raise TypeError(f"{needed}; found one of {signature(measure)}. Let it take both.") from None


def check_asked(network: Network, evaluation: Evaluation) -> None:
    """Raise TypeError unless these are a network, and what to measure on it."""
    _check_network(network)
    if not isinstance(evaluation, Evaluation):
        how = "Use influence.evaluate_on(network, samples, measure)"
        raise TypeError(f"evaluation must be an Evaluation; found {type(evaluation).__name__}. {how}.")


def _check_network(network: Network) -> None:
    if not isinstance(network, Network):
        how = "Build it with cascadice.network, or take it from a Recorder"
        raise TypeError(f"network must be a Network; found {type(network).__name__}. {how}.")


def measured(learner: Learner, theta: Tensor, buffers: Buffers, x: Inputs, y: Tensor, measure: Loss) -> Tensor:
    """The measure of one row of parameters, in evaluation mode."""
    return measure_all(learner, Participants(theta, {}, buffers), x, y, (measure,))[0]


def _check_measured(learner: Learner, one: Participants, x: Inputs, y: Tensor, measure: Loss) -> None:
    try:
        (outputs,) = measure_all(learner, one, x, y, (lambda outputs, _: outputs,))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"evaluation data must be what the model takes; it cannot take {described(x)}: {reason}"
        ) from error
    value: Any = measure(outputs, y)
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(f"a measure must return a tensor; found {kind}. Remove .item(), float() and the like.")
    if value.dim() != 0:
        raise ValueError(f"a measure must return a scalar; found shape {tuple(value.shape)}. Use e.g. .mean().")
    if not bool(value.isfinite()):
        raise ValueError(
            f"a measure must return a finite number; at the initial parameters it is {float(value)}. "
            "Does it average over nothing, such as a class that no evaluation sample has?"
        )


def _check_vectorises(network: Network, x: Inputs, y: Tensor, measure: Loss) -> None:
    two = rows_of(network.initial, slice(0, 2))
    try:
        vmap(lambda theta, buffers: measured(network.learner, theta, buffers, x, y, measure))(two.theta, two.buffers)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the measure cannot run for all participants at once: {reason} Leave out .item() and branches on values, "
            "or build the network with strategy='loop'."
        ) from error


def check_rows(network: Network, theta: Tensor, nodes: Sequence[int]) -> None:
    """Check that theta has a row for each of these participants, with as many entries as it has parameters."""
    if theta.shape != (expected := (len(nodes), network.learner.size)):
        found = f"{list(expected)}; found {list(theta.shape)}"
        raise ValueError(f"parameters must have this network's shape, {found}. Build the network that was recorded.")


def check_measure_differentiable(loss: Tensor) -> None:
    """Refuse a measure without a derivative; torch would return a gradient of 0."""
    if not loss.requires_grad:
        raise ValueError(
            "the measure has no derivative with respect to the outputs (accuracy has none). Use the ground truth, "
            "which needs none, or a smooth measure such as measures.negative_margin."
        )
