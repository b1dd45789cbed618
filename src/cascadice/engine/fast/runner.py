"""Local work of rows of a network: applied, pushed forwards and pulled back.

Strategy: a round is split into phases (steps in which nobody's batch size or learning rate changes) and these into
groups (participants that work alike), until all rows have one shape; each piece then runs by the network's strategy.
Almost always there is one phase and one group, and nothing is split or copied.

Traps: the number of rows that a replay needs changes from hop to hop, so it is never compiled; rows may stand for any
participants, in any order, or for one several times.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp
from torch.utils._pytree import tree_map

from cascadice.data.batches import PADDING
from cascadice.data.inputs import Inputs, at
from cascadice.engine.fast.buffers import RoundBuffers
from cascadice.engine.fast.double_backward import twice_differentiable
from cascadice.engine.fast.pull import optimizer_factors, pull_rows, scores_from_tape
from cascadice.engine.fast.rows import over_rows
from cascadice.engine.fast.strategies import local_work
from cascadice.engine.fast.tape import Layers, verified_layers
from cascadice.engine.groups import over_groups, phases_in, weights_in
from cascadice.engine.learner import Alphas, Buffers, Learner, Participants, local_steps
from cascadice.engine.networks import Group, LocalInputs, Network, Nodes, dropout_starts, load, rates
from cascadice.engine.rounds import Adjoint, Draw, Tangent, rows_of
from cascadice.optimizers import State


class Rows(NamedTuple):
    """Rows before their local work in a round, or in a phase of one; `nodes` are the participants they stand for."""

    draw: Draw
    before: Participants
    nodes: Nodes
    samples: Alphas


class Runner:
    """Runs the local work of a network, and keeps what it compiled for that."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._work = cache(local_work)

    def work(self, rows: Rows, **how: Any) -> tuple[Participants, Tensor, Any]:
        """Rows after their local work, their losses and, if `layers` are given, their tapes."""
        phases = phases_in(self.network, rows.draw)
        if len(phases) == 1:
            return self._work_phase(rows, **how)
        ends = list(self._phase_ends(rows, phases, **how))
        counts = torch.stack([(phase.batch[:, :, 0] != PADDING).sum(1) for phase in phases]).to(rows.before.theta)
        counts = counts if rows.nodes is None else counts[:, list(rows.nodes)]
        losses = (counts * torch.stack([loss for _, loss in ends])).sum(0) / counts.sum(0).clamp(min=1)
        return ends[-1][0], losses, ()

    def _phase_ends(self, rows: Rows, phases: Sequence[Draw], **how: Any) -> Iterator[tuple[Participants, Tensor]]:
        """Rows and their losses after each phase."""
        here = rows.before
        for phase in phases:
            here, loss, _ = self._work_phase(Rows(phase, here, rows.nodes, weights_in(phase, rows.samples)), **how)
            yield here, loss

    def _phases(self, rows: Rows) -> list[Rows]:
        """The rows before each phase."""
        phases = phases_in(self.network, rows.draw)
        befores = [rows.before, *(here for here, _ in self._phase_ends(rows, phases[:-1]))]
        each = zip(phases, befores, strict=True)
        return [Rows(phase, here, rows.nodes, weights_in(phase, rows.samples)) for phase, here in each]

    def _work_phase(
        self, rows: Rows, strategy: str | None = None, layers: Layers | None = None, buffers: RoundBuffers | None = None
    ) -> tuple[Participants, Tensor, Any]:
        # without a named strategy, rows are replayed, and their number changes from hop to hop: never compile
        few = self.network.strategy == "loop" or len(rows.before.theta) == 1
        chosen = strategy or ("loop" if few else "vmap")

        def run(group: Group, members: Nodes, given: tuple[Participants, Alphas]) -> Any:
            before, weights = given
            fetch = partial(self._inputs, rows.draw, members, weights, group)
            return self._work(chosen, group.learner, layers)(before, fetch, None if group.nodes else buffers)

        like = rows.before, rows.before.theta.new_zeros(len(rows.before.theta)), ()
        return over_groups(self.network, rows.draw, rows.nodes, (rows.before, rows.samples), like, run)

    def push(self, rows: Rows, tangent: Tangent, d_samples: Alphas) -> tuple[Participants, Tangent]:
        """Rows after their local work, and its derivative along a change of (θ, state) and of the samples' weights."""
        half = rows.before
        for phase in self._phases(rows):
            half, tangent = self._push_phase(phase, tangent, weights_in(phase.draw, d_samples))
        return half._replace(buffers=rows.before.buffers), tangent

    def _push_phase(self, rows: Rows, tangent: Tangent, d_samples: Alphas) -> tuple[Participants, Tangent]:
        def run(group: Group, members: Nodes, given: Any) -> Any:
            before, change, weights, d_weights = given
            inputs = load(self.network, rows.draw, members, weights, group)
            moving = tuple(part[:, : group.steps, : group.size] for part in d_weights)
            sweep = over_rows(_pushed, self.network.strategy, group.learner, workers=1, starts=inputs.starts)
            with twice_differentiable():
                return sweep(before, *change, *inputs[:4], moving)

        like: Any = (rows.before[:2], tuple(tangent))
        given = (rows.before, tangent, rows.samples, d_samples)
        (theta, state), change = over_groups(self.network, rows.draw, rows.nodes, given, like, run)
        return Participants(theta, state, rows.before.buffers), Tangent(*change)

    def pull(
        self, rows: Rows, adjoint: Adjoint, scores: bool, through: bool, out: Tensor | None
    ) -> tuple[Adjoint, Float[Tensor, " rows"], Float[Tensor, "rows samples"]]:
        """λ^t of these rows, what inner steps add to λ^{t+½} · Δ, and the samples' scores if requested.

        Steps of an earlier phase are scored by the λ that reaches its end, as inner steps are: see `pull.pull_rows`.
        """
        phases = self._phases(rows)
        if len(phases) == 1:
            return self._pull_phase(rows, adjoint, scores, through, out)
        ends = [*phases[1:], phases[-1]]  # the last one does not matter: there, λ − λ^{t+½} is 0
        half, inner, parts = adjoint.theta, adjoint.theta.new_zeros(len(adjoint.theta)), list[Tensor]()
        for phase, end in reversed(list(zip(phases, ends, strict=True))):
            inner = inner + ((adjoint.theta - half) * (end.before.theta - phase.before.theta)).sum(1)
            adjoint, own, more = self._pull_phase(phase, adjoint, scores, True, None)
            inner, parts = inner + own, [more, *parts]
        return adjoint, inner, torch.cat(parts, 1)

    def _pull_phase(
        self, rows: Rows, adjoint: Adjoint, scores: bool, through: bool, out: Tensor | None
    ) -> tuple[Adjoint, Float[Tensor, " rows"], Float[Tensor, "rows samples"]]:
        drawn, before, nodes, samples = rows

        def run(group: Group, members: Nodes, given: tuple[Participants, Adjoint, Alphas]) -> Any:
            own, of_half, weights = given
            pulled, inner, parts = pull_rows(
                group.learner, self.network.strategy, self.layers(drawn, group), own,
                partial(self._inputs, drawn, members, weights, group), rates(self.network, drawn, members), of_half,
                scores=scores, through=through, out=None if group.nodes else out,
                starts=dropout_starts(self.network, drawn, members),
            )  # fmt: skip
            if not scores:  # some strategies compute them all the same
                return pulled, inner, parts[:, :0]
            return pulled, inner, parts.view(len(own.theta), -1, group.size or drawn.batch.shape[2])

        shape = (len(before.theta), *drawn.batch.shape[1:]) if scores else (len(before.theta), 0)
        like = (adjoint, adjoint.theta.new_zeros(shape[:1]), adjoint.theta.new_zeros(shape))
        pulled, inner, parts = over_groups(self.network, drawn, nodes, (before, adjoint, samples), like, run)
        return pulled, inner, parts.flatten(1)

    def readable(self, drawn: Draw, tape: Any) -> bool:
        """Whether the samples' scores can be read from this tape."""
        return bool(tape) and drawn.batch.shape[1] == 1 and self.network.learner.optimizer.linear

    def tape(self, drawn: Draw, tape: Any, adjoint: Adjoint) -> tuple[Any, ...]:
        """What `scores_from_tape` takes: the tape, the adjoint, the optimizer's derivative and the learning rates."""
        lr = rates(self.network, drawn)
        return tape, adjoint, optimizer_factors(self.network.learner.optimizer, lr), lr

    def read(self, drawn: Draw, tape: Any, adjoint: Adjoint) -> Float[Tensor, "n samples"]:
        """The samples' scores from the tape of their training pass."""
        network, layers = self.network, self.layers(drawn)
        assert layers is not None
        return scores_from_tape(network.strategy, layers, *self.tape(drawn, tape, adjoint)).clone()

    def layers(self, drawn: Draw, group: Group | None = None) -> Layers | None:
        """The model's layers for batches like the one drawn; None if samples cannot be scored by them."""
        network = self.network
        learner, node = (group.learner, group.nodes[0]) if group and group.nodes else (network.learner, 0)

        def example() -> tuple[Tensor, Buffers, Inputs, Tensor]:
            x, y, *_ = load(network, drawn, [node], group=group)
            theta, _, buffers = rows_of(network.initial, node)
            return theta, buffers, at(x, (0, 0)), y[0, 0]

        size = group.size if group and group.size else drawn.batch.shape[-1]
        return verified_layers(learner, network.strategy, size, example)

    def _inputs(self, drawn: Draw, nodes: Nodes, samples: Alphas, group: Group, some: list[int] | None) -> LocalInputs:
        if some is None:
            return load(self.network, drawn, nodes, samples, group)
        chosen = some if nodes is None else [nodes[row] for row in some]
        return load(self.network, drawn, chosen, (samples[0][some],) if samples else (), group)


def _pushed(
    learner: Learner, one: Participants, d_theta: Tensor, d_state: State, x: Inputs, y: Tensor, lr: Tensor,
    samples: Alphas, d_samples: Alphas,
) -> Any:  # fmt: skip
    def work(theta, state, samples):  # type: ignore[no-untyped-def]
        after, _ = local_steps(learner, Participants(theta, state, one.buffers), x, y, lr, samples)
        return after.theta, after.state

    value, change = jvp(work, (one.theta, one.state, samples), (d_theta, d_state, d_samples))
    # forward mode turns a float32 scalar (a count of steps) times a Python number into float64
    return value, tree_map(lambda tangent, like: tangent.to(like.dtype), change, value)
