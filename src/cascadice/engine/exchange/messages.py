"""The exchange by messages: every process has its own participants, and sends along the edges of W alone.

    apply  θ_k^{t+1} = Σ_j W[k, j] θ_j^{t+½}      j's process sends θ_j^{t+½} to those of everybody who hears it
    pull   λ_j^{t+½} = Σ_k W[k, j] λ_k^{t+1}      k's process sends Σ_k W[k, j] λ_k to that of everybody it heard

So adjoints travel the same edges backwards. Own rows are mixed while those of others are on their way. Where messages
are missing and the policy is to carry on, a row of W is what came, scaled to the sum of the whole row.
"""

from collections.abc import Iterator, Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import names
from cascadice.engine.exchange import frames
from cascadice.engine.exchange.attendance import PATIENCE, Attendance, PeerError
from cascadice.engine.exchange.frames import ADJOINT, MODEL, STILL_WAITING, Frame
from cascadice.engine.exchange.post import MissingError, Post
from cascadice.engine.exchange.routes import Routes, as_rows, from_rows, renormalised, routes
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Adjoint, Round, rows_of
from cascadice.engine.simulation import DivergedError
from cascadice.topology.mixing import full_precision

__all__ = ["Joined", "Messages", "PeerError"]

EARLY = 2  # rounds by which who was behind, or is new, comes before the others: so it is in time
TRAILING = 2  # exchanges in a row that others finished without this process, before it leaves some out
SETTLING = 0.3  # seconds between the first and the last of those whom a newcomer hears


class Joined(NamedTuple):
    """What a process heard that came into a training."""

    t: int  # the round that it heard
    start: int  # the round to start with
    W: Float[Tensor, "n n"]  # by which it mixed what it heard; nothing of its own
    participants: Participants  # what its own participants have now


class Messages:
    """An exchange between processes.

    Args:
        network: The part of this process; see `engine.parts.part_of`.
        parts: The participants of every process, in the order of their ranks.
        rank: The number of this process.
        group: A process group that can send and receive; `Pairs`, where processes may come back.
        policy: What to do without a message that should have come: "stop", or "carry-on" without it.
        patience: Seconds to wait for messages in a round; by default 60 before a stop, 2 where it goes on.

    Example:
        >>> exchange = Messages(part_of(network, parts[rank]), parts, rank, dist.group.WORLD)
        >>> for round in simulate(mine, 100, operator=Operator(mine, exchange)):
        ...     print(round.t, float(round.loss.mean()))
    """

    def __init__(
        self, network: Network, parts: Sequence[Sequence[int]], rank: int, group: Any, policy: str = "stop",
        patience: float | None = None,
    ) -> None:  # fmt: skip
        if tuple(parts[rank]) != network.members:
            raise ValueError(f"process {rank} must have participants {tuple(parts[rank])}; found {network.members}.")
        usual = names.lookup(PATIENCE, policy, "policy")
        self._parts, self._rank, self._stops = [torch.tensor(part) for part in parts], rank, policy == "stop"
        self._own, self._dtype, self._network = self._parts[rank], network.initial.theta.dtype, network
        self._columns = as_rows(rows_of(network.initial, slice(1))).shape[1]
        self._peers = [peer for peer in range(len(parts)) if peer != rank]
        self._place = {k: place for place, k in enumerate(parts[rank])}
        self._known: tuple[Tensor, Routes] | None = None
        self._step, self._overtaken, self._waited = 0, 0, -1
        self._mixed, self._sent = torch.empty(0), list[Tensor]()
        self.incomplete = False  # whether messages were missing in the round that was applied last
        # an adjoint goes to whoever was heard: its rows are of the receiver's participants
        allowed = {peer: {MODEL: frozenset(parts[peer]), ADJOINT: frozenset(parts[rank])} for peer in self._peers}
        largest = {peer: max(len(parts[peer]), len(self._own)) for peer in self._peers}
        self.post = Post(
            group,
            {peer: frames.size(rows, self._columns, self._dtype) for peer, rows in largest.items()},
            lambda peer, data: frames.unpack(data, self._columns, self._dtype, allowed[peer]),
            lossy=not self._stops,
        )
        self.attendance = Attendance(self.post, usual if patience is None else patience, self._stops)

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        rows, ways = as_rows(half), self._routes(round_.W)
        self._overtaken = self._overtaken + 1 if self._is_overtaken(ways) else 0
        earlier, self._sent = self._sent, []
        for heard, peers in ways.sends.items():
            chosen = rows if len(heard) == len(rows) else rows[[self._place[k] for k in heard]]
            data = frames.pack(Frame(MODEL, self._step, round_.t, torch.tensor(heard), chosen))
            self._sent.append(data)
            for peer in peers:
                self.post.send(peer, data, self.attendance.patience)
        place = out.theta if out is not None and rows is half.theta else None
        mixed = _product(ways.mine[:, self._own], rows, place)
        try:
            came = self._add_received(mixed, ways.mine, round_.t, ways.awaited)
        except PeerError:
            # the others may have stopped because of what this process sent, now or in the round before
            self._check_finite(round_.t - 1, earlier)
            self._check_finite(round_.t, self._sent)
            raise
        came[self._own] = True
        self._mixed, self.incomplete = round_.W, bool(ways.mine[:, ~came].any())
        if self.incomplete and self._stops:
            raise PeerError(
                f"a message of round {round_.t} left participants out. Do all processes run the same network?"
            )
        if self.incomplete:
            self._mixed, mixed = self._averaged(ways.W, mixed, rows, came)
        return from_rows(mixed, half, out)

    def _add_received(self, total: Tensor, mine: Float[Tensor, "m n"], t: int, peers: Sequence[int]) -> Tensor:
        """Add what these peers send to the sums of own participants, and return whose rows came."""
        came = torch.zeros(mine.shape[1], dtype=torch.bool)
        for frame in self._frames(MODEL, t, peers):
            with full_precision():
                total.addmm_(mine[:, frame.nodes].to(total), frame.rows.to(total))
            came[frame.nodes] = True
        return came

    def _averaged(self, W: Tensor, sums: Tensor, rows: Tensor, came: Tensor) -> tuple[Tensor, Tensor]:
        """W with own rows over those who came, and sums over these as averages; who has nobody left keeps its row."""
        mine = W[self._own]
        full, left = mine.sum(1, keepdim=True), (mine * came).sum(1, keepdim=True)
        averages = torch.where(left > 0, sums * (full / left).to(rows), rows)
        return W.index_copy(0, self._own, renormalised(mine, came, self._own)), averages

    def _routes(self, W: Float[Tensor, "n n"]) -> Routes:
        """What W asks of this process; that of the last W is remembered, because W is often the same for long."""
        if self._known is None or self._known[0] is not W:
            self._known = W, routes(W.to_dense(), self._parts, self._rank)
        return self._known[1]

    def mixed(self, round_: Round) -> Float[Tensor, "n n"]:
        return self._mixed  # of the round applied last: own rows as they really were, those of others as planned

    def pull(self, round_: Round, adjoint: Adjoint, plus: Tensor | None, out: Tensor | None) -> Adjoint:
        W, planned = round_.W.to_dense(), self._network.mixing(round_.t).to_dense()
        wide = adjoint.theta.new_zeros(len(self._own), self._columns)
        wide[:, : adjoint.theta.shape[1]] = adjoint.theta
        for peer in self._peers:
            weights = W[self._own][:, self._parts[peer]]
            heard = (weights != 0).any(0)
            # who was not heard gets an empty message, or it would wait
            if bool(heard.any()) or bool(planned[self._own][:, self._parts[peer]].any()):
                rows = _product(weights[:, heard].T, wide)
                data = frames.pack(Frame(ADJOINT, self._step, round_.t, self._parts[peer][heard], rows))
                self.post.send(peer, data, self.attendance.patience)
        theta = _product(W[self._own][:, self._own].T, adjoint.theta)
        hearing = [p for p in self._peers if W[self._parts[p]][:, self._own].any()]
        for frame in self._frames(ADJOINT, round_.t, hearing):
            theta[torch.searchsorted(self._own, frame.nodes)] += frame.rows[:, : theta.shape[1]].to(theta)
        theta = theta if plus is None else theta.add_(plus)
        return adjoint._replace(theta=theta if out is None else out.copy_(theta))

    def replay(self, *_: Any) -> NoReturn:
        """Changes of others' models are nobody's to replay."""
        raise ValueError(
            "the truth of one update needs everybody's models in one place. Between processes, use reverse gossip or "
            "whole-run influence, which pass adjoints from neighbour to neighbour."
        )

    push = replay

    def behind(self) -> int:
        """How many exchanges to leave out to be in step with the others; 0 if this process is.

        Call it after each exchange. A peer that had already sent its next message did not wait for this process; two
        such exchanges in a row mean that it is behind. Being the slowest of those who wait for one another does not
        count as late. One peer alone is not believed if there are others.
        """
        steps = sorted(frame.step for frame in self._newest().values())
        ahead = steps[-2:][0] - self._step if len(steps) >= self._enough(self._peers) else -1
        if ahead <= EARLY and self._overtaken < TRAILING:
            return 0
        self._overtaken = 0
        return max(0, ahead) + EARLY

    def begin(self, t: int) -> None:
        """Number exchanges as rounds, of which t is the next: so a newcomer knows which round it hears."""
        self._step = t

    def skip(self, exchanges: int) -> None:
        """Leave out so many exchanges, as if this process had been absent."""
        self._step += exchanges

    def listen(self, here: Participants, timeout: float) -> Joined | None:
        """Come into a training that is going on: hear one round of it, and start from the average of what was heard.

        The others must have begun with `begin`: messages are numbered as rounds, whatever round they say they are of.
        What nobody sends stays as it is `here`; None if nobody sends anything for `timeout` seconds.
        """
        end, first = monotonic() + timeout, float("inf")
        while (now := monotonic()) < min(end, first + SETTLING) and len(came := self._newest()) < len(self._peers):
            first = now if first > now and came else first
            sleep(0.002)
        if not (came := self._newest()):
            return None
        self._step = t = sorted(frame.step for frame in came.values())[-2:][0]
        W = self._network.mixing(t).to_dense()
        rows = as_rows(here)
        sums = torch.zeros_like(rows)
        heard = self._add_received(sums, W[self._own], t, list(came))
        self.skip(EARLY - 1)
        W, mixed = self._averaged(W, sums, rows, heard)
        return Joined(t, t + EARLY, W, from_rows(mixed, here, None))

    def _is_overtaken(self, ways: Routes) -> bool:
        """Whether those who hear this process have finished, without it, the exchange that it is about to begin."""
        hearing = [peer for peers in ways.sends.values() for peer in peers]
        return not self._stops and sum(self.post.passed(p, self._step) for p in hearing) >= self._enough(hearing)

    def _enough(self, peers: Sequence[int]) -> int:
        """How many of these peers must say the same to be believed: two, or one if not even two are waited for."""
        sending = {p for p in peers if p in self.post.usable and not self.post.gone(p)}
        return 2 if len(sending - self.attendance.late) > 1 else 1

    def _newest(self) -> dict[int, Frame]:
        """The newest message of each peer that was not asked for."""
        newest = {peer: self.post.newest(peer, self._step) for peer in self._peers}
        return {peer: frame for peer, frame in newest.items() if frame is not None}

    def _frames(self, kind: int, t: int, peers: Sequence[int]) -> Iterator[Frame]:
        """The messages of these peers in this exchange, of those whose message can be used."""
        start, step = monotonic(), self._step
        self._step += 1
        for peer in peers:
            try:
                frame = self._receive(peer, kind, step, start, self.attendance.until(peer, peers, start, step))
                if frame.t != t:
                    raise MissingError(f"its message was of round {frame.t}")
            except MissingError as error:
                self.attendance.missing(peer, f"its {frames.KINDS[kind]} of round {t}", error)
            else:
                self.attendance.came(peer)
                for node in frame.not_finite:
                    why = MissingError(f"it sent numbers of participant {node} that are NaN or infinite")
                    self.attendance.missing(peer, f"all its {frames.KINDS[kind]} of round {t}", why)
                yield frame

    def _receive(self, peer: int, kind: int, step: int, start: float, end: float) -> Frame:
        """A message. A process that has waited long tells its neighbours, or they would time out on it too."""
        half = start + self.attendance.patience / 2
        if self._stops or end <= half:
            return self.post.receive(peer, kind, step, end)
        try:
            return self.post.receive(peer, kind, step, half)
        except MissingError as error:
            if not error.late:
                raise
        for other in self._peers if self._waited < step else ():
            self.post.send(other, frames.notice(STILL_WAITING, step))
        self._waited = step
        return self.post.receive(peer, kind, step, end, self.attendance.patience)

    def _check_finite(self, t: int, sent: Sequence[Tensor]) -> None:
        for data in sent:
            if (node := frames.not_finite(data)) is not None:
                raise DivergedError(t, self._place[node], sent="sent parameters that") from None


def _product(W: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    with full_precision():
        return torch.mm(W.to(rows), rows, out=out)
