"""Reverse gossip: one sweep backwards over the rounds scores every participant and every single sample at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp
from torch.utils._pytree import tree_map

from cascadice.engine.capture import Stage, captures
from cascadice.engine.execution import each_row, over_rows, twin
from cascadice.engine.graphs import recorded
from cascadice.engine.learner import Learner, Participants, gradient, pure_step
from cascadice.engine.networks import Network, draws_inside, known_layers, load, terms
from cascadice.engine.reel import Tape
from cascadice.engine.rounds import Draw, Round
from cascadice.engine.tape import (
    Along,
    Layers,
    eager_along,
    eager_read,
    generic_along,
    pure_along,
    read,
    twice_differentiable,
)
from cascadice.influence.carrying import check_differentiable, check_samples_are_apart
from cascadice.influence.cascades import check_form, check_recording, check_rounds
from cascadice.influence.judging import Judge, slopes
from cascadice.optimizers import Optimizer, State
from cascadice.topology import gossip_transposed

Factors = tuple[()] | tuple[Tensor, Tensor]


class Sensitivity(NamedTuple):
    """A_j: how the judged sum changes with what participant j carries after its local step in the first round."""

    theta: Float[Tensor, "n d"]
    state: State


class Slopes:
    """q_k ∇L(θ_k^t) of rounds looked at before, by t, in memory that is used again: windows overlap."""

    def __init__(self) -> None:
        self.at: dict[int, Tensor] = {}
        self.free: list[Tensor] = []
        self.scratch: Tensor | None = None
        self.pulled: Tensor | None = None

    def find(self, t: int, network: Network, judge: Judge, participants: Participants) -> Float[Tensor, "n d"]:
        """Those of these participants, before round t."""
        if t not in self.at:
            self.at[t] = weighted_slopes(network, judge, participants, self.room())
        return self.at[t]

    def room(self) -> Tensor | None:
        """Memory to write into."""
        return self.free.pop() if self.free else None

    def forget(self, t: int) -> None:
        """What was before round t will not be asked for again."""
        for old in [known for known in self.at if known < t]:
            self.free.append(self.at.pop(old))


def reverse_gossip(
    network: Network,
    rounds: Sequence[Round],
    judge: Judge,
    *,
    direct: Float[Tensor, "n d"] | None = None,
    known: Slopes | None = None,
) -> Sensitivity:
    """Backwards over consecutive rounds, from the last one's receivers to the sources of the first.

        λ_k ← q_k ∇L(θ_k) + (I − η H_k) Σ_l W[l, k] λ_l        A_j = q_j ∇L(θ_j^t) + Σ_k W[k, j] λ_k

    Theorem 2 of Zhu et al. 2025, transposed: influence of any piece Δ of j's update = A_jᵀ Δ. For optimizers with state
    the pair (θ, state) is pulled back. `direct` is where the effect on oneself is differentiated: θ^t unless given.
    Cost: a Hessian-vector product and an evaluation gradient a participant and hop; `known` remembers the gradients
    of real rounds, so that windows that overlap pay for one each, and what is returned is overwritten by its next use.
    """
    check_rounds(rounds)
    for done in rounds:
        check_form(network, done)
    check_differentiable(network)
    at = Slopes() if known is None or network.initial.buffers else known
    first, last = rounds[0], rounds[-1]
    lam = Sensitivity(at.find(last.t + 1, network, judge, last.after), _zeros(last.after.state))
    for done in reversed(rounds[1:]):
        passed = _received(done, lam, at.scratch)
        at.scratch = passed.theta
        lam = pull(network, done, passed, at.pulled)
        at.pulled = lam.theta
        lam.theta.add_(at.find(done.t, network, judge, done.before))
    if direct is None:
        own = at.find(first.t, network, judge, first.half._replace(theta=first.before.theta))
    else:
        own = weighted_slopes(network, judge, first.half._replace(theta=direct))
    at.scratch = gossip_transposed(first.W, lam.theta, plus=own, out=at.scratch)
    return Sensitivity(at.scratch, lam.state)


def weighted_slopes(
    network: Network, judge: Judge, participants: Participants, into: Tensor | None = None
) -> Float[Tensor, "n d"]:
    """q_k ∇L(θ_k; z'), in `into` if given."""
    theta, _, buffers = participants
    return slopes(network, judge, theta, buffers, range(network.nodes), network.weights, into)[1]


def _received(done: Round, lam: Sensitivity, into: Tensor | None = None) -> Sensitivity:
    """Through the gossip of the round, backwards: what everybody's θ^{t+½} is worth to those who receive it."""
    return lam._replace(theta=gossip_transposed(done.W, lam.theta, out=into))


def pull(network: Network, done: Round, lam: Sensitivity, into: Tensor | None = None) -> Sensitivity:
    """λ through everybody's local work of the round, backwards: the transposed derivative of the whole step."""
    return _backwards(network, done, lam, into, score=False, bend=True)[0]


def by_participant(first: Round, sensitivity: Sensitivity) -> Float[Tensor, " n"]:
    """A_jᵀ Δ_j: the r-hop influence of every participant's update in the first round."""
    return _of_updates(first.before, first.half, sensitivity)


def _of_updates(before: Participants, half: Participants, sensitivity: Sensitivity) -> Float[Tensor, " n"]:
    found = _dots(sensitivity.theta, half.theta, before.theta)
    for name, lam in sensitivity.state.items():
        found = found + _dots(lam, half.state[name], before.state[name])
    return found


def _dots(lam: Tensor, new: Tensor, old: Tensor) -> Float[Tensor, " n"]:
    """λ_j · (new_j − old_j), on CPU row by row: temporaries as large as everybody's parameters are fresh memory."""
    if lam.is_cuda:
        return _compiled_dots()(lam, new, old)
    rows = each_row(lambda _, k: (lam[k] * (new[k] - old[k])).sum().double(), len(lam), lam.device)
    return torch.stack(rows)


@cache
def _compiled_dots() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(lambda lam, new, old: (lam * (new - old)).reshape(len(lam), -1).sum(-1).double())


def by_sample(network: Network, first: Round, sensitivity: Sensitivity) -> Float[Tensor, "n samples"]:
    """The part of every single sample: the derivative of its own loss along what its gradient is worth.

        score_i = cᵀ ∇ℓ_i / B,   c = derivative of A_jᵀ (θ, state)^{t+½} with respect to j's gradient   (−η A_j for SGD)

    No gradient of a sample is ever formed. Cost: as much as a training pass, a third of one if the round was taped. The
    loss must be a mean over samples. With several local steps, their batches follow one another.
    """
    check_form(network, first)
    check_samples_are_apart(network)
    if _readable(network, first):
        return _from_tape(network, first, sensitivity)
    return _backwards(network, first, sensitivity, None, score=True, bend=first.drawn.batch.shape[1] > 1)[1]


def _readable(network: Network, first: Round) -> bool:
    """Whether scores can be read from the round's tape."""
    return bool(first.tape) and first.drawn.batch.shape[1] == 1 and network.learner.optimizer.linear


def by_both(
    network: Network, first: Round, sensitivity: Sensitivity
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n samples"]]:
    """`by_participant` and `by_sample`; of a taped round on CUDA as one graph, for launches take longer than work."""
    if not (captures(network) and _readable(network, first)):
        return by_participant(first, sensitivity), by_sample(network, first, sensitivity)
    check_form(network, first)
    check_samples_are_apart(network)
    stacked = (sensitivity, factors(network, first.drawn), *terms(network, first.drawn))
    whole, samples = _recorded_both(network, known_layers(network, first.drawn))(
        first.before, first.half, first.tape[0], *stacked
    )
    return whole.clone(), samples.clone()


@lru_cache(maxsize=4)
def _recorded_both(network: Network, layers: Layers) -> Callable[..., tuple[Tensor, Tensor]]:
    samples = over_rows(_read, network.strategy, layers.learner, layers, read, steady=True)

    def both(before: Participants, half: Participants, tape: Tape, worth: Sensitivity, *own: Any) -> Any:
        return _of_updates(before, half, worth), samples(tape, *worth, *own)

    return recorded(both)


class Scored(NamedTuple):
    """What the updates of round t did to the final models, to first order: of participants, and of their samples."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]


def full_horizon(network: Network, backwards: Iterable[Round], judge: Judge) -> Iterator[Scored]:
    """The influence of every participant, sample and round on the models after the last round, in one sweep.

        λ_k^T = q_k ∇L(θ_k^T)      λ_k^t = (I − η H_k) Σ_l W[l, k] λ_l^{t+1}      score_i = −η/B ∇ℓ_iᵀ Σ_k W[k, j] λ_k

    `backwards` are the rounds from the last to the first, e.g. read one by one from a recording. Scores and Hessian
    products share one pass. Cost: about two training passes a round, whatever the number of rounds and samples.
    """
    check_differentiable(network)
    check_samples_are_apart(network)
    lam: Sensitivity | None = None
    after: int | None = None
    back = _back(network)
    for done in backwards:
        check_form(network, done)
        if lam is None:
            check_recording(network, [done], many=1)  # a sweep may be short, and each step is as long as its round
            lam = Sensitivity(weighted_slopes(network, judge, done.after), _zeros(done.after.state))
        elif done.t + 1 != after:
            raise ValueError(f"rounds must go back one by one; found {done.t} after {after}.")
        lam, whole, samples = back(done, lam)
        after = done.t
        yield Scored(done.t, whole, samples)
    if lam is None:
        raise ValueError("at least one round is needed to go back from; found none.")


Back = Callable[[Round, Sensitivity], tuple[Sensitivity, Float[Tensor, " n"], Float[Tensor, "n samples"]]]
"""(round, λ after it) -> λ before it, which the next use may overwrite; the scores of participants and of samples."""


def _back(network: Network) -> Back:
    return _recorded_back(network) if captures(network) else _plain_back(network)


def _plain_back(network: Network) -> Back:
    room: Tensor | None = None

    def back(done: Round, lam: Sensitivity) -> tuple[Sensitivity, Tensor, Tensor]:
        nonlocal room
        passed = _received(done, lam, room)
        lam, samples = _backwards(network, done, passed, lam.theta, score=True, bend=True)
        room = passed.theta
        return lam, by_participant(done, passed), samples

    return back


@lru_cache(maxsize=4)
def _recorded_back(network: Network) -> Back:
    """The same as a graph: its many small launches would take longer than their work."""
    stages: dict[tuple[torch.Size, int], tuple[Stage, Callable[..., Any]]] = {}

    def recording(stage: Stage) -> Callable[..., Any]:
        def back(before: Participants, half: Participants, lam: Sensitivity) -> Any:
            done = Round(stage.drawn, before, half, half, lam.theta[:, 0])
            return _plain_back(network)(done, lam)

        return recorded(back, in_place=False)  # a recording comes by once

    def back(done: Round, lam: Sensitivity) -> tuple[Sensitivity, Tensor, Tensor]:
        if draws_inside(network, done.t) or done.W.layout != torch.strided:
            return _plain_back(network)(done, lam)
        form = (done.drawn.batch.shape, len(done.drawn.conduct))
        if form not in stages:
            stage = Stage(done.drawn, lam.theta.device, lam.theta.dtype)
            stages[form] = (stage, recording(stage))
        stage, replayed = stages[form]
        stage.put(done.drawn)
        lam, whole, samples = replayed(done.before, done.half, lam)
        return lam, whole.clone(), samples.clone()

    return back


def _backwards(
    network: Network, done: Round, lam: Sensitivity, into: Tensor | None, score: bool, bend: bool
) -> tuple[Sensitivity, Float[Tensor, "n samples"]]:
    """λ through the local work of the round and, if asked, the scores of its samples on the way."""
    layers = known_layers(network, done.drawn)
    learner = network.learner if layers is None else layers.learner
    shared = (_along(network.strategy, layers), score, bend)
    rows = over_rows(
        _pulled,
        network.strategy,
        learner,
        *shared,
        steady=True,
        into=torch.empty_like(lam.theta) if bend and into is None else into,
        fetch=lambda rows: load(network, done.drawn, rows)[:4],
    )
    with twice_differentiable():
        found = rows(done.before, *lam, factors(network, done.drawn))
    if not bend:  # then there was one step, and only its scores are asked for
        return lam, found.clone()
    theta, state, scores = found
    return Sensitivity(theta, {name: value.clone() for name, value in state.items()}), scores.clone()


@lru_cache(maxsize=16)
def _along(strategy: str, layers: Layers | None) -> Along:
    """One object for one way: what was compiled for it is found again."""
    if layers is None:
        return generic_along
    return partial(eager_along if strategy == "loop" else pure_along, layers)


def _pulled(
    learner: Learner, mine: Participants, theta: Tensor, state: State, factors: Factors, x: Tensor, y: Tensor,
    lr: Tensor, conduct: Any, along: Along, score: bool, bend: bool,
) -> Any:  # fmt: skip
    """One participant's steps, last to first: through the optimizer to the gradient, through that to the parameters.

    c = ∂(update)/∂g ᵀ λ        λ ← λ + ∂(update)/∂θ ᵀ λ + H c
    """
    sent, own_theta, own_state = _conducted(theta, state, conduct)
    theta, state = sent
    carried = _before_each(learner, mine, x, y, lr)
    scores: list[Tensor] = []
    for i in reversed(range(x.shape[0])):
        at = carried[i]
        if factors:
            by_slope, by_theta = factors
            found, bent = along(learner, at.theta, at.buffers, x[i], y[i], theta, score, bend)
            found = None if found is None else by_slope * found
            theta = theta if bent is None else torch.addcmul(torch.addcmul(theta, theta, by_theta), bent, by_slope)
        else:
            worth, by_state, by_theta = _worth(learner, at, x[i], y[i], lr, theta, state)
            found, bent = along(learner, at.theta, at.buffers, x[i], y[i], worth, score, bend)
            theta, state = (theta, state) if bent is None else (bent.add_(theta).add_(by_theta), by_state)
        scores.insert(0, theta.new_zeros(0) if found is None else found)
    if not bend:
        return scores[0]
    kept = {name: value + own_state[name] for name, value in state.items()} if own_state else state
    return theta if own_theta is None else theta + own_theta, kept, torch.cat(scores)


def _conducted(theta: Tensor, state: State, conduct: Any) -> tuple[tuple[Tensor, State], Tensor | None, State]:
    """What of λ reaches the work that was done, and what goes past it; see `local_steps`."""
    if not conduct:
        return (theta, state), None, {}
    taken, factor = conduct
    done = taken * factor * theta, {name: taken * lam for name, lam in state.items()}
    return done, theta - done[0], {name: lam - done[1][name] for name, lam in state.items()}


def _before_each(learner: Learner, mine: Participants, x: Tensor, y: Tensor, lr: Tensor) -> list[Participants]:
    carried = [mine]
    for i in range(x.shape[0] - 1):
        theta, state, buffers = carried[-1]
        carried.append(Participants(*pure_step(learner, theta, state, buffers, x[i], y[i], lr, None)[:3]))
    return carried


def factors(network: Network, drawn: Draw) -> Factors:
    """∂(update)/∂g and ∂(update)/∂θ of everybody, [n] each, of an optimizer that treats all parameters alike."""
    optimizer = network.learner.optimizer
    return () if optimizer.descend is None else _factors(optimizer, terms(network, drawn)[0])


@lru_cache(maxsize=16)  # to differentiate takes as long as a small model's step, and rates are the same tensor if equal
def _factors(optimizer: Optimizer, lr: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    one = lr.new_ones(len(lr), 1)
    _, back = vjp(lambda g, p: optimizer.update(g, {}, p, lr)[0], one, one)
    by_slope, by_theta = back(one)
    return by_slope[:, 0], by_theta[:, 0]


def _worth(
    learner: Learner, mine: Participants, x: Tensor, y: Tensor, lr: Tensor, theta: Tensor, state: State
) -> tuple[Tensor, State, Tensor]:
    """What the gradient, the state and the parameters are worth to the optimizer's step, given what its results are."""
    optimizer = learner.optimizer  # one that is linear has the same derivative at any gradient
    slope = mine.theta if optimizer.linear else gradient(learner, mine.theta, mine.buffers, x, y)[0]
    _, back = vjp(lambda g, s, p: optimizer.update(g, s, p, lr), slope, mine.state, mine.theta)
    worth, by_state, by_theta = back((theta, state))
    return worth, by_state, by_theta


def _from_tape(network: Network, first: Round, sensitivity: Sensitivity) -> Float[Tensor, "n samples"]:
    layers = known_layers(network, first.drawn)
    assert layers is not None
    stacked = (*sensitivity, factors(network, first.drawn), *terms(network, first.drawn))
    if not isinstance(first.tape, list):
        found: Tensor = over_rows(_read, network.strategy, layers.learner, layers, read, steady=True)(
            first.tape[0], *stacked
        )
        return found.clone()

    def row(worker: int, k: int) -> Tensor:
        theta, state, own, lr, conduct = tree_map(lambda tensor: tensor[k], stacked)
        return _read(twin(layers.learner, worker), first.tape[k][0], theta, state, own, lr, conduct, layers, eager_read)

    return torch.stack(each_row(row, network.nodes, network.device))


def _read(
    learner: Learner, tape: Tape, theta: Tensor, state: State, factors: Factors, lr: Tensor, conduct: Any,
    layers: Layers, reading: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    sent, _, _ = _conducted(theta, state, conduct)
    if factors:
        return factors[0] * reading(layers, learner, tape, sent[0])
    # the derivative of a step that is linear in the gradient is the same at any gradient, state and parameters
    _, back = vjp(lambda slope: learner.optimizer.update(slope, state, theta, lr), theta)
    return reading(layers, learner, tape, back(sent)[0])


def _zeros(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}
