"""Checks before influence is computed: of the rounds, the sources, the model and its loss."""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad
from torch.utils._pytree import tree_map

from cascadice.data.inputs import Inputs, at
from cascadice.engine import DivergedError, Evaluation, Network, Operator, load
from cascadice.engine.dropout import seeded
from cascadice.engine.evaluation import check_asked
from cascadice.engine.groups import uniform_parts
from cascadice.engine.learner import Learner, Participants, outputs_of, unflatten
from cascadice.engine.rounds import Draw, Perturbation, Round, rows_of

Sources = int | Sequence[int] | Tensor | NDArray[Any] | None
"""Participants whose updates to score: one, several, or None for all."""
PROBED = 4  # participants whose local work is repeated, or on whose batches the loss is probed
SAME_NETWORK = "Build the network that was recorded: the same model, data, loss, optimizer and seed."


def check_rounds(rounds: Sequence[Round]) -> None:
    """Raise unless this is a list of at least one round, and each round starts where the one before it ended."""
    if isinstance(rounds, Round):
        raise TypeError("rounds must be a list of rounds; found one Round. Use [round].")
    if not isinstance(rounds, Sequence):
        raise TypeError(f"rounds must be a list of rounds; found {type(rounds).__name__}. Use list(simulate(...)).")
    earlier = None
    for round_ in rounds:  # which may be loaded one by one
        check_round(round_)
        if earlier is not None:
            check_joined(earlier, round_)
        earlier = round_
    if earlier is None:
        raise ValueError("at least one round is needed: that of the update; found none.")


def check_joined(earlier: Round, later: Round) -> None:
    """Raise unless rounds are consecutive, and the parameters after one are those before the next, up to rounding.

    Costs nothing if they are the same tensor. A part of a network may have come back with its neighbours' parameters.
    """
    if later.t != earlier.t + 1:
        found = f"round {earlier.t} is followed by {later.t}"
        raise ValueError(f"rounds must be consecutive; {found}. Keep or record all of them, in order.")
    ended, begun = earlier.after.theta, later.before.theta
    part = later.W.shape[0] != len(begun)
    if part or (ended.data_ptr(), ended.shape) == (begun.data_ptr(), begun.shape):
        return
    if ended.shape == begun.shape:
        begun, eps = begun.to(ended), torch.finfo(ended.dtype).eps
        gap, moved, size = (torch.linalg.vector_norm(rows, dim=1) for rows in (begun - ended, later.update, ended))
        # rounds that are played again on CUDA differ more than by the rounding of W θ, but by little of an update
        if not bool((gap > 10 * eps**0.5 * moved.max() + 100 * eps * size.max()).any()):  # others look for NaN
            return
    raise ValueError(
        f"rounds must be those of one run; round {later.t} does not start with the parameters after round {earlier.t}. "
        "Give the rounds as they were trained or recorded."
    )


def check_numbers(t: int, scores: Tensor, nodes: Sequence[int] | None = None) -> None:
    """Raise DivergedError if a row of scores, of these `nodes`, is not finite; NaN would be read as "not asked for"."""
    wrong = ~scores.isfinite().reshape(len(scores), -1).all(1)
    if bool(wrong.any()):  # derivatives may overflow, or not exist, although all losses of the run are finite
        row = int(wrong.nonzero()[0])
        remedy = (
            "Training may be too rough to follow: lower the learning rate, or retrain without the data. Or something "
            "in the model, loss or optimizer has no derivative, such as a square root of 0: replace it."
        )
        raise DivergedError(t, row if nodes is None else nodes[row], remedy, sent="has an influence that")


def check_many(rounds: Iterable[Round]) -> None:
    """Raise TypeError if a single round stands where an iterable of rounds is expected."""
    if isinstance(rounds, Round):
        raise TypeError("rounds must come in a list or from a generator; found one Round. Use [round].")


def check_round(round_: Round) -> Round:
    """Return the round; raise TypeError if it is something else."""
    if not isinstance(round_, Round):
        raise TypeError(f"a Round is needed; found {type(round_).__name__}. Give one of the rounds, e.g. rounds[0].")
    return round_


def check_recording(
    network: Network, rounds: Sequence[Round], many: int = PROBED, sources: Sequence[int] | None = None
) -> None:
    """Raise unless rounds are this network's: the same shapes, finite numbers, and local work that repeats exactly."""
    check_rounds(rounds)
    for round_ in rounds:
        check_form(network, round_)
        for theta in (round_.before.theta, round_.half.theta, round_.after.theta):
            broken = ~theta.sum(1, dtype=torch.float64).isfinite()
            if bool(broken.any()):
                raise ValueError(
                    f"parameters must be finite; those of participant {int(broken.nonzero()[0])} are not, in "
                    f"round {round_.t}. Use earlier rounds, or train at a lower learning rate."
                )
    check_replays(network, rounds[0], many, sources)


def check_form(network: Network, round_: Round) -> None:
    """Raise unless a round has the network's participants, parameters and optimizer state. Costs nothing."""
    check_round(round_)
    if (form := _form(round_.before)) != (own := _form(network.initial)):
        raise ValueError(
            f"round {round_.t} must belong to this network, {own}; found {form}. Build the network that was recorded."
        )


def _form(participants: Participants) -> str:
    theta, state = participants.theta, ", ".join(participants.state)
    nodes, size = theta.shape
    kept = f" with state {state}" if state else ""
    return f"{nodes} participants of {size} parameters, {theta.dtype} on {theta.device}{kept}"


def check_sources(network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources) -> list[int]:
    """The sources as a list, all participants by default; raise unless they and the rounds are this network's."""
    check_asked(network, evaluation)
    chosen = list(range(network.nodes)) if sources is None else numbers_of(sources)
    for source in chosen:
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    check_recording(network, rounds, sources=chosen)
    return chosen


def numbers_of(sources: Any) -> list[int]:
    """A list of participants' numbers from one number, a sequence, a tensor or an array."""
    given = _plain(sources)
    numbers = [_plain(each) for each in (given if isinstance(given, Iterable) else [given])]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"sources must be numbers of participants, e.g. [0, 2]; found {number!r}.")
    return numbers


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def check_replays(network: Network, round_: Round, many: int = PROBED, sources: Sequence[int] | None = None) -> None:
    """Repeat the local work of up to `many` participants; raise unless it ends where it did. Cost: a step of each."""
    drawn = round_.draw
    nodes = _workers(network, drawn, many, sources).to(network.device)
    last, size = int(drawn.batch.max()), len(network.data.train)
    if last >= size:
        raise ValueError(f"round {round_.t} drew sample {last}; the network has {size}. {SAME_NETWORK}")
    rows = rows_of(round_.before, nodes)
    theta, state = tree_map(torch.zeros_like, (rows.theta, rows.state))
    nothing = Perturbation(nodes, torch.zeros_like(nodes), theta, state)
    before, half, operator = rows.theta, round_.half.theta[nodes], Operator(network)
    rounding = 4 * torch.finfo(before.dtype).eps * before.norm(dim=1)
    allowed = _tolerance(network) * (half - before).norm(dim=1) + rounding
    error = operator.replay(round_, nothing).theta
    wrong = ~(error.norm(dim=1) <= allowed)  # NaN is wrong, too
    if not bool(wrong.any()):
        return
    repeats = bool(((error - operator.replay(round_, nothing).theta).norm(dim=1) <= allowed).all())
    random = "The model uses random numbers that are not from torch's generator: draw them from there, or not at all."
    raise ValueError(
        f"replaying the local steps of participant {int(nodes[wrong][0])} in round {round_.t} gives different "
        f"parameters. {SAME_NETWORK if repeats else random}"
    )


def _workers(network: Network, drawn: Draw, many: int, sources: Sequence[int] | None) -> Tensor:
    """Up to `many` participants that did all of their local work, from the sources where possible."""
    done = drawn.conduct[0].cpu() if drawn.conduct else torch.ones(network.nodes)
    working = done == done.max()
    asked = torch.zeros_like(working)
    asked[slice(None) if sources is None else list(sources)] = True
    workers = (working & asked if bool((working & asked).any()) else working).nonzero().flatten()
    return workers[torch.linspace(0, len(workers) - 1, min(many, len(workers))).round().long()]


def _tolerance(network: Network) -> float:
    """The relative change in an update that rounding may cause when a step is repeated in another order of sums."""
    if network.learner.compute is not None or network.learner.autocast is not None:
        return 0.1
    if network.initial.theta.dtype == torch.float32 and network.device.type == "cuda" and _uses_tf32(network):
        return 0.02  # TF32 has eleven bits
    return 10.0 * float(torch.finfo(network.initial.theta.dtype).eps ** 0.5)


def _uses_tf32(network: Network) -> bool:
    """Whether float32 products on CUDA may be rounded to TF32: torch allows it for convolutions unless told not to."""
    convolves = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in network.learner.training.modules())
    return torch.get_float32_matmul_precision() != "highest" or (convolves and torch.backends.cudnn.allow_tf32)


_separable: MutableMapping[Learner, set[tuple[int, ...]]] = WeakKeyDictionary()


def check_samples_are_separate(network: Network, drawn: Draw, before: Participants) -> None:
    """Raise if a sample's output or its term of the loss depends on other samples, so that it has no score of its own.

    Class weights, ignored targets and sums are fine. Cost: 2 log₂(batch) forward passes for a few participants, once
    per batch shape.
    """
    known = _separable.setdefault(network.learner, set())
    if (form := tuple(drawn.batch.shape)) in known:
        return
    for phase, group in uniform_parts(network, drawn):
        inputs = load(network, phase, group.nodes[:PROBED], group=group)
        for row, k in enumerate(group.nodes[:PROBED]):
            _check_batch(network, rows_of(before, k), at(inputs.x, (row, 0)), inputs.y[row, 0])
    known.add(form)


def _check_batch(network: Network, one: Participants, x: Inputs, y: Tensor) -> None:
    """Change some samples of a batch: outputs and loss terms of the others must stay what they are."""
    learner, batch = network.learner, len(y)
    if batch < 2:
        return

    def outputs(x: Inputs) -> Tensor:
        with torch.no_grad(), seeded(1 if learner.stochastic else None, network.device):
            return outputs_of(dict(unflatten(learner.training, one.theta)), learner, one.buffers, x)[0]

    before = outputs(x)
    if before.shape[0] % batch:
        raise ValueError(
            f"scores of samples need outputs with a row for each sample; found {before.shape[0]} rows for {batch}."
        )
    by_output = grad(learner.loss)
    gradient = by_output(before, y)
    for chosen in _halves(batch, y.device):
        rows = chosen.repeat_interleave(before.shape[0] // batch)
        after = outputs(tree_map(lambda part, chosen=chosen: _changed(part, chosen), x))
        if _differ(before[~rows], after[~rows], 100 * torch.finfo(before.dtype).eps):
            raise ValueError(f"{_culprit(learner)} Score participants, or use GroupNorm or LayerNorm.")
        targets = y.clone()
        targets[chosen] = y[chosen].roll(1, 0)  # permuted, so that the divisor of a weighted mean stays the same
        changed = by_output(_changed(before, rows), targets)
        if _differ(gradient[~rows], changed[~rows], torch.finfo(before.dtype).eps ** 0.5):
            raise ValueError(
                "scores of samples need a loss to which each sample adds its own term; in this one, a sample's term "
                "depends on the other samples. Use a sum or a (weighted) mean over samples, or score participants."
            )


def _halves(batch: int, device: torch.device) -> Iterator[Tensor]:
    """Masks of samples such that for every pair (i, j) some mask has i and not j: by the bits of their positions."""
    for bit in range((batch - 1).bit_length()):
        chosen = (torch.arange(batch, device=device) >> bit) % 2 == 1
        yield from (chosen, ~chosen)


def _culprit(learner: Learner) -> str:
    kind = nn.modules.batchnorm._BatchNorm
    if (name := next((n for n, m in learner.training.named_modules() if isinstance(m, kind)), None)) is None:
        return "in this model a sample's output depends on the other samples of its batch, so it has no score."
    why = "in training it makes every sample's output depend on the whole batch, so a sample has no score of its own."
    return f"{name!r} is a BatchNorm: {why}"


def _changed(values: Tensor, chosen: Tensor) -> Tensor:
    """These values with the chosen rows changed; integers (tokens) only to values that occur."""
    changed = values.clone()
    if values.is_floating_point():
        ripple = torch.arange(values.numel(), device=values.device).view(values.shape).cos().to(values.dtype)
        changed[chosen] += (ripple * (values.abs().max() + 1))[chosen]
    else:
        changed[chosen] = values[~chosen][:1]
    return changed


def _differ(one: Tensor, other: Tensor, relative: float) -> bool:
    """Whether the two differ by more than rounding; NaN counts as a difference."""
    return not bool(((one - other).abs() <= relative * one.abs().max()).all())
