"""Whole rounds as CUDA graphs: a launch costs more than a small kernel, a replay costs one launch for all of them."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.fast.buffers import RoundBuffers
from cascadice.engine.fast.cuda_graphs import capture, captured_call
from cascadice.engine.fast.pull import dots, scores_from_tape
from cascadice.engine.fast.tape import Layers
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Adjoint, Draw, Round

Play = Callable[[Draw, Participants, RoundBuffers], Round]
"""A round on the device: (draw, before, buffers for the results) -> the round."""

MOST = 16  # graphs; a ring of buffers needs one for each of its places


def captures(network: Network) -> bool:
    """Whether the rounds of a network are worth capturing."""
    plain = not network.groups and not network.uneven and network.compression is None
    return plain and network.strategy == "compile" and network.device.type == "cuda"


class StagedDraw:
    """What was drawn, at fixed addresses: a graph reads from where it was captured. Only what changed is copied."""

    def __init__(self, drawn: Draw, device: torch.device, dtype: torch.dtype) -> None:
        nodes = len(drawn.batch)
        W, lr = (torch.empty(*shape, device=device, dtype=dtype) for shape in ((nodes, nodes), (nodes,)))
        conduct: Any = tuple(torch.empty_like(lr) for _ in drawn.conduct)
        self.draw = Draw(drawn.t, torch.empty_like(drawn.batch, device=device), W, lr, conduct)
        self.W: Tensor | None = None
        self.lr: float | None = None

    def put(self, drawn: Draw) -> Draw:
        """Copy what was drawn to its fixed addresses."""
        staged = self.draw
        staged.batch.copy_(drawn.batch, non_blocking=True)
        for to, value in zip(staged.conduct, drawn.conduct, strict=True):
            to.copy_(value)
        if self.W is not drawn.W:
            self.W = drawn.W
            staged.W.copy_(drawn.W)
        if isinstance(drawn.lr, Tensor):
            torch.as_tensor(staged.lr).copy_(drawn.lr)
        elif self.lr != drawn.lr:
            torch.as_tensor(staged.lr).fill_(drawn.lr)
        self.lr = None if isinstance(drawn.lr, Tensor) else drawn.lr
        return staged


def captured(play: Play) -> Play:
    """`play`, captured as a graph for each set of addresses it is given and replayed from then on.

    The participants and the buffers come from a ring, so there are few sets; past `MOST` of them it just plays.
    """
    stages: dict[tuple[torch.Size, int], StagedDraw] = {}
    graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Round]] = {}

    def replay(drawn: Draw, before: Participants, buffers: RoundBuffers) -> Round:
        form = (drawn.batch.shape, len(drawn.conduct))
        if form not in stages:
            stages[form] = StagedDraw(drawn, before.theta.device, before.theta.dtype)
        staged = stages[form].put(drawn)
        places = (*_addresses(before), *_addresses(buffers.half), *_addresses(buffers.after), buffers.loss.data_ptr())
        if (form, *places) not in graphs:
            if len(graphs) >= MOST:
                return play(staged, before, buffers)._replace(draw=drawn)
            graphs[form, *places] = capture(partial(play, staged, before, buffers))
        graph, round_ = graphs[form, *places]
        graph.replay()
        return round_._replace(draw=drawn)

    return replay


def _addresses(participants: Participants) -> tuple[int, ...]:
    theta, state, buffers = participants
    return (theta.data_ptr(), *(s.data_ptr() for s in state.values()), *(b.data_ptr() for b in buffers.values()))


@lru_cache(maxsize=4)
def _captured_pulls(network: Network) -> dict[tuple[torch.Size, int], tuple[StagedDraw, Callable[..., Any]]]:
    return {}


def captured_pull(
    network: Network, pull: Callable[[Round, Adjoint], Any]
) -> Callable[[Round, Adjoint], tuple[Adjoint, Tensor, Tensor, Tensor]]:
    """`pull` of rounds of this network as a graph: its many small launches would take longer than their work."""
    stages = _captured_pulls(network)

    def capturing(stage: StagedDraw) -> Callable[..., Any]:
        def run(before: Participants, half: Participants, adjoint: Adjoint) -> Any:
            return tuple(pull(Round(stage.draw, before, half, half, adjoint.theta[:, 0]), adjoint))

        return captured_call(run, in_place=False)  # a recording comes by once

    def replay(round_: Round, adjoint: Adjoint) -> tuple[Adjoint, Tensor, Tensor, Tensor]:
        form = (round_.draw.batch.shape, len(round_.draw.conduct))
        if form not in stages:
            stage = StagedDraw(round_.draw, adjoint.theta.device, adjoint.theta.dtype)
            stages[form] = (stage, capturing(stage))
        stage, run = stages[form]
        stage.put(round_.draw)
        before, *scores = run(round_.before, round_.half, adjoint)
        participants, rates, samples = (score.clone() for score in scores)
        return before, participants, rates, samples

    return replay


@lru_cache(maxsize=4)
def captured_scores(network: Network, layers: Layers | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """The scores of participants and of samples of a taped round, as one graph."""

    def run(before: Participants, half: Participants, adjoint: Adjoint, *tape: Any) -> tuple[Tensor, Tensor]:
        assert layers is not None
        return dots(before, half, adjoint), scores_from_tape(network.strategy, layers, *tape)

    return captured_call(run)
