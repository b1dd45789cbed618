"""Watch a user's own training loop, and turn it into checked rounds that every estimator can read."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cascadice import optimizers as pure_optimizers
from cascadice import topology
from cascadice.data import DataSet, Samples
from cascadice.data.batches import PADDING, padded, used
from cascadice.data.inputs import stacked
from cascadice.data.samples import WATCHED
from cascadice.engine.assembly import completed, weights
from cascadice.engine.dropout import GeneratorState, state_of
from cascadice.engine.groups import initial_state
from cascadice.engine.learner import Participants, flatten, learner
from cascadice.engine.networks import Group, Network
from cascadice.engine.rounds import Draw, Round, rows_of
from cascadice.engine.sample_buffer import SampleBuffer
from cascadice.engine.simulation import DivergedError
from cascadice.engine.torch_optim import check_alike, describe, pure_versions, same_step, settings, snapshot
from cascadice.engine.verification import check_gossip, verified
from cascadice.losses import Loss
from cascadice.optimizers import State


@dataclass(eq=False)
class _Local:
    """One participant's local work in the current round: what it carries now, and a record of each step."""

    now: Participants | None = None
    batches: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    drawing: GeneratorState = ()
    generators: list[GeneratorState] = field(default_factory=list)

    def before_forward(self, model: nn.Module, _: Any) -> None:
        """Note, just before a model runs, the generator state that its dropout starts from."""
        if model.training:
            self.drawing = state_of(next(model.parameters()).device)


class Recorder:
    """Watches participants' own models and torch.optim optimizers through rounds of training.

    Influence is measured by replay, so the first `verify` rounds are computed again and must come out the same. Dropout
    is repeated from the state that torch's generator had before each pass. Participants may differ in their number of
    steps, sit rounds out, and use a different batch size in each step. Cost: a copy of everybody's parameters and
    state for each local step, and a few more per round.

    Args:
        models: The participants' models, all of one architecture.
        optimizers: An optimizer of torch.optim for each model; they may differ in kind and options.
        loss: The training loss, a function of (outputs, targets).
        clip: The norm to which gradients are clipped, if they are.
        amp: The precision of `torch.autocast`, if passes and losses are computed in it.
        test: The data that influence is measured on by default.
        q: The participants' weights; by default equal.
        window: How many rounds to keep; all if None.
        verify: How many rounds to compute again.

    Raises:
        ValueError: If models are not alike, or optimizers do not step exactly their parameters.
        TypeError: If an optimizer is not one of torch.optim whose steps can be replayed.

    Example:
        >>> recorder = Recorder(models, optimizers, F.cross_entropy)
        >>> for t in range(rounds):
        ...     with recorder.round(W) as step:
        ...         for k in range(n):
        ...             loss = ...; loss.backward(); optimizers[k].step()     # as before
        ...             step(k, x, y, loss)                                   # participant k stepped on this batch
        ...         ...                                                       # gossip by W, as before
        >>> truth(recorder.network, recorder.rounds, evaluate_on(recorder.network, samples))
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], loss: Loss, *,
        clip: float | None = None, amp: torch.dtype | None = None, test: Samples | None = None,
        q: Tensor | Sequence[float] | None = None, window: int | None = None, verify: int = 1,
    ) -> None:  # fmt: skip
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 round, or None for all; found {window}.")
        self._models, self._optimizers = _listed(models, "a model"), _listed(optimizers, "an optimizer")
        check_alike(self._models, self._optimizers)
        self._settings = [settings(optimizer) for optimizer in self._optimizers]
        self._pure = pure_versions(self._models, self._optimizers)
        clipped = {step: step if clip is None else pure_optimizers.clip(step, clip) for step in self._pure}
        self._clipped = [clipped[step] for step in self._pure]
        self._learner = replace(learner(self._models[0], loss, self._clipped[0]), autocast=amp)
        device = next(self._models[0].parameters()).device
        self._test, self._samples = None if test is None else test.to(device), SampleBuffer(device)
        self._q, self._verify = weights(q, len(self._models)), verify
        self._rounds: deque[Round] = deque(maxlen=window)
        self._several, self._initial_state = len(clipped) > 1, State()
        if self._several:
            self._initial_state = initial_state(torch.stack([flatten(model) for model in self._models]), self._pure)
        self._initial = self._snapshot()
        self._strategy, self._may_skip_steps = "auto", amp == torch.float16  # as a GradScaler does
        self._groups: tuple[Group, ...] = ()

    @property
    def rounds(self) -> list[Round]:
        """The rounds that are kept, oldest first; the first one watched has the number 0."""
        return list(self._rounds)

    @property
    def network(self) -> Network:
        """The participants as a network that made these rounds; its data are their batches.

        Samples are overwritten once their round has left the window: read the network again after each round.
        """
        if not any(bool((round_.draw.batch != PADDING).any()) for round_ in self._rounds):
            raise ValueError(
                "no round in which somebody trained has been watched. Train inside `with recorder.round(W) as step:`."
            )
        draws = {round_.t: round_.draw for round_ in self._rounds}
        return replace(self._network_of(draws), partition=used([drawn.batch for drawn in draws.values()]))

    @contextmanager
    def round(self, W: Any) -> Iterator[Callable[..., None]]:
        """Watch one round of local steps and gossip by W.

        Args:
            W: The mixing matrix of this round.

        Yields:
            `step(k, x, y, loss=None, *, index=None)`, to be called after each `optimizer.step()`: participant k has
            stepped on the batch (x, y). `loss` is its training loss there (NaN if not given); `index` gives the samples
            numbers, in place of running ones.

        Raises:
            ValueError: If a step was not reported, or the round cannot be replayed or was not mixed by W.
            DivergedError: If parameters are no longer finite.
        """
        mixing, before = topology.matrix(W), self._start_round()
        if mixing.shape[0] != len(self._models):
            raise ValueError(f"W must be for {len(self._models)} participants; it has {mixing.shape[0]} rows.")
        work = [_Local() for _ in self._models]
        with ExitStack() as hooks:
            for k, (model, optimizer, own) in enumerate(zip(self._models, self._optimizers, work, strict=True)):
                hooks.enter_context(optimizer.register_step_pre_hook(partial(self._before_step, own, k)))
                hooks.enter_context(model.register_forward_pre_hook(own.before_forward))
            yield partial(self._record_step, work)
        closed = self._finish(mixing, before, work)
        if len(self._rounds) == self._rounds.maxlen:
            self._samples.free(self._rounds[0].draw.batch)
        self._rounds.append(closed)

    def _row(self, k: int) -> Participants:
        """What participant k carries, with the initial value of any state that its optimizer does not use."""
        row = snapshot(self._models[k], self._optimizers[k], self._pure[k])
        others = {name: value[k] for name, value in self._initial_state.items()}
        return row._replace(state=others | row.state)

    def _snapshot(self) -> Participants:
        participants: Participants = stacked(map(self._row, range(len(self._models))))
        return participants

    def _start_round(self) -> Participants:
        now = self._snapshot()
        if not self._rounds:
            self._initial = now
            return now
        last = self._rounds[-1].after
        if not all(map(torch.equal, tree_leaves(now), tree_leaves(last))):
            raise ValueError(
                "participants must not change between rounds, or influence would be lost on the way; they did. "
                "Train and gossip inside `with recorder.round(W)`, or start a new recorder."
            )
        return last

    def _before_step(self, work: _Local, k: int, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note the learning rate just before the optimizer steps: only then is it surely the one that is used."""
        if bool(getattr(optimizer, "found_inf", False)):  # a fused optimizer with a GradScaler skips this step
            return
        now = settings(optimizer)
        if not same_step(now, was := self._settings[k]):
            ratios = " The rates of parameter groups must keep their ratios." if now[:2] == was[:2] else ""
            raise ValueError(
                f"only the learning rate may change while watched; participant {k} has {describe(now)}.{ratios}"
            )
        work.rates.append(now.lr)

    def _record_step(self, work: list[_Local], k: int, x: Any, y: Any, loss: Any = None, *, index: Any = None) -> None:
        if not 0 <= k < len(work):
            raise ValueError(f"participants are numbered from 0 to {len(work) - 1}; found {k}.")
        own = work[k]
        steps = len(own.rates) - len(own.batches)
        if steps == 0 and self._may_skip_steps:
            return
        if steps == 0 and own.batches:
            raise ValueError(
                f"step({k}, …) was called again without an optimizer step of participant {k} in between. Call it once "
                "after each optimizer.step()."
            )
        if steps != 1:
            raise ValueError(f"step({k}, x, y) must follow each optimizer.step() of {k}; there were {steps} since.")
        own.batches.append(self._samples.put(x, y, index))
        own.generators.append(own.drawing)
        own.losses.append(float("nan") if loss is None else float(torch.as_tensor(loss).detach()))
        own.now = self._row(k)

    def _finish(self, W: Tensor, before: Participants, work: list[_Local]) -> Round:
        """The round that has just ended, checked."""
        t, batch = self._rounds[-1].t + 1 if self._rounds else 0, _batch(work, self._may_skip_steps)
        half: Participants = stacked([own.now or rows_of(before, k) for k, own in enumerate(work)])
        theta = half.theta
        if not bool(torch.isfinite(theta).all()):
            raise DivergedError(t, int((~torch.isfinite(theta)).any(1).nonzero()[0]))
        losses = [sum(own.losses) / max(1, len(own.losses)) for own in work]  # 0 if it did not train
        states = tuple(tuple(own.generators) for own in work)
        drawn = Draw(t, batch, W, _rate(work, theta, self._settings[0].lr), (), states)
        closed = Round(drawn, before, half, self._snapshot(), theta.new_tensor(losses))
        worked = any(own.batches for own in work)
        if worked and self._strategy == "auto":
            network = completed(self._network_of({0: closed.draw._replace(t=0)}), self._clipped)
            self._learner, self._strategy, self._groups = network.learner, network.strategy, network.groups
        if not self._learner.stochastic:
            closed = closed._replace(draw=drawn._replace(generators=()))
        elif not all(state for own in work for state in own.generators):
            raise ValueError(
                "a model that draws at random (dropout) must run where it is watched, in training mode, as its draws "
                "are made again; somebody's did not."
            )
        if worked and self._verify > 0:
            closed, self._verify = verified(self._network_of({t: closed.draw}), closed), self._verify - 1
        check_gossip(closed)
        return closed._replace(after=closed.after._replace(state=half.state))

    def _network_of(self, draws: dict[int, Draw]) -> Network:
        """The network that drew these rounds."""
        samples = self._samples.samples
        test = samples.subset(torch.arange(0)) if self._test is None else self._test
        data = DataSet(WATCHED, samples, test, ())
        batches, mixing, rate, states = (partial(_recorded, draws, part) for part in ("batch", "W", "lr", "generators"))
        return Network(
            self._learner, self._initial, data, batches, mixing, rate, self._q, 0, self._strategy, groups=self._groups,
            generators=states, uneven=self._several or any(map(_uneven, draws.values())),
        )  # fmt: skip


def _listed(each: Iterable[Any], what: str) -> list[Any]:
    if not isinstance(each, Iterable):
        raise TypeError(f"a list with {what} for each participant is needed; found one {type(each).__name__}.")
    return list(each)


def _recorded(draws: dict[int, Draw], part: str, t: int) -> Any:
    if t > max(draws):
        many = f"{max(draws) + 1} round{'s' * (max(draws) > 0)}"
        raise ValueError(f"only {many} were recorded, so there is no round {t}. Record more, or ask for fewer rounds.")
    if t not in draws:
        raise ValueError(f"round {t} is not among those kept, {min(draws)} to {max(draws)}. Give a larger window.")
    return getattr(draws[t], part)


def _uneven(drawn: Draw) -> bool:
    return torch.as_tensor(drawn.lr).dim() > 1 or bool((drawn.batch == PADDING).any())


def _batch(work: list[_Local], idle: bool) -> Int[Tensor, "n steps size"]:
    """The numbers of everybody's samples, padded; `idle` says whether a round without any step is allowed."""
    for k, own in enumerate(work):
        if len(own.rates) != len(own.batches):
            raise ValueError(
                f"step({k}, x, y) must follow each optimizer.step() of {k}; the last one was not reported."
            )
    if not idle and not any(own.batches for own in work):
        raise ValueError("somebody must make a local step in a round; nobody did.")
    return padded([own.batches for own in work])


def _rate(work: list[_Local], like: Tensor, default: float) -> float | Tensor:
    """The learning rate of the round: one for all, one for each participant or, if it changes, one for each step."""
    usual = next((own.rates[0] for own in work if own.rates), default)
    each = [own.rates or [usual] for own in work]  # the rate of those that do not train is never used
    if all(rate == usual for own in each for rate in own):
        return usual
    steps = max(map(len, each)) if any(len(set(own)) > 1 for own in each) else 1
    rows = [own[:steps] + own[-1:] * (steps - len(own)) for own in each]
    return torch.tensor(rows if steps > 1 else [row[0] for row in rows], dtype=like.dtype, device=like.device)
