"""Reverse gossip: one sweep backwards over the rounds scores every participant and every single sample at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.fast.captured_rounds import Stage, captures
from cascadice.engine.fast.cuda_graphs import recorded
from cascadice.engine.fast.hooks import Tape
from cascadice.engine.fast.rows import each_row, over_rows
from cascadice.engine.fast.tape import Layers, read
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network, draws_inside, known_layers, terms
from cascadice.engine.rounds import Round
from cascadice.influence.carrying import check_differentiable, check_samples_are_apart
from cascadice.influence.cascades import check_form, check_recording, check_rounds
from cascadice.influence.evaluation import Evaluation, slopes
from cascadice.influence.pulling import Adjoint, factors, from_tape, pulled, read_row
from cascadice.optimizers import State
from cascadice.topology import gossip_transposed


class Slopes:
    """q_k ∇L(θ_k^t) of rounds looked at before, by t, in memory that is used again: windows overlap."""

    def __init__(self) -> None:
        self.at: dict[int, Tensor] = {}
        self.free: list[Tensor] = []
        self.scratch: Tensor | None = None
        self.pulled: Tensor | None = None

    def find(
        self, t: int, network: Network, evaluation: Evaluation, participants: Participants
    ) -> Float[Tensor, "n d"]:
        """Those of these participants, before round t."""
        if t not in self.at:
            self.at[t] = weighted_slopes(network, evaluation, participants, self.room())
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
    evaluation: Evaluation,
    *,
    direct: Float[Tensor, "n d"] | None = None,
    known: Slopes | None = None,
) -> Adjoint:
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
    lam = Adjoint(at.find(last.t + 1, network, evaluation, last.after), _zeros(last.after.state))
    for done in reversed(rounds[1:]):
        passed = _received(done, lam, at.scratch)
        at.scratch = passed.theta
        lam = pull(network, done, passed, at.pulled)
        at.pulled = lam.theta
        lam.theta.add_(at.find(done.t, network, evaluation, done.before))
    if direct is None:
        own = at.find(first.t, network, evaluation, first.half._replace(theta=first.before.theta))
    else:
        own = weighted_slopes(network, evaluation, first.half._replace(theta=direct))
    at.scratch = gossip_transposed(first.W, lam.theta, plus=own, out=at.scratch)
    return Adjoint(at.scratch, lam.state)


def weighted_slopes(
    network: Network, evaluation: Evaluation, participants: Participants, into: Tensor | None = None
) -> Float[Tensor, "n d"]:
    """q_k ∇L(θ_k; z'), in `into` if given."""
    theta, _, buffers = participants
    return slopes(network, evaluation, theta, buffers, range(network.nodes), network.weights, into)[1]


def _received(done: Round, lam: Adjoint, into: Tensor | None = None) -> Adjoint:
    """Through the gossip of the round, backwards: what everybody's θ^{t+½} is worth to those who receive it."""
    return lam._replace(theta=gossip_transposed(done.W, lam.theta, out=into))


def pull(network: Network, done: Round, lam: Adjoint, into: Tensor | None = None) -> Adjoint:
    """λ through everybody's local work of the round, backwards: the transposed derivative of the whole step."""
    return pulled(network, done, lam, into, score=False, bend=True)[0]


def by_participant(first: Round, sensitivity: Adjoint) -> Float[Tensor, " n"]:
    """A_jᵀ Δ_j: the r-hop influence of every participant's update in the first round."""
    return _of_updates(first.before, first.half, sensitivity)


def _of_updates(before: Participants, half: Participants, sensitivity: Adjoint) -> Float[Tensor, " n"]:
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


def by_sample(network: Network, first: Round, sensitivity: Adjoint) -> Float[Tensor, "n samples"]:
    """The part of every single sample: the derivative of its own loss along what its gradient is worth.

        score_i = cᵀ ∇ℓ_i / B,   c = derivative of A_jᵀ (θ, state)^{t+½} with respect to j's gradient   (−η A_j for SGD)

    No gradient of a sample is ever formed. Cost: as much as a training pass, a third of one if the round was taped. The
    loss must be a mean over samples. With several local steps, their batches follow one another.
    """
    check_form(network, first)
    check_samples_are_apart(network)
    if _readable(network, first):
        return from_tape(network, first, sensitivity)
    return pulled(network, first, sensitivity, None, score=True, bend=first.draw.batch.shape[1] > 1)[1]


def _readable(network: Network, first: Round) -> bool:
    """Whether scores can be read from the round's tape."""
    return bool(first.tape) and first.draw.batch.shape[1] == 1 and network.learner.optimizer.linear


def by_both(
    network: Network, first: Round, sensitivity: Adjoint
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n samples"]]:
    """`by_participant` and `by_sample`; of a taped round on CUDA as one graph, for launches take longer than work."""
    if not (captures(network) and _readable(network, first)):
        return by_participant(first, sensitivity), by_sample(network, first, sensitivity)
    check_form(network, first)
    check_samples_are_apart(network)
    stacked = (sensitivity, factors(network, first.draw), *terms(network, first.draw))
    whole, samples = _recorded_both(network, known_layers(network, first.draw))(
        first.before, first.half, first.tape[0], *stacked
    )
    return whole.clone(), samples.clone()


@lru_cache(maxsize=4)
def _recorded_both(network: Network, layers: Layers) -> Callable[..., tuple[Tensor, Tensor]]:
    samples = over_rows(read_row, network.strategy, layers.learner, layers, read, steady=True)

    def both(before: Participants, half: Participants, tape: Tape, worth: Adjoint, *own: Any) -> Any:
        return _of_updates(before, half, worth), samples(tape, *worth, *own)

    return recorded(both)


class HorizonScores(NamedTuple):
    """What the updates of round t did to the final models, to first order: of participants, and of their samples."""

    t: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"]


def full_horizon(network: Network, backwards: Iterable[Round], evaluation: Evaluation) -> Iterator[HorizonScores]:
    """The influence of every participant, sample and round on the models after the last round, in one sweep.

        λ_k^T = q_k ∇L(θ_k^T)      λ_k^t = (I − η H_k) Σ_l W[l, k] λ_l^{t+1}      score_i = −η/B ∇ℓ_iᵀ Σ_k W[k, j] λ_k

    `backwards` are the rounds from the last to the first, e.g. read one by one from a recording. Scores and Hessian
    products share one pass. Cost: about two training passes a round, whatever the number of rounds and samples.
    """
    check_differentiable(network)
    check_samples_are_apart(network)
    lam: Adjoint | None = None
    after: int | None = None
    back = _back(network)
    for done in backwards:
        check_form(network, done)
        if lam is None:
            check_recording(network, [done], many=1)  # a sweep may be short, and each step is as long as its round
            lam = Adjoint(weighted_slopes(network, evaluation, done.after), _zeros(done.after.state))
        elif done.t + 1 != after:
            raise ValueError(f"rounds must go back one by one; found {done.t} after {after}.")
        lam, whole, samples = back(done, lam)
        after = done.t
        yield HorizonScores(done.t, whole, samples)
    if lam is None:
        raise ValueError("at least one round is needed to go back from; found none.")


Back = Callable[[Round, Adjoint], tuple[Adjoint, Float[Tensor, " n"], Float[Tensor, "n samples"]]]
"""(round, λ after it) -> λ before it, which the next use may overwrite; the scores of participants and of samples."""


def _back(network: Network) -> Back:
    return _recorded_back(network) if captures(network) else _plain_back(network)


def _plain_back(network: Network) -> Back:
    room: Tensor | None = None

    def back(done: Round, lam: Adjoint) -> tuple[Adjoint, Tensor, Tensor]:
        nonlocal room
        passed = _received(done, lam, room)
        lam, samples = pulled(network, done, passed, lam.theta, score=True, bend=True)
        room = passed.theta
        return lam, by_participant(done, passed), samples

    return back


@lru_cache(maxsize=4)
def _recorded_back(network: Network) -> Back:
    """The same as a graph: its many small launches would take longer than their work."""
    stages: dict[tuple[torch.Size, int], tuple[Stage, Callable[..., Any]]] = {}

    def recording(stage: Stage) -> Callable[..., Any]:
        def back(before: Participants, half: Participants, lam: Adjoint) -> Any:
            done = Round(stage.draw, before, half, half, lam.theta[:, 0])
            return _plain_back(network)(done, lam)

        return recorded(back, in_place=False)  # a recording comes by once

    def back(done: Round, lam: Adjoint) -> tuple[Adjoint, Tensor, Tensor]:
        if draws_inside(network, done.t) or done.W.layout != torch.strided:
            return _plain_back(network)(done, lam)
        form = (done.draw.batch.shape, len(done.draw.conduct))
        if form not in stages:
            stage = Stage(done.draw, lam.theta.device, lam.theta.dtype)
            stages[form] = (stage, recording(stage))
        stage, replayed = stages[form]
        stage.put(done.draw)
        lam, whole, samples = replayed(done.before, done.half, lam)
        return lam, whole.clone(), samples.clone()

    return back


def _zeros(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}
