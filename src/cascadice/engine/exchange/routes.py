"""What a mixing matrix asks of one process: to whom it sends, from whom it hears, how it averages what came."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.learner import Participants


class Routes(NamedTuple):
    """What a mixing matrix asks of one process."""

    W: Float[Tensor, "n n"]
    mine: Float[Tensor, "m n"]  # the rows of own participants
    sends: dict[tuple[int, ...], list[int]]  # own participants -> the processes that hear just these
    awaited: list[int]  # the processes that own participants hear


def routes(W: Float[Tensor, "n n"], parts: Sequence[Tensor], rank: int) -> Routes:
    """What W, a dense matrix, asks of the process with this rank; `parts` are the participants of each."""
    own, mine, sends = parts[rank], W[parts[rank]], dict[tuple[int, ...], list[int]]()
    peers = [peer for peer in range(len(parts)) if peer != rank]
    for peer in peers:
        heard = own[(W[parts[peer]][:, own] != 0).any(0)]
        if len(heard):
            sends.setdefault(tuple(heard.tolist()), []).append(peer)
    return Routes(W, mine, sends, [peer for peer in peers if mine[:, parts[peer]].any()])


def renormalised(mine: Float[Tensor, "m n"], came: Tensor, own: Tensor) -> Float[Tensor, "m n"]:
    """Rows of W without those who did not come, scaled to their sums; who is left with nobody keeps its own."""
    full, left = mine.sum(1, keepdim=True), (mine * came).sum(1, keepdim=True)
    alone = torch.zeros_like(mine)
    alone[torch.arange(len(own)), own] = full[:, 0]
    return torch.where(left > 0, mine * came * (full / left), alone)


def _real_buffers(participants: Participants) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in participants.buffers.items() if buffer.is_floating_point()}


def as_rows(half: Participants) -> Float[Tensor, "m columns"]:
    """What travels, as one row for each participant: parameters and real-valued buffers."""
    buffers = [buffer.reshape(len(buffer), -1).to(half.theta) for buffer in _real_buffers(half).values()]
    return torch.cat([half.theta, *buffers], 1) if buffers else half.theta


def from_rows(rows: Tensor, half: Participants, out: Participants | None) -> Participants:
    """The participants whose parameters and real-valued buffers these rows are."""
    real = _real_buffers(half)
    theta, *parts = torch.split(rows, [half.theta.shape[1], *(buffer[0].numel() for buffer in real.values())], 1)
    travelled = {
        name: part.reshape(buffer.shape).to(buffer) for (name, buffer), part in zip(real.items(), parts, strict=True)
    }
    buffers = half.buffers | travelled
    if out is None:
        return Participants(theta.contiguous(), half.state, buffers)
    buffers = {name: out.buffers[name].copy_(value) for name, value in buffers.items()}
    if out.theta.data_ptr() != theta.data_ptr():
        out.theta.copy_(theta)
    return Participants(out.theta, half.state, buffers)
