"""What a round is: local work, then send, then exchange. Each part can be applied, pushed through and pulled through.

                 apply                        push (jvp)                         pull (vjp)
    work         θ^t -> θ^{t+½} = θ^t + Δ     δ^{t+½} = (I − η H) δ^t            λ^t = (I − η H) λ^{t+½} + past
    send         sent = θ^t + α C(Δ)          δ = δ^t + α C′ (δ^{t+½} − δ^t)     λ^{t+½} = α C′ λ; past = λ − λ^{t+½}
    exchange     θ^{t+1} = W sent             δ^{t+1} = W δ                      λ = Wᵀ λ^{t+1}

C is what misbehaviour, compression and noise do to an update (see `send`); otherwise C(Δ) = Δ, α = 1 and `past` is 0.
Derivatives are of the pair (θ, optimizer state).

Everything else composes these. Ground truth applies rounds again without an update; first order pushes a change
forwards; reverse gossip pulls adjoints backwards. How rows are run fast (threads, vmap, compile, CUDA graphs, tapes,
reused buffers) is in `engine/fast`, which only this file imports.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import send
from cascadice.engine.evaluation import Evaluation
from cascadice.engine.exchange.by_rule import ByRule, apply_rule
from cascadice.engine.exchange.stacked import Averaging, Exchange
from cascadice.engine.fast import captured_rounds
from cascadice.engine.fast.buffers import RoundBuffers, Scratch, copy_into, rotating
from cascadice.engine.fast.evaluation_passes import row_gradients, row_losses, row_measures
from cascadice.engine.fast.pull import dot_with_update
from cascadice.engine.fast.runner import Rows, Runner
from cascadice.engine.fast.strategies import STRATEGIES, choose
from cascadice.engine.fast.tape import Layers
from cascadice.engine.learner import Participants
from cascadice.engine.networks import UNWEIGHTED, Network, Nodes, Weights, draws_within_round
from cascadice.engine.optimizer_checks import check_differentiable
from cascadice.engine.rounds import Adjoint, Draw, MixingRule, Perturbation, Pulled, Round, Tangent, difference, rows_of

__all__ = ["STRATEGIES", "Exchange", "Operator", "Pulled", "choose", "row_measures"]


class Operator:
    """The rounds of a network as one operator, to apply, push through and pull back through.

    Methods whose names end in `_rows`, and `work`, take any rows: `nodes` names the participant that each row stands
    for (some participants, or one several times; None for all in order), and `weights` says how much of each update
    and sample counts. The other methods take a whole `Round`.

    It keeps buffers and evaluation gradients between calls, so later calls overwrite the adjoints that it returned.

    Args:
        network: The network whose rounds these are.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Example:
        >>> operator = Operator(network)
        >>> round = operator.apply(draw(network, 0), network.initial)
        >>> adjoint = Adjoint(operator.objective(evaluation, round.after), {})
        >>> scores = operator.pull_scored(round, adjoint).participants
    """

    def __init__(self, network: Network, exchange: Exchange | None = None) -> None:
        self.network = network
        self._exchange: Exchange = Averaging(network.blocks) if exchange is None else exchange
        self._runner, self._scratch = Runner(network), Scratch()
        self._captures = captured_rounds.should_capture(network)

    def fresh(self) -> "Operator":
        """The same operator with buffers of its own."""
        return Operator(self.network, self._exchange)

    def exchange(self, round_: Round) -> Exchange:
        """The exchange that mixed this round."""
        return self._exchange if round_.rule is None else ByRule()

    # apply

    def apply(
        self, drawn: Draw, before: Participants, weights: Weights = UNWEIGHTED, *, rule: MixingRule | None = None,
        strategy: str | None = None, layers: Layers | None = None, buffers: RoundBuffers | None = None,
    ) -> Round:  # fmt: skip
        """One round of everybody: a pure function of what was drawn and of the participants before it.

        Args:
            drawn: Batches, mixing matrix and learning rates; see `engine.draw`.
            before: What the participants carry before the round.
            weights: How much of each update and sample counts.
            rule: Mixes in place of `drawn.W`; it may also choose another W.
            strategy: How to run local work; by default a loop or vmap, never compiled.
            layers: The model's layers, if the round is to be taped.
            buffers: Memory for the results.
        """
        half, loss, tape = self.work(drawn, before, None, weights, strategy=strategy, layers=layers, buffers=buffers)
        round_ = Round(drawn, before, half, half, loss, tape)
        if rule is not None and (round_ := apply_rule(round_, rule, self.network.blocks)).rule is not None:
            return round_
        after = self._exchange.apply(round_, half, None if buffers is None else buffers.after)
        return round_._replace(draw=round_.draw._replace(W=self._exchange.mixed(round_)), after=after)

    def work(
        self, drawn: Draw, before: Participants, nodes: Nodes = None, weights: Weights = UNWEIGHTED, **how: Any
    ) -> tuple[Participants, Tensor, Any]:
        """Local work and send: what these rows send, their training losses and their tapes."""
        half, loss, tape = self._runner.work(Rows(drawn, before, nodes, weights.samples), **how)
        half = send.apply(self.network, drawn, before, half, nodes)
        if drawn.conduct and (buffers := how.get("buffers")) is not None:  # a CUDA graph must find it in the buffers
            half, loss = copy_into((half, loss), buffers.half, buffers.loss)
        return (send.part(before, half, weights.updates[0]) if weights.updates else half), loss, tape

    def train(
        self, draws: Iterator[Draw], before: Participants, window: int | None, taped: bool, rule: MixingRule | None
    ) -> Iterator[Round]:
        """The rounds of these draws, one after the other; see `simulate`."""
        buffers_in_turn = rotating(before, window or 0) if window is not None or self._captures else repeat(None)
        play: Callable[..., Round] | None = None
        here = before  # what a graph reads: always at one of the few addresses of the buffers
        for drawn, buffers in zip(draws, buffers_in_turn, strict=False):
            play = play or self._player(drawn, taped, rule)
            round_ = play(drawn, here, buffers)
            here = round_.after
            if buffers is not None and window is None:  # the caller may keep the round, so it gets a copy
                half, after, loss, tape = tree_map(torch.clone, (round_.half, round_.after, round_.loss, round_.tape))
                round_ = round_._replace(before=before, half=half, after=after, loss=loss, tape=tape)
            yield round_
            before = round_.after

    def _player(self, drawn: Draw, taped: bool, rule: MixingRule | None) -> Callable[..., Round]:
        """`apply` for rounds like the one drawn, captured as CUDA graphs where that pays."""
        strategy = self.network.strategy
        taped = taped and not self.network.groups and not self.network.uneven and self.network.sample_weights is None
        layers = self._runner.layers(drawn) if taped else None

        def play(drawn: Draw, before: Participants, buffers: RoundBuffers | None) -> Round:
            return self.apply(drawn, before, rule=rule, strategy=strategy, layers=layers, buffers=buffers)

        return captured_rounds.captured(play, self._capturable) if self._captures and rule is None else play

    def _capturable(self, drawn: Draw) -> bool:
        """Whether a captured graph can play this draw: nothing else is drawn inside the round, and W is dense."""
        return not draws_within_round(self.network, drawn.t) and drawn.W.layout == torch.strided

    # push

    def replay(self, round_: Round, change: Perturbation) -> Perturbation:
        """The exact effect of a change before local work on what is sent. Cost: a training step per pair."""
        changed, _, _ = self.work(round_.draw, change.added_to(round_.before), change.nodes.tolist())
        return difference(changed, round_.half, change)

    def push(self, round_: Round, tangent: Perturbation, at: Perturbation | None = None) -> Perturbation:
        """The first-order effect of a change before local work on what is sent.

            δ^{t+½} = (I − η H) δ^t       for SGD; for optimizers with state, of the pair (θ, state)

        The derivative is taken at the round's own parameters, or `at` a change of them. Cost: a Hessian-vector product
        per pair.
        """
        before = rows_of(round_.before, tangent.nodes) if at is None else at.added_to(round_.before)
        own = Tangent(tangent.theta, tangent.state)
        _, change = self.push_rows(round_.draw, before, own, tangent.nodes.tolist())
        return tangent._replace(theta=change.theta, state=change.state)

    def push_rows(
        self, drawn: Draw, before: Participants, tangent: Tangent, nodes: Nodes = None, weights: Weights = UNWEIGHTED,
        moving: Weights = UNWEIGHTED,
    ) -> tuple[Participants, Tangent]:  # fmt: skip
        """What these rows send, and its derivative along a change of (θ, state) and, if `moving`, of their weights."""
        self._check_differentiable()
        d_samples = moving.samples or tree_map(torch.zeros_like, weights.samples)
        half, change = self._runner.push(Rows(drawn, before, nodes, weights.samples), tangent, d_samples)
        half = send.apply(self.network, drawn, before, half, nodes)
        change = send.push(self.network, drawn, before, half, tangent, change, nodes)
        if not weights.updates:
            return half, change
        alpha = weights.updates[0]
        velocity = moving.updates[0] if moving.updates else torch.zeros_like(alpha)
        return send.part(before, half, alpha), send.push_part(tangent, change, before, half, alpha, velocity)

    # pull

    def pull(self, round_: Round, adjoint: Adjoint) -> Adjoint:
        """λ^{t+1} -> λ^t through the whole round. Cost: a Hessian-vector product per participant."""
        half = self.pull_exchange(round_, adjoint)
        before, _, _ = self.pull_rows(*round_[:3], half, scores=False, out=self._scratch.pulled)
        self._scratch.pulled = before.theta
        return before

    def pull_exchange(self, round_: Round, adjoint: Adjoint, plus: Tensor | None = None) -> Adjoint:
        """λ^{t+1} -> λ^{t+½} through the exchange alone, plus `plus`."""
        half = self.exchange(round_).pull(round_, adjoint, plus, self._scratch.exchanged)
        self._scratch.exchanged = half.theta
        return half

    def pull_rows(
        self, drawn: Draw, before: Participants, sent: Participants, adjoint: Adjoint, nodes: Nodes = None,
        weights: Weights = UNWEIGHTED, *, scores: bool, through: bool = True, out: Tensor | None = None,
    ) -> tuple[Adjoint, Float[Tensor, " rows"], Float[Tensor, "rows samples"]]:  # fmt: skip
        """`push_rows` transposed: from the adjoint of what these rows `sent` to that of what they had before.

        Also what inner steps add to λ^{t+½} · Δ, and the samples' `scores`: alone, and of one step, without `through`.
        """
        self._check_differentiable()
        of_half, past = send.pull(self.network, drawn, before, sent, adjoint, nodes, weights.updates)
        rows = Rows(drawn, before, nodes, weights.samples)
        pulled, inner, samples = self._runner.pull(rows, of_half, scores, through, out)
        if past is not None:
            state = {name: value + past.state[name] for name, value in pulled.state.items()}
            pulled = Adjoint(pulled.theta + past.theta, state)
        return pulled, inner, samples

    def pull_scored(self, round_: Round, adjoint: Adjoint, samples: bool = True) -> Pulled:
        """`pull`, and what participants and `samples` contributed; overwrites λ^{t+1}. Cost: two training passes."""
        plain = round_.rule is None and isinstance(self._exchange, Averaging)
        if not (samples and plain and self._captures and self._capturable(round_.draw)):
            return self._pull_scored(round_, adjoint, samples)
        # a graph outlives this operator, and must not write into its buffers
        pull = self.fresh()._pull_scored
        return Pulled(*captured_rounds.captured_pull(self.network, pull)(round_, adjoint))

    def _pull_scored(self, round_: Round, adjoint: Adjoint, samples: bool = True) -> Pulled:
        half = self.pull_exchange(round_, adjoint)
        before, inner, parts = self.pull_rows(*round_[:3], half, scores=samples, out=adjoint.theta)
        of_theta = self.scores_of_updates(round_, half._replace(state={}))
        whole = self.scores_of_updates(round_, half) if half.state else of_theta
        return Pulled(before, whole, of_theta + inner, parts)

    @staticmethod
    def scores_of_updates(round_: Round, half: Adjoint) -> Float[Tensor, " n"]:
        """λ^{t+½} · ((θ, state)^{t+½} − (θ, state)^t): what each participant's update contributed, to first order."""
        return dot_with_update(round_.before, round_.half, half)

    def scores_of_samples(self, round_: Round, half: Adjoint) -> Float[Tensor, "n samples"]:
        """What each sample contributed to that. Cost: a training pass, or a third of one if the round was taped."""
        if self._runner.readable(round_.draw, round_.tape):
            of_work, _ = send.pull(self.network, round_.draw, round_.before, round_.half, half)
            return self._runner.read(round_.draw, round_.tape, of_work)
        return self.pull_rows(*round_[:3], half, scores=True, through=round_.draw.batch.shape[1] > 1)[2]

    def scores_of_both(self, round_: Round, half: Adjoint) -> tuple[Tensor, Tensor]:
        """The scores of updates and of samples; for a taped round on CUDA as one graph, to save launches."""
        runner, drawn = self._runner, round_.draw
        if not (self._captures and runner.readable(drawn, round_.tape)):
            return self.scores_of_updates(round_, half), self.scores_of_samples(round_, half)
        run = captured_rounds.captured_scores(self.network, runner.layers(drawn))
        of_work, _ = send.pull(self.network, drawn, round_.before, round_.half, half)
        participants, samples = run(round_.before, round_.half, half, *runner.tape(drawn, round_.tape, of_work))
        return participants.clone(), samples.clone()

    def _check_differentiable(self) -> None:
        for learner in self.network.learners:
            check_differentiable(learner.optimizer)

    # evaluate

    def losses(self, evaluation: Evaluation, here: Participants, nodes: Sequence[int]) -> Float[Tensor, " p"]:
        """L(θ_p; z') of rows that stand for these participants. Cost: a forward pass each."""
        return row_losses(self.network, evaluation, here, nodes)

    def gradients(
        self, evaluation: Evaluation, here: Participants, nodes: Sequence[int]
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, "p d"]]:
        """L(θ_p; z') and ∇L(θ_p; z') of rows that stand for these participants. Cost: a forward and a backward pass."""
        return row_gradients(self.network, evaluation, here, nodes)

    def gradients_at(
        self, evaluation: Evaluation, here: Participants, nodes: Sequence[int], t: int
    ) -> Float[Tensor, "p d"]:
        """∇L(θ_p; z') at the start of round t. Those of everybody are remembered, because windows of rounds overlap."""
        self._scratch.of(evaluation)
        theta, known = self._scratch.unweighted.get(t, (None, None))
        rows = torch.as_tensor(list(nodes), device=here.theta.device)
        if theta is not None and known is not None and not here.buffers and torch.equal(theta[rows], here.theta):
            return known[rows]
        _, gradients = self.gradients(evaluation, here, nodes)
        if list(nodes) == list(range(self.network.nodes)):
            self._scratch.unweighted[t] = here.theta, gradients
        return gradients

    def objective(self, evaluation: Evaluation, here: Participants, t: int | None = None) -> Float[Tensor, "n d"]:
        """q_k ∇L(θ_k; z') of everybody. With t, the round that starts here, they are remembered under it."""
        network, remembered, free = self.network, self._scratch.of(evaluation), self._scratch.free
        if t is not None and t in remembered:
            return remembered[t]
        out = free.pop() if t is not None and free else None
        gradients = row_gradients(network, evaluation, here, range(network.nodes), network.weights, out)[1]
        if t is not None:
            remembered[t] = gradients
        return gradients

    def drop_gradients(self, t: int | None = None) -> None:
        """Drop the remembered gradients before round t, or all of them."""
        self._scratch.drop_gradients(t)
