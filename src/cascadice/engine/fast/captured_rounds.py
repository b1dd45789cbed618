"""Whole rounds, pulls and scores as CUDA graphs, for small models that the CPU cannot launch fast enough.

Chosen by `should_capture`: strategy "compile" on CUDA, all participants working alike, no compression. What is
drawn for a round (batch numbers, W, learning rate, conduct) is copied to fixed addresses for them: `StagedDraw`.

Traps: a graph cannot draw random numbers on the CPU or read a sparse W, so `Operator` plays such rounds as usual; a
graph outlives the operator that captured it, and must not write into that operator's buffers.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.fast.buffers import RoundBuffers
from cascadice.engine.fast.cuda_graphs import capture, captured_call, tensors
from cascadice.engine.fast.pull import dot_with_update, scores_from_tape
from cascadice.engine.fast.tape import Layers
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Adjoint, Draw, Round

Play = Callable[[Draw, Participants, RoundBuffers], Round]
"""Plays a round on the device: (draw, before, buffers for the results) -> the round."""

MAX_GRAPHS = 16  # of rounds; a ring of buffers needs one for each of its places


def should_capture(network: Network) -> bool:
    """Whether rounds of this network are worth capturing."""
    plain = not network.groups and not network.uneven and network.compression is None
    return plain and network.strategy == "compile" and network.device.type == "cuda"


class StagedDraw:
    """What was drawn, at fixed addresses, where captured graphs read it. Only what changed is copied."""

    def __init__(self, drawn: Draw, device: torch.device, dtype: torch.dtype) -> None:
        nodes = len(drawn.batch)
        W, lr = (torch.empty(*shape, device=device, dtype=dtype) for shape in ((nodes, nodes), (nodes,)))
        conduct: Any = tuple(torch.empty_like(lr) for _ in drawn.conduct)
        self.draw = Draw(drawn.t, torch.empty_like(drawn.batch, device=device), W, lr, conduct)
        self.W: Tensor | None = None
        self.lr: float | None = None

    def put(self, drawn: Draw) -> Draw:
        """Copy a draw to the fixed addresses, and return the draw that lies there."""
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


def captured(play: Play, capturable: Callable[[Draw], bool]) -> Play:
    """`play`, captured once for each set of addresses it is given, and replayed from then on.

    Participants and buffers come from a ring, so there are few sets; beyond `MAX_GRAPHS` of them, and for draws that
    are not `capturable`, it just plays.
    """
    stages: dict[tuple[torch.Size, int], StagedDraw] = {}
    graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Round]] = {}

    def replay(drawn: Draw, before: Participants, buffers: RoundBuffers) -> Round:
        if not capturable(drawn):
            return play(drawn, before, buffers)
        form = (drawn.batch.shape, len(drawn.conduct))
        if form not in stages:
            stages[form] = StagedDraw(drawn, before.theta.device, before.theta.dtype)
        staged = stages[form].put(drawn)
        key = (form, *(tensor.data_ptr() for tensor in tensors((before, buffers))))
        if key not in graphs:
            if len(graphs) >= MAX_GRAPHS:
                return play(staged, before, buffers)._replace(draw=drawn)
            graphs[key] = capture(partial(play, staged, before, buffers))
        graph, round_ = graphs[key]
        graph.replay()
        return round_._replace(draw=drawn)

    return replay


@lru_cache(maxsize=4)
def _captured_pulls(network: Network) -> dict[tuple[torch.Size, int], tuple[StagedDraw, Callable[..., Any]]]:
    return {}


def captured_pull(
    network: Network, pull: Callable[[Round, Adjoint], Any]
) -> Callable[[Round, Adjoint], tuple[Adjoint, Tensor, Tensor, Tensor]]:
    """`pull` of this network's rounds, captured."""
    stages = _captured_pulls(network)

    def capturing(stage: StagedDraw) -> Callable[..., Any]:
        def run(before: Participants, half: Participants, adjoint: Adjoint) -> Any:
            return tuple(pull(Round(stage.draw, before, half, half, adjoint.theta[:, 0]), adjoint))

        return captured_call(run, in_place=False)  # the rounds of a recording never come back at the same addresses

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
        return dot_with_update(before, half, adjoint), scores_from_tape(network.strategy, layers, *tape)

    return captured_call(run)
