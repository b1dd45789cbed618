"""What participants send: their parameters after local work, altered by misbehaviour, compression or noise.

    sent = θ^t + α (C(factor · (θ^{t+½} − θ^t)) + noise)

Where nobody misbehaves and nothing is compressed, what is sent is what local work made: the same tensor.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import behaviours
from cascadice.engine.learner import Participants, broadcast
from cascadice.engine.networks import Network, Nodes, rows_for
from cascadice.engine.rounds import Adjoint, Draw

Rows = Float[Tensor, "rows d"]


def apply(network: Network, drawn: Draw, before: Participants, half: Participants, nodes: Nodes = None) -> Participants:
    """What these rows send; written over `half` where it differs from that."""
    factor = _factor(network, drawn, nodes)
    if factor is not None:
        sent = before.theta + factor * (half.theta - before.theta)
        half.theta.copy_(torch.where(factor == 1, half.theta, sent))
    if network.compression is not None:
        half.theta.copy_(before.theta + network.compression.apply(half.theta - before.theta))
    if network.behaviours:
        rows = range(network.nodes) if nodes is None else nodes
        noise = behaviours.noise(network.behaviours, drawn.t, rows, half.theta, network.origins(rows))
        for row, added in noise.items():
            half.theta[row] += added
    return half


def push(network: Network, drawn: Draw, before: Rows, half: Rows, sent_update: Rows, nodes: Nodes = None) -> Rows:
    """The change of what is sent along changes of θ^t (`before`) and θ^{t+½} (`half`)."""
    factor, code = _factor(network, drawn, nodes), network.compression
    if factor is None and code is None:
        return half
    change = half - before if factor is None else factor * (half - before)
    return before + (change if code is None else code.derivative(change, sent_update))


def pull(
    network: Network, drawn: Draw, adjoint: Rows, sent_update: Rows, nodes: Nodes = None
) -> tuple[Rows, Rows | None]:
    """`push`, transposed: the adjoint of θ^{t+½} and, where what was sent was altered, the one past it to θ^t."""
    factor, code = _factor(network, drawn, nodes), network.compression
    if factor is None and code is None:
        return adjoint, None
    of_half = adjoint if code is None else code.derivative(adjoint, sent_update)
    of_half = of_half if factor is None else factor * of_half
    return of_half, adjoint - of_half


def part(before: Participants, half: Participants, alpha: Tensor) -> Participants:
    """(θ, state)^t + α Δ: of each row's update, the part α."""

    def between(old: Tensor, new: Tensor) -> Tensor:
        return torch.lerp(old, new, broadcast(alpha, new))

    state = {name: between(before.state[name], value) for name, value in half.state.items()}
    buffers = {name: torch.where(broadcast(alpha, b) > 0, b, before.buffers[name]) for name, b in half.buffers.items()}
    return Participants(between(before.theta, half.theta), state, buffers)


def push_part(
    start: Adjoint, end: Adjoint, before: Participants, half: Participants, alpha: Tensor, velocity: Tensor
) -> Adjoint:
    """The derivative of `part` along changes at the start and the end, and along α."""

    def between(d_old: Tensor, d_new: Tensor, old: Tensor, new: Tensor) -> Tensor:
        return torch.lerp(d_old, d_new, broadcast(alpha, new)) + broadcast(velocity, new) * (new - old)

    names = end.state
    state = {name: between(start.state[name], end.state[name], before.state[name], half.state[name]) for name in names}
    return Adjoint(between(start.theta, end.theta, before.theta, half.theta), state)


def pull_part(adjoint: Adjoint, alpha: Tensor) -> Adjoint:
    """What of the adjoint reaches updates of which the part α was made; the rest goes past them."""
    state = {name: broadcast(alpha, value) * value for name, value in adjoint.state.items()}
    return Adjoint(broadcast(alpha, adjoint.theta) * adjoint.theta, state)


def _factor(network: Network, drawn: Draw, nodes: Nodes) -> Tensor | None:
    """What each row multiplies its update by before it sends it, as a column; None where all send it as it is."""
    return rows_for(network, drawn.conduct[1], nodes)[:, None] if drawn.conduct else None
