"""What of participants travels, as one row for each: parameters and real-valued buffers."""

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.learner import Participants


def real_buffers(participants: Participants) -> dict[str, Tensor]:
    """The buffers that travel."""
    return {name: buffer for name, buffer in participants.buffers.items() if buffer.is_floating_point()}


def width(buffer: Tensor) -> int:
    """How many numbers one participant has in it."""
    return buffer[0].numel()


def as_rows(half: Participants) -> Float[Tensor, "m columns"]:
    """Parameters and real-valued buffers, as one row for each participant."""
    buffers = [buffer.reshape(len(buffer), -1).to(half.theta) for buffer in real_buffers(half).values()]
    return torch.cat([half.theta, *buffers], 1) if buffers else half.theta


def from_rows(rows: Tensor, half: Participants, out: Participants | None) -> Participants:
    """The participants whose parameters and real-valued buffers these rows are."""
    real = real_buffers(half)
    theta, *parts = torch.split(rows, [half.theta.shape[1], *(width(buffer) for buffer in real.values())], 1)
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
