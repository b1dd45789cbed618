"""The exchange in memory: everybody's rows are stacked, and a mixing matrix W averages them.

    apply  θ^{t+1} = W θ^{t+½}        push  δ^{t+1} = W δ^{t+½}        pull  λ^{t+½} = Wᵀ λ^{t+1}

Real-valued buffers travel with the parameters; optimizer state stays where it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint, Perturbation, Round
from cascadice.topology import gossip, gossip_transposed, links
from cascadice.topology.mixing import full_precision, product

Point = tuple[Perturbation | None, Perturbation] | None
"""Where a derivative is taken: a change of (before, half), or None for where the round really was."""


@runtime_checkable
class Exchange(Protocol):
    """How what participants send becomes what they have: stacked in memory, or as messages along the edges.

    `replay` says exactly what becomes of a change of (before, half), `push` to first order, `at` a change of both;
    `pull` is its transpose, plus `plus`. Results are written into `out` if given.
    """

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants: ...

    def mixed(self, round_: Round) -> Float[Tensor, "n n"]: ...

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> Perturbation: ...

    def push(self, round_: Round, at: Point, before: Perturbation | None, half: Perturbation) -> Perturbation: ...

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint: ...


def mix(W: Float[Tensor, "n n"], half: Participants, out: Participants | None = None) -> Participants:
    """Gossip averaging, θ_k^{t+1} = Σ_j W[k, j] θ_j^{t+½}; into the buffers `out` if given."""
    if W.shape[1] != len(half.theta):
        found = f"W mixes {W.shape[1]} participants; found the parameters of {len(half.theta)}"
        raise ValueError(f"{found}. A part of a network needs the exchange of messages with the other parts.")
    return _mixed(lambda rows, to: gossip(W, rows, out=to), half, out)


def _mixed(
    product: Callable[[Tensor, Tensor | None], Tensor], half: Participants, out: Participants | None
) -> Participants:
    theta = product(half.theta, None if out is None else out.theta)
    real = {name: buffer.reshape(len(theta), -1) for name, buffer in half.buffers.items() if buffer.is_floating_point()}
    buffers = half.buffers | {name: product(rows, None).view_as(half.buffers[name]) for name, rows in real.items()}
    if out is not None:
        buffers = {name: out.buffers[name].copy_(value) for name, value in buffers.items()}
    return Participants(theta, half.state, buffers)


@dataclass(frozen=True)
class Averaging:
    """The exchange of rounds that W mixes. It is linear, so a change is pushed exactly."""

    blocks: int = 1  # networks side by side, none of which hears another: W is block diagonal

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        if self.blocks == 1:
            return mix(round_.W, half, out)
        return _mixed(partial(_product_of_blocks, self._diagonal(round_.W)), half, out)

    def mixed(self, round_: Round) -> Float[Tensor, "n n"]:
        return round_.W

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> Perturbation:
        return spread(round_.W, half)

    def push(self, round_: Round, at: Point, before: Perturbation | None, half: Perturbation) -> Perturbation:
        return spread(round_.W, half)

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint:
        if self.blocks == 1:
            return adjoint._replace(theta=gossip_transposed(round_.W, adjoint.theta, plus=plus, out=out))
        theta = _product_of_blocks(self._diagonal(round_.W).mT, adjoint.theta, out)
        return adjoint._replace(theta=theta if plus is None else theta.add_(plus))

    def _diagonal(self, W: Float[Tensor, "n n"]) -> Float[Tensor, "blocks m m"]:
        size = len(W) // self.blocks
        return W.view(self.blocks, size, self.blocks, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _product_of_blocks(W: Float[Tensor, "blocks m m"], rows: Float[Tensor, "n d"], out: Tensor | None = None) -> Tensor:
    shape = (len(W), W.shape[1], rows.shape[1])
    target = None if out is None else out.view(shape)
    with full_precision():
        return torch.bmm(W.to(rows), rows.view(shape), out=target).view(rows.shape)


def spread(W: Float[Tensor, "n n"], half: Perturbation) -> Perturbation:
    """δ_k = Σ_l W[k, l] δ_l for everyone whom a source has now reached; state stays. Cost: links × d."""
    n, device = W.shape[0], half.theta.device
    nodes, sources = half.nodes.cpu(), half.sources.cpu()
    row, weights, receivers = _outgoing(W, nodes)
    had = sources * n + nodes
    hears = sources[row] * n + receivers
    # whoever's state changed stays in the cone, even where nothing of its parameters comes back to it
    reached = torch.unique(torch.cat([hears, had]) if half.state else hears)
    if not len(reached):  # nobody hears it
        none = half.nodes[:0]
        return Perturbation(none, none, half.theta[:0], {})
    where, size = torch.stack([torch.searchsorted(reached, hears), row]), (len(reached), len(nodes))
    mixing = torch.sparse_coo_tensor(where, weights.to(half.theta.dtype), size, check_invariants=False).to(device)
    state = {name: value.new_zeros(len(reached), *value.shape[1:]) for name, value in half.state.items()}
    if state:  # does not travel: one just reached has none
        place = torch.searchsorted(reached, had).to(device)
        state = {name: fresh.index_copy_(0, place, half.state[name]) for name, fresh in state.items()}
    return Perturbation((reached % n).to(device), (reached // n).to(device), product(mixing, half.theta), state)


def _outgoing(W: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every link that leaves one of `nodes`: which entry of `nodes` it leaves, its weight, whom it reaches."""
    receivers, senders, weights = (column.cpu() for column in links(W))
    order = senders.argsort(stable=True)
    degree = senders.bincount(minlength=W.shape[0])
    row = torch.arange(len(nodes)).repeat_interleave(degree[nodes])
    within = torch.arange(len(row)) - (degree[nodes].cumsum(0) - degree[nodes])[row]
    link = order[(degree.cumsum(0) - degree)[nodes][row] + within]
    return row, weights[link], receivers[link]
