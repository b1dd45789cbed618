"""Who is waited for, and what is done about messages that are missing."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic

from cascadice.engine.exchange.post import MissingError, Post

PATIENCE: Mapping[str, float] = {"stop": 60.0, "carry-on": 2.0}
"""What to do about a missing message, and how many seconds to wait for it by default."""

GRACE = 0.1  # of the patience, for who is late by less than a round
REASONS = 100  # that are told apart: some hold numbers that a peer sent

log = logging.getLogger(__name__)


class PeerError(ConnectionError):
    """A process that is needed did not send what it should have."""


class Attendance:
    """Whom a process waits for.

    A peer that was late is not waited for until one of its messages is in time, with two exceptions. If everybody was
    late and still sends, this process is ahead of them. And a peer whose last message was that of the exchange before
    is late by less than a round: it is waited for a little, or it would stay so.
    """

    def __init__(self, post: Post, patience: float, stops: bool) -> None:
        self._post, self._stops = post, stops
        self.patience = patience  # seconds to wait for the messages of a round
        self.late: set[int] = set()  # peers that are not waited for
        self.missed: Counter[tuple[int, str]] = Counter()  # for each peer and reason
        self._warned: set[int] = set()

    def until(self, peer: int, peers: Sequence[int], start: float, step: int) -> float:
        """Until when to wait for a peer, one of several, in the exchange with this number, which began at `start`."""
        ahead = self.late.issuperset(peers) and monotonic() - self._post.last_arrival(peer) < self.patience
        if peer not in self.late or ahead:
            return start + self.patience
        return start + self.patience * GRACE if self._post.last_step(peer) == step - 1 else start

    def came(self, peer: int) -> None:
        """A message was in time."""
        self.late.discard(peer)
        if peer in self._warned:
            self._warned.remove(peer)
            log.warning("process %d is sending again.", peer)

    def missing(self, peer: int, what: str, error: MissingError) -> None:
        """Stop, or note that a message is missing; the first of a peer and reason is logged."""
        why = str(error)
        if self._stops:
            late = f"nothing came for {self.patience:g} s. Is it still running?"
            reason = late if error.late else f"{why}. Its own error may say more."
            raise PeerError(f"process {peer} did not send {what}: {reason}")
        if error.late or self._post.gone(peer):
            self.late.add(peer)
        key = (peer, why if (peer, why) in self.missed or len(self.missed) < REASONS else "other reasons")
        self.missed[key] += 1
        if self.missed[key] == 1:
            self._warned.add(peer)
            log.warning("process %d did not send %s: %s. Its neighbours go on without it.", peer, what, key[1])

    def __str__(self) -> str:
        parts = (f"{count} of process {peer} ({why})" for (peer, why), count in self.missed.items())
        return f"missing messages: {'; '.join(parts) or 'none'}"
