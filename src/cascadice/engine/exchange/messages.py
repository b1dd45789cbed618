"""The exchange by messages: every process has its own participants, and sends along the edges of W alone.

    apply  θ_k^{t+1} = Σ_j W[k, j] θ_j^{t+½}      j's process sends θ_j^{t+½} to those of everybody who hears it
    pull   λ_j^{t+½} = Σ_k W[k, j] λ_k^{t+1}      k's process sends Σ_k W[k, j] λ_k to that of everybody it heard

So adjoints travel the same edges backwards. Own rows are mixed while those of others are on their way.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.exchange import frames
from cascadice.engine.exchange.frames import ADJOINT, MODEL, Frame
from cascadice.engine.exchange.post import Post
from cascadice.engine.exchange.stacked import Point
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Adjoint, Perturbation, Round
from cascadice.topology.mixing import full_precision

PATIENCE = 60.0  # seconds to wait for a message


class PeerError(ConnectionError):
    """A process that is needed did not send what it should have."""


class Messages:
    """An exchange between processes.

    Args:
        network: The part of this process; see `engine.parts.part_of`.
        parts: The participants of every process, in the order of their ranks.
        rank: The number of this process.
        group: A process group that can send and receive.
        patience: Seconds to wait for a message.

    Attributes:
        post: What was sent, received and refused.

    Example:
        >>> exchange = Messages(part_of(network, parts[rank]), parts, rank, dist.group.WORLD)
        >>> for round in simulate(mine, 100, operator=Operator(mine, exchange)):
        ...     print(round.t, float(round.loss.mean()))
    """

    def __init__(
        self, network: Network, parts: Sequence[Sequence[int]], rank: int, group: Any, patience: float = PATIENCE
    ) -> None:
        if tuple(parts[rank]) != network.members:
            raise ValueError(f"process {rank} must have participants {tuple(parts[rank])}; found {network.members}.")
        self._parts, self._rank, self._patience = [torch.tensor(part) for part in parts], rank, patience
        self._own, self._dtype = self._parts[rank], network.initial.theta.dtype
        self._columns = network.learner.size + sum(_width(buffer) for buffer in _real(network.initial))
        self._step = 0
        allowed = [frozenset(part) for part in parts]
        everybody = sum(map(len, parts))
        # an adjoint goes to whoever was heard: its rows are of the receiver's participants
        largest = {peer: max(len(part), len(self._own)) for peer, part in enumerate(parts) if peer != rank}
        self.post = Post(
            group,
            {peer: frames.size(rows, self._columns, self._dtype) for peer, rows in largest.items()},
            lambda peer, data: frames.unpack(data, self._columns, self._dtype, allowed[peer] | allowed[rank]),
        )
        self._nodes = everybody

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        """What own participants have after this round if they send `half`."""
        real = {name: buffer for name, buffer in half.buffers.items() if buffer.is_floating_point()}
        rows = torch.cat([half.theta, *(buffer.reshape(len(buffer), -1).to(half.theta) for buffer in real.values())], 1)
        W = round_.W.to_dense()
        for peer in self._peers():
            heard = self._own[(W[self._parts[peer]][:, self._own] != 0).any(0)]
            if len(heard):
                self._send(peer, MODEL, round_.t, heard, rows[torch.isin(self._own, heard)])
        mixed = _product(W[self._own][:, self._own], rows)
        for peer in self._peers():
            weights = W[self._own][:, self._parts[peer]]
            if bool((weights != 0).any()):
                frame = self._receive(peer, MODEL, round_.t)
                mixed += _product(W[self._own][:, frame.nodes], frame.rows.to(rows))
        self._step += 1
        return _unjoined(mixed, half, real, out)

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint:
        """The adjoint of what own participants sent, plus `plus`; into `out` if given."""
        W = round_.W.to_dense()
        wide = adjoint.theta.new_zeros(len(self._own), self._columns)
        wide[:, : adjoint.theta.shape[1]] = adjoint.theta
        for peer in self._peers():
            weights = W[self._own][:, self._parts[peer]]
            heard = (weights != 0).any(0)
            if bool(heard.any()):
                self._send(peer, ADJOINT, round_.t, self._parts[peer][heard], _product(weights[:, heard].T, wide))
        theta = _product(W[self._own][:, self._own].T, adjoint.theta)
        for peer in self._peers():
            if bool((W[self._parts[peer]][:, self._own] != 0).any()):
                frame = self._receive(peer, ADJOINT, round_.t)
                theta[torch.isin(self._own, frame.nodes)] += frame.rows[:, : theta.shape[1]].to(theta)
        self._step += 1
        theta = theta if plus is None else theta.add_(plus)
        return adjoint._replace(theta=theta if out is None else out.copy_(theta))

    def replay(self, round_: Round, before: Perturbation | None, half: Perturbation) -> NoReturn:
        """Changes of others' models are nobody's to replay."""
        raise ValueError(
            "the truth of one update needs everybody's models in one place. Between processes, use reverse gossip or "
            "whole-run influence, which pass adjoints from neighbour to neighbour."
        )

    def push(self, round_: Round, at: Point, before: Perturbation | None, half: Perturbation) -> NoReturn:
        """As `replay`."""
        self.replay(round_, before, half)

    def _peers(self) -> list[int]:
        return [peer for peer in range(len(self._parts)) if peer != self._rank]

    def _send(self, peer: int, kind: int, t: int, nodes: Tensor, rows: Float[Tensor, "rows d"]) -> None:
        self.post.send(peer, Frame(kind, self._step, t, nodes, rows))

    def _receive(self, peer: int, kind: int, t: int) -> Frame:
        frame = self.post.receive(peer, kind, self._step, self._patience)
        if frame is None:
            why = self.post.gone(peer) or f"nothing came for {self._patience:g} s"
            raise PeerError(
                f"process {peer} did not send its {frames.KINDS[kind]} of round {t}: {why}. Is it still running?"
            )
        return frame


def _product(W: Tensor, rows: Tensor) -> Tensor:
    with full_precision():
        return W.to(rows) @ rows


def _real(participants: Participants) -> list[Tensor]:
    return [buffer for buffer in participants.buffers.values() if buffer.is_floating_point()]


def _width(buffer: Tensor) -> int:
    return buffer[0].numel()


def _unjoined(rows: Tensor, half: Participants, real: dict[str, Tensor], out: Participants | None) -> Participants:
    """Parameters and real-valued buffers, out of rows that hold both."""
    theta, *parts = torch.split(rows, [half.theta.shape[1], *(_width(buffer) for buffer in real.values())], 1)
    travelled = {
        name: part.reshape(buffer.shape).to(buffer) for (name, buffer), part in zip(real.items(), parts, strict=True)
    }
    buffers = half.buffers | travelled
    if out is None:
        return Participants(theta.contiguous(), half.state, buffers)
    buffers = {name: out.buffers[name].copy_(value) for name, value in buffers.items()}
    return Participants(out.theta.copy_(theta), half.state, buffers)
