"""What participants send: their parameters after local work, altered by misbehaviour, compression or noise.

    sent = θ^t + α (C(taken · factor · (θ^{t+½} − θ^t)) + noise)        state^t + α taken (state^{t+½} − state^t)

If nobody misbehaves and nothing is compressed, the result of local work is sent as it is, without a copy.
"""

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import behaviours
from cascadice.engine.learner import Alphas, Participants, broadcast
from cascadice.engine.networks import Network, Nodes, values_for
from cascadice.engine.rounds import Adjoint, Draw, Tangent
from cascadice.optimizers import State


def apply(network: Network, drawn: Draw, before: Participants, half: Participants, nodes: Nodes = None) -> Participants:
    """What these rows send; where it differs from `half`, the parameters of `half` are overwritten."""
    if drawn.conduct:
        taken, factor = conduct(network, drawn, nodes)
        sent = before.theta + factor * (half.theta - before.theta)
        half.theta.copy_(torch.where(factor == 1, half.theta, sent))
        half = _part_of_rest(before, half, taken)
    if network.compression is not None:
        half.theta.copy_(before.theta + network.compression.apply(half.theta - before.theta))
    if network.behaviours:
        rows = range(network.nodes) if nodes is None else nodes
        noise = behaviours.noise(network.behaviours, drawn.t, rows, half.theta, network.origins(rows))
        for row, added in noise.items():
            half.theta[row] += added
    return half


def push(
    network: Network, drawn: Draw, before: Participants, sent: Participants, start: Tangent, end: Tangent,
    nodes: Nodes = None,
) -> Tangent:  # fmt: skip
    """The change of what is sent, given the changes at the `start` and at the `end` of local work."""
    code = network.compression
    if not drawn.conduct and code is None:
        return end
    change, state = end.theta - start.theta, end.state
    if drawn.conduct:
        taken, factor = conduct(network, drawn, nodes)
        change = factor * change
        state = {name: torch.lerp(start.state[name], value, broadcast(taken, value)) for name, value in state.items()}
    if code is not None:
        change = code.derivative(change, sent.theta - before.theta)
    return Tangent(start.theta + change, state)


def pull(
    network: Network, drawn: Draw, before: Participants, sent: Participants, adjoint: Adjoint, nodes: Nodes = None,
    updates: Alphas = (),
) -> tuple[Adjoint, Adjoint | None]:  # fmt: skip
    """`push` and `push_part` transposed: the part of the adjoint that reaches local work, and the rest."""
    code = network.compression
    if not drawn.conduct and not updates and code is None:
        return adjoint, None
    theta, state = adjoint
    if updates:
        theta, state = broadcast(updates[0], theta) * theta, _scaled(state, updates[0])
    if code is not None:
        theta = code.derivative(theta, sent.theta - before.theta)
    if drawn.conduct:
        taken, factor = conduct(network, drawn, nodes)
        theta, state = factor * theta, _scaled(state, taken)
    past = {name: adjoint.state[name] - value for name, value in state.items()}
    return Adjoint(theta, state), Adjoint(adjoint.theta - theta, past)


def part(before: Participants, half: Participants, alpha: Tensor) -> Participants:
    """(θ, state)^t + α Δ of each row; exactly `half`, bit for bit, where α is 1."""
    theta = torch.lerp(before.theta, half.theta, broadcast(alpha, half.theta))
    return _part_of_rest(before, half, alpha)._replace(theta=theta)


def _part_of_rest(before: Participants, half: Participants, alpha: Tensor) -> Participants:
    """`part` for everything but the parameters."""
    state, buffers = half.state.items(), half.buffers.items()
    return half._replace(
        state={name: torch.lerp(before.state[name], value, broadcast(alpha, value)) for name, value in state},
        buffers={name: torch.where(broadcast(alpha, b) > 0, b, before.buffers[name]) for name, b in buffers},
    )


def push_part(
    start: Tangent, end: Tangent, before: Participants, half: Participants, alpha: Tensor, velocity: Tensor
) -> Tangent:
    """The derivative of `part` along changes at the start and the end of local work, and of α with this velocity."""

    def between(d_old: Tensor, d_new: Tensor, old: Tensor, new: Tensor) -> Tensor:
        return torch.lerp(d_old, d_new, broadcast(alpha, new)) + broadcast(velocity, new) * (new - old)

    pushed: tuple[Tensor, State] = tree_map(between, tuple(start), tuple(end), before[:2], half[:2])
    return Tangent(*pushed)


def _scaled(state: State, alpha: Tensor) -> State:
    return {name: broadcast(alpha, value) * value for name, value in state.items()}


def conduct(network: Network, drawn: Draw, nodes: Nodes = None) -> tuple[Tensor, Tensor]:
    """The part of its local work that each row does, and, as a column, the factor on its update of θ."""
    taken, factor = (values_for(network, values, nodes) for values in drawn.conduct)
    return taken, (taken * factor)[:, None]
