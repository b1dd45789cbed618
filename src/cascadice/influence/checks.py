"""What must hold before influence is computed: of the rounds, the sources, the model and its loss."""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad
from torch.utils._pytree import tree_map

from cascadice.data.inputs import Inputs, at
from cascadice.engine import Network, Operator, load
from cascadice.engine.dropout import seeded
from cascadice.engine.groups import alike_parts
from cascadice.engine.learner import Learner, Participants, outputs_of, unflatten
from cascadice.engine.rounds import Draw, Perturbation, Round, rows_of

Sources = int | Sequence[int] | Tensor | NDArray[Any] | None
"""Whose updates are scored: one participant, several, or None for everybody."""
PROBED = 4  # participants whose local work is made again, or on whose batches the loss is looked at
SAME_NETWORK = "Build the network that was recorded: the same model, data, loss, optimizer and seed."


def check_rounds(rounds: Sequence[Round]) -> None:
    """There must be at least the round of the update, and the others must follow it one by one."""
    if isinstance(rounds, Round):
        raise TypeError("rounds must be a list of rounds; found one Round. Use [round].")
    if not isinstance(rounds, Sequence):
        raise TypeError(f"rounds must be a list of rounds; found {type(rounds).__name__}. Use list(simulate(...)).")
    numbers = [check_round(round_).t for round_ in rounds]
    if not numbers:
        raise ValueError("at least one round is needed: that of the update; found none.")
    if any(later != earlier + 1 for earlier, later in pairwise(numbers)):
        raise ValueError(f"rounds must follow one another; found {numbers}.")


def check_many(rounds: Iterable[Round]) -> None:
    """Rounds that are read one by one must not be a single one."""
    if isinstance(rounds, Round):
        raise TypeError("rounds must come in a list or from a generator; found one Round. Use [round].")


def check_round(round_: Round) -> Round:
    """What is looked at, which must be one round."""
    if not isinstance(round_, Round):
        raise TypeError(f"a Round is needed; found {type(round_).__name__}. Give one of the rounds, e.g. rounds[0].")
    return round_


def check_recording(
    network: Network, rounds: Sequence[Round], many: int = PROBED, sources: Sequence[int] | None = None
) -> None:
    """Rounds must be this network's: of its form, made of numbers, and repeated by its local work."""
    check_rounds(rounds)
    for round_ in rounds:
        check_form(network, round_)
        for theta in (round_.before.theta, round_.half.theta, round_.after.theta):
            broken = ~theta.sum(1, dtype=torch.float64).isfinite()
            if bool(broken.any()):
                raise ValueError(
                    f"rounds must be made of numbers; parameters of participant {int(broken.nonzero()[0])} are NaN or "
                    f"infinite in round {round_.t}. Take earlier rounds, or train at a lower learning rate."
                )
    check_replays(network, rounds[0], many, sources)


def check_form(network: Network, round_: Round) -> None:
    """A round must have the participants, parameters and optimizer state that the network has. Costs nothing."""
    check_round(round_)
    if (form := _form(round_.before)) != (own := _form(network.initial)):
        raise ValueError(
            f"round {round_.t} must be of this network, {own}; found {form}. Build the network that was recorded."
        )


def _form(participants: Participants) -> str:
    nodes, size = participants.theta.shape
    state = f" with state {', '.join(participants.state)}" if participants.state else ""
    return (
        f"{nodes} participants of {size} parameters, {participants.theta.dtype} on {participants.theta.device}{state}"
    )


def check_sources(network: Network, rounds: Sequence[Round], sources: Sources) -> list[int]:
    """The sources, which must be participants (all, unless said) of the network that made these rounds."""
    check_rounds(rounds)
    chosen = list(range(network.nodes)) if sources is None else numbers_of(sources)
    for source in chosen:
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    check_recording(network, rounds, sources=chosen)
    return chosen


def numbers_of(sources: Any) -> list[int]:
    """The numbers of one participant or of several, also of those in a tensor or an array."""
    given = _plain(sources)
    numbers = [_plain(each) for each in (given if isinstance(given, Iterable) else [given])]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"sources must be numbers of participants, e.g. [0, 2]; found {number!r}.")
    return numbers


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def check_replays(network: Network, round_: Round, many: int = PROBED, sources: Sequence[int] | None = None) -> None:
    """The local work of as `many` participants, made again, must end where it did. Cost: a step of each.

    They are some of the `sources`, if given and if any of these took part.
    """
    drawn = round_.draw
    nodes = _workers(network, drawn, many, sources).to(network.device)
    last, size = int(drawn.batch.max()), len(network.data.train)
    if last >= size:
        raise ValueError(f"round {round_.t} drew sample {last}; the network has {size}. {SAME_NETWORK}")
    zero = rows_of(round_.before, nodes)
    state = {name: torch.zeros_like(value) for name, value in zero.state.items()}
    nothing = Perturbation(nodes, torch.zeros_like(nodes), torch.zeros_like(zero.theta), state)
    before, half, operator = zero.theta, round_.half.theta[nodes], Operator(network)
    rounding = 4 * torch.finfo(before.dtype).eps * before.norm(dim=1)
    allowed = _tolerance(network) * (half - before).norm(dim=1) + rounding
    missed = operator.replay(round_, nothing).theta
    astray = ~(missed.norm(dim=1) <= allowed)  # NaN is astray, too
    if not bool(astray.any()):
        return
    steady = bool(((missed - operator.replay(round_, nothing).theta).norm(dim=1) <= allowed).all())
    unsteady = "The model draws at random, and not from torch's generator: let it draw from there, or not at all."
    raise ValueError(
        f"replaying the local steps of participant {int(nodes[astray][0])} in round {round_.t} gives other parameters. "
        f"{SAME_NETWORK if steady else unsteady}"
    )


def _workers(network: Network, drawn: Draw, many: int, sources: Sequence[int] | None) -> Tensor:
    """Up to `many` of the participants that took the largest part in the round, of the sources where possible."""
    taken = drawn.conduct[0].cpu() if drawn.conduct else torch.ones(network.nodes)
    working = taken == taken.max()
    asked = torch.zeros_like(working)
    asked[slice(None) if sources is None else list(sources)] = True
    workers = (working & asked if bool((working & asked).any()) else working).nonzero().flatten()
    return workers[torch.linspace(0, len(workers) - 1, min(many, len(workers))).round().long()]


def _tolerance(network: Network) -> float:
    """What rounding may change in a repeated step, relative to the update: sums are taken in another order."""
    if network.learner.compute is not None or network.learner.autocast is not None:
        return 0.1
    single = network.initial.theta.dtype == torch.float32
    if single and network.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return 0.02  # TF32 has eleven bits
    return 10.0 * float(torch.finfo(network.initial.theta.dtype).eps ** 0.5)


_separable: MutableMapping[Learner, set[tuple[int, ...]]] = WeakKeyDictionary()


def check_samples_are_separate(network: Network, drawn: Draw, before: Participants) -> None:
    """A sample has a score of its own where no other sample's output, and no other's part of the loss, depends on it.

    Both are tried on batches that were drawn: change some samples, and see whether the others notice, until each has
    been among the changed while any other was not. Class weights, ignored targets and sums are fine: what each sample
    adds to the gradient is its own. Cost: 2 log₂(batch) forward passes for a few participants, once a shape of batches.
    """
    known = _separable.setdefault(network.learner, set())
    if (form := tuple(drawn.batch.shape)) in known:
        return
    for phase, group in alike_parts(network, drawn):
        inputs = load(network, phase, group.nodes[:PROBED], group=group)
        for place, k in enumerate(group.nodes[:PROBED]):
            _check_batch(network, rows_of(before, k), at(inputs.x, (place, 0)), inputs.y[place, 0])
    known.add(form)


def _check_batch(network: Network, one: Participants, x: Inputs, y: Tensor) -> None:
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
    by_output = _by_output(learner, before, y)
    for chosen in _halves(batch, y.device):
        rows = chosen.repeat_interleave(before.shape[0] // batch)
        after = outputs(tree_map(lambda part, chosen=chosen: _changed(part, chosen), x))
        if _differ(before[~rows], after[~rows], 100 * torch.finfo(before.dtype).eps):
            raise ValueError(f"{_culprit(learner)} Score participants, or use GroupNorm or LayerNorm.")
        by_changed = _by_output(learner, _changed(before, rows), _rotated(y, chosen))
        if _differ(by_output[~rows], by_changed[~rows], torch.finfo(before.dtype).eps ** 0.5):
            raise ValueError(
                "scores of samples need a loss to which each sample adds its own term; in this one, a sample's term "
                "depends on the other samples. Use a sum or a (weighted) mean over samples, or score participants."
            )


def _halves(batch: int, device: torch.device) -> Iterator[Tensor]:
    """Masks of samples such that for every pair (i, j) some mask has i and not j: by the bits of their places."""
    places = torch.arange(batch, device=device)
    for bit in range((batch - 1).bit_length()):
        chosen = (places >> bit) % 2 == 1
        yield chosen
        yield ~chosen


def _by_output(learner: Learner, outputs: Tensor, y: Tensor) -> Tensor:
    with torch.enable_grad():
        gradient: Tensor = grad(learner.loss)(outputs, y)
    return gradient


def _culprit(learner: Learner) -> str:
    for name, module in learner.training.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return (
                f"{name!r} is a BatchNorm: in training it makes every sample's output depend on the whole batch, so a "
                "sample has no score of its own."
            )
    return "in this model a sample's output depends on the other samples of its batch, so it has no score."


def _changed(values: Tensor, chosen: Tensor) -> Tensor:
    """The same with other values in the chosen rows; of integers (tokens), only values that occur."""
    changed = values.clone()
    if values.is_floating_point():
        ripple = torch.arange(values.numel(), device=values.device).view(values.shape).cos().to(values.dtype)
        changed[chosen] += (ripple * (values.abs().max() + 1))[chosen]
    else:
        changed[chosen] = values[~chosen][:1]
    return changed


def _rotated(y: Tensor, chosen: Tensor) -> Tensor:
    """The targets, the chosen ones in each other's places: what a weighted mean divides by stays the same."""
    rotated = y.clone()
    rotated[chosen] = y[chosen].roll(1, 0)
    return rotated


def _differ(one: Tensor, other: Tensor, relative: float) -> bool:
    """Whether more than rounding lies between the two; NaN is a difference."""
    return not bool(((one - other).abs() <= relative * one.abs().max()).all())
