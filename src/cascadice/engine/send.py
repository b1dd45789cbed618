"""What participants send: their parameters after local work, altered by misbehaviour, compression or noise.

    sent = θ^t + C(factor · (θ^{t+½} − θ^t)) + noise

Where nobody misbehaves and nothing is compressed, what is sent is what local work made: the same tensor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import behaviours
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Draw

Nodes = Sequence[int] | None
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
        noise = behaviours.noise(network.behaviours, drawn.t, rows, half.theta, network.seed)
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


def pull(network: Network, drawn: Draw, adjoint: Rows, sent_update: Rows) -> tuple[Rows, Rows | None]:
    """`push`, transposed: the adjoint of θ^{t+½} and, where what was sent was altered, the one past it to θ^t."""
    factor, code = _factor(network, drawn, None), network.compression
    if factor is None and code is None:
        return adjoint, None
    of_half = adjoint if code is None else code.derivative(adjoint, sent_update)
    of_half = of_half if factor is None else factor * of_half
    return of_half, adjoint - of_half


def _factor(network: Network, drawn: Draw, nodes: Nodes) -> Tensor | None:
    """What each row multiplies its update by before it sends it, as a column; None where all send it as it is."""
    if not drawn.conduct:
        return None
    pick: Any = slice(None) if nodes is None else torch.tensor(list(nodes))
    return drawn.conduct[1][pick].to(network.device, network.initial.theta.dtype)[:, None]
