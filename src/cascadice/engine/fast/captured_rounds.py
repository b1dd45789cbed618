"""Whole rounds as CUDA graphs: a launch costs more than a small kernel, a replay costs one launch for all of them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cascadice.engine.fast.cuda_graphs import record
from cascadice.engine.fast.rows import Room
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Draw, Round

Play = Callable[[Draw, Participants, Room], Round]
"""A round on the device: (drawn, before, room for the results) -> the round."""

MOST = 16  # graphs; a ring of memory needs one for each of its places


def captures(network: Network) -> bool:
    """Whether the rounds of a network are worth capturing."""
    return network.strategy == "compile" and network.device.type == "cuda"


class Stage:
    """What was drawn, at fixed addresses: a graph reads from where it was recorded. Only what changed is copied."""

    def __init__(self, drawn: Draw, device: torch.device, dtype: torch.dtype) -> None:
        nodes = len(drawn.batch)
        self.draw = Draw(
            drawn.t,
            torch.empty_like(drawn.batch, device=device),
            torch.empty(nodes, nodes, device=device, dtype=dtype),
            torch.empty(nodes, device=device, dtype=dtype),
            tuple(torch.empty(nodes, device=device, dtype=dtype) for _ in drawn.conduct),
        )
        self.W: Tensor | None = None
        self.lr: float | None = None

    def put(self, drawn: Draw) -> Draw:
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
    """`play`, recorded as a graph for each set of addresses it is given and replayed from then on.

    The participants and the room come from a ring, so there are few sets; past `MOST` of them it just plays.
    """
    stages: dict[tuple[torch.Size, int], Stage] = {}
    graphs: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Round]] = {}

    def replay(drawn: Draw, before: Participants, room: Room) -> Round:
        form = (drawn.batch.shape, len(drawn.conduct))
        if form not in stages:
            stages[form] = Stage(drawn, before.theta.device, before.theta.dtype)
        staged = stages[form].put(drawn)
        key = (form, *_addresses(before), *_addresses(room.half), *_addresses(room.after), room.loss.data_ptr())
        if key not in graphs:
            if len(graphs) >= MOST:
                return play(staged, before, room)._replace(draw=drawn)
            graphs[key] = record(partial(play, staged, before, room))
        graph, done = graphs[key]
        graph.replay()
        return done._replace(draw=drawn)

    return replay


def _addresses(participants: Participants) -> tuple[int, ...]:
    theta, state, buffers = participants
    return (theta.data_ptr(), *(s.data_ptr() for s in state.values()), *(b.data_ptr() for b in buffers.values()))
