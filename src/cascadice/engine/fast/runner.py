"""Local work of rows of a network, applied, pushed through and pulled back through, by the fastest way there is."""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp
from torch.utils._pytree import tree_map

from cascadice.data.inputs import Inputs, at
from cascadice.engine.fast.buffers import RoundBuffers
from cascadice.engine.fast.pull import factors, pull_rows, scores_from_tape
from cascadice.engine.fast.rows import local_work, over_rows
from cascadice.engine.fast.tape import Layers, layered
from cascadice.engine.fast.twice import twice_differentiable
from cascadice.engine.groups import Phase, over_groups, phases_in
from cascadice.engine.learner import Buffers, Learner, Maybe, Participants, local_steps
from cascadice.engine.networks import Group, LocalInputs, Network, Nodes, load, rates, starts
from cascadice.engine.rounds import Adjoint, Draw, rows_of
from cascadice.optimizers import State


class Runner:
    """Runs the local work of a network; keeps what it compiled and made for that."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._work = cache(local_work)

    def work(
        self, drawn: Draw, before: Participants, nodes: Nodes, samples: Maybe, **how: Any
    ) -> tuple[Participants, Tensor, Any]:
        """Rows after their local work, their losses and, if `layers` are given, their tapes."""
        phases = phases_in(self.network, drawn)
        if len(phases) == 1:
            return self._work_in(drawn, before, nodes, samples, **how)
        played = list(self._played(phases, before, nodes, samples, **how))
        counts = torch.stack([phase.counts(nodes) for phase in phases]).to(before.theta)
        losses = (counts * torch.stack([loss for _, loss in played])).sum(0) / counts.sum(0).clamp(min=1)
        return played[-1][0], losses, ()

    def _played(
        self, phases: Sequence[Phase], rows: Participants, nodes: Nodes, samples: Maybe, **how: Any
    ) -> Iterator[tuple[Participants, Tensor]]:
        """Rows and their losses after each phase."""
        for phase in phases:
            rows, loss, _ = self._work_in(phase.draw, rows, nodes, phase.of(samples), **how)
            yield rows, loss

    def _befores(
        self, phases: Sequence[Phase], before: Participants, nodes: Nodes, samples: Maybe
    ) -> list[Participants]:
        """What rows have before each phase."""
        return [before, *(rows for rows, _ in self._played(phases[:-1], before, nodes, samples))]

    def _work_in(
        self, drawn: Draw, before: Participants, nodes: Nodes, samples: Maybe, strategy: str | None = None,
        layers: Layers | None = None, buffers: RoundBuffers | None = None,
    ) -> tuple[Participants, Tensor, Any]:  # fmt: skip
        # the number of replayed rows changes from hop to hop, and would be compiled for again and again
        few = self.network.strategy == "loop" or len(before.theta) == 1
        way = strategy or ("loop" if few else "vmap")

        def run(group: Group, members: Nodes, given: tuple[Participants, Maybe]) -> Any:
            rows, weights = given
            fetch = partial(self._inputs, drawn, members, weights, group)
            return self._work(way, group.learner, layers)(rows, fetch, None if group.nodes else buffers)

        like = before, before.theta.new_zeros(len(before.theta)), ()
        return over_groups(self.network, drawn, nodes, (before, samples), like, run)

    def push(
        self, drawn: Draw, before: Participants, tangent: Adjoint, nodes: Nodes, samples: Maybe, d_samples: Maybe
    ) -> tuple[Participants, Adjoint]:
        """Rows after their local work, and its derivative along a change of (θ, state) and of the samples' weights."""
        phases, half = phases_in(self.network, drawn), before
        befores = self._befores(phases, before, nodes, samples)
        for phase, here in zip(phases, befores, strict=True):
            weights = phase.of(samples), phase.of(d_samples)
            half, tangent = self._push_in(phase.draw, here, tangent, nodes, *weights)
        return half._replace(buffers=before.buffers), tangent

    def _push_in(
        self, drawn: Draw, before: Participants, tangent: Adjoint, nodes: Nodes, samples: Maybe, d_samples: Maybe
    ) -> tuple[Participants, Adjoint]:
        def run(group: Group, members: Nodes, given: Any) -> Any:
            rows, change, weights, d_weights = given
            inputs = load(self.network, drawn, members, weights, group)
            moving = tuple(part[:, : group.steps, : group.size] for part in d_weights)
            sweep = over_rows(_pushed, self.network.strategy, group.learner, workers=1, starts=inputs.starts)
            with twice_differentiable():
                return sweep(rows, *change, *inputs[:4], moving)

        like: Any = (before[:2], tuple(tangent))
        given = (before, tangent, samples, d_samples)
        (theta, state), change = over_groups(self.network, drawn, nodes, given, like, run)
        return Participants(theta, state, before.buffers), Adjoint(*change)

    def pull(
        self, drawn: Draw, before: Participants, adjoint: Adjoint, nodes: Nodes, samples: Maybe, scores: bool,
        through: bool, out: Tensor | None,
    ) -> tuple[Adjoint, Float[Tensor, " rows"], Float[Tensor, "rows samples"]]:  # fmt: skip
        """λ^{t+½} -> λ^t of these rows, what inner steps add to λ · Δ and, if asked, the scores of the samples.

        Steps of an earlier phase count by the λ that reaches its end, as inner steps do: see `pull.pull_rows`.
        """
        phases = phases_in(self.network, drawn)
        if len(phases) == 1:
            return self._pull_in(drawn, before, adjoint, nodes, samples, scores, through, out)
        befores = self._befores(phases, before, nodes, samples)
        ends = [*befores[1:], befores[-1]]  # that of the last phase does not matter: there, λ − λ^{t+½} is 0
        half, inner, parts = adjoint.theta, adjoint.theta.new_zeros(len(before.theta)), list[Tensor]()
        for phase, here, end in reversed(list(zip(phases, befores, ends, strict=True))):
            inner = inner + ((adjoint.theta - half) * (end.theta - here.theta)).sum(1)
            adjoint, own, more = self._pull_in(phase.draw, here, adjoint, nodes, phase.of(samples), scores, True, None)
            inner, parts = inner + own, [more, *parts]
        return adjoint, inner, torch.cat(parts, 1)

    def _pull_in(
        self, drawn: Draw, before: Participants, adjoint: Adjoint, nodes: Nodes, samples: Maybe, scores: bool,
        through: bool, out: Tensor | None,
    ) -> tuple[Adjoint, Float[Tensor, " rows"], Float[Tensor, "rows samples"]]:  # fmt: skip
        def run(group: Group, members: Nodes, given: tuple[Participants, Adjoint, Maybe]) -> Any:
            rows, own, weights = given
            pulled, inner, parts = pull_rows(
                group.learner, self.network.strategy, self.layers(drawn, group), rows,
                partial(self._inputs, drawn, members, weights, group), rates(self.network, drawn, members), own,
                scores=scores, through=through, out=None if group.nodes else out,
                starts=starts(self.network, drawn, members),
            )  # fmt: skip
            if not scores:  # some ways compute them all the same
                return pulled, inner, parts[:, :0]
            return pulled, inner, parts.view(len(rows.theta), -1, group.size or drawn.batch.shape[2])

        shape = (len(before.theta), *drawn.batch.shape[1:]) if scores else (len(before.theta), 0)
        given = (before, adjoint, samples)
        like = (adjoint, adjoint.theta.new_zeros(shape[:1]), adjoint.theta.new_zeros(shape))
        pulled, inner, parts = over_groups(self.network, drawn, nodes, given, like, run)
        return pulled, inner, parts.flatten(1)

    def readable(self, drawn: Draw, tape: Any) -> bool:
        """Whether the scores of samples can be read from a tape."""
        return bool(tape) and drawn.batch.shape[1] == 1 and self.network.learner.optimizer.linear

    def tape(self, drawn: Draw, tape: Any, adjoint: Adjoint) -> tuple[Any, ...]:
        """A tape and what it takes to read it: the adjoint, and what the optimizer makes of gradients."""
        lr = rates(self.network, drawn)
        return tape, adjoint, factors(self.network.learner.optimizer, lr), lr

    def read(self, drawn: Draw, tape: Any, adjoint: Adjoint) -> Float[Tensor, "n samples"]:
        """The scores of samples from the tape of their training pass."""
        network, layers = self.network, self.layers(drawn)
        assert layers is not None
        return scores_from_tape(network.strategy, layers, *self.tape(drawn, tape, adjoint)).clone()

    def layers(self, drawn: Draw, group: Group | None = None) -> Layers | None:
        """The model's layers for batches like the one drawn, where they can be used to score samples."""
        network = self.network
        learner, node = (group.learner, group.nodes[0]) if group and group.nodes else (network.learner, 0)

        def example() -> tuple[Tensor, Buffers, Inputs, Tensor]:
            x, y, *_ = load(network, drawn, [node], group=group)
            theta, _, buffers = rows_of(network.initial, node)
            return theta, buffers, at(x, (0, 0)), y[0, 0]

        size = group.size if group and group.size else drawn.batch.shape[-1]
        return layered(learner, network.strategy, size, example)

    def _inputs(self, drawn: Draw, nodes: Nodes, samples: Maybe, group: Group, some: list[int] | None) -> LocalInputs:
        if some is None:
            return load(self.network, drawn, nodes, samples, group)
        chosen = some if nodes is None else [nodes[row] for row in some]
        return load(self.network, drawn, chosen, (samples[0][some],) if samples else (), group)


def _pushed(
    learner: Learner, one: Participants, d_theta: Tensor, d_state: State, x: Inputs, y: Tensor, lr: Tensor,
    samples: Maybe, d_samples: Maybe,
) -> Any:  # fmt: skip
    def work(theta, state, samples):  # type: ignore[no-untyped-def]
        after, _ = local_steps(learner, Participants(theta, state, one.buffers), x, y, lr, samples)
        return after.theta, after.state

    value, change = jvp(work, (one.theta, one.state, samples), (d_theta, d_state, d_samples))
    # forward mode makes float64 of a float32 scalar (a count of steps) times a number
    return value, tree_map(lambda tangent, like: tangent.to(like.dtype), change, value)
