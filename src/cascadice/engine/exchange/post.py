"""Letters to and from the other processes, by torch.distributed: a thread for each direction of each pair.

The thread that receives always has a buffer waiting, with room for twice the largest message that its peer may send,
and a few messages of each peer are kept, as they came: memory is bounded whatever a peer sends. Late, early and
repeated messages are told apart by their number; the rest is checked by the thread that asks for a message, because
threads that take turns cost more than the checks. A peer that dies makes its own threads stop, nobody else's.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from queue import Full, Queue
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine.exchange.frames import GOODBYE, HEADER, STILL_WAITING, Frame, FrameError, announced, notice

WAITING = 4  # messages to a peer that does not read, before further ones wait or are dropped
AHEAD = 4  # messages of a peer that are kept until they are asked for
TAG = 7
ROOM = 2**20  # bytes by which a message may be too large at least, or by its whole size: beyond that, gloo aborts
MARK = torch.tensor([0x5A, 0xC3, 0x96, 0x0F] * 2, dtype=torch.uint8)  # stands behind the room of the largest message
FINISHED = "it has finished"
ENDLESS = timedelta(days=3650)  # gloo closes every pair of a group in which one wait times out


class MissingError(Exception):
    """A message that was not there when it was needed; `late` if it may still come."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Letter(NamedTuple):
    """A message that came: as it came, as the frame that it is, or what is wrong with it; and its bytes."""

    what: Tensor | Frame | str
    bytes: int = 0


class Post:
    """Sends frames to other processes, and hands out those that came.

    Args:
        group: A process group of torch.distributed that can send and receive (gloo); or `Pairs`, which connects again
            to a peer that comes back.
        peers: The other processes it talks to, and how many bytes the largest message of each has.
        read: Makes a frame of the bytes that a peer sent, or raises a FrameError; called when it is asked for.
        lossy: What to do where one side is ahead by more messages than are kept: drop some, or wait for the other.

    Attributes:
        sent, received: Bytes, for each peer; of messages that were asked for and came, as many as they say they have.
        usable: The peers of which a message could be read.
        refused: What was wrong with messages that were not used, and how often.
    """

    def __init__(
        self, group: Any, peers: Mapping[int, int], read: Callable[[int, Tensor], Frame], lossy: bool = False
    ) -> None:
        self._group, self._read, self._lossy, self._closing = group, read, lossy, False
        self.sent, self.received, self.refused = Counter[int](), Counter[int](), Counter[str]()
        self.usable = set[int]()
        self._changed = threading.Condition()
        self._came: dict[int, dict[tuple[int, int], Letter]] = {peer: {} for peer in peers}
        self._gone: dict[int, str] = {}
        self._heard: dict[int, tuple[float, int]] = {}
        self._waits: dict[int, int] = {}
        self._letters: dict[int, Queue[Tensor | None]] = {peer: Queue(WAITING) for peer in peers}
        self._connected = {peer: threading.Event() for peer in peers}
        self._threads = list[threading.Thread]()
        for peer, size in peers.items():
            self._start(self._receives, peer, size)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def meet(self, timeout: float) -> bool:
        """Wait until everybody has been there; False if somebody does not come in time."""
        end = monotonic() + timeout
        return all(connected.wait(max(0.0, end - monotonic())) for connected in self._connected.values())

    def send(self, peer: int, data: Tensor, timeout: float = 0.0) -> bool:
        """Hand in a packed frame; it leaves while the caller goes on. False if the peer is gone or does not read."""
        if peer in self._gone:
            return False
        try:
            self._letters[peer].put(data, block=not self._lossy, timeout=timeout)
        except Full:
            self.refused[f"process {peer} does not read; messages to it were dropped"] += 1
            return False
        self.sent[peer] += len(data)
        return True

    def receive(self, peer: int, kind: int, step: int, end: float, longer: float = 0.0) -> Frame:
        """The frame with this number, waited for until the clock `monotonic` says `end`.

        If the peer has said that it waits for another one, in the exchange before, it is waited for `longer`.

        Raises:
            MissingError: Where it is wrong, was lost or left out, does not come in time, or its sender is gone.
        """
        letter = self._waited_for(peer, (kind, step), end, longer)
        self.received[peer] += letter.bytes  # not when it comes: that may be in an earlier round, or in this one
        found = self._opened(peer, letter.what)
        if isinstance(found, str):
            raise MissingError(found)
        return found

    def _waited_for(self, peer: int, key: tuple[int, int], end: float, longer: float) -> Letter:
        step = key[1]
        with self._changed:
            while True:
                came = self._came[peer]
                for old in [other for other in came if other[1] < step]:
                    del came[old]
                    self.refused[f"process {peer} sent messages that were stale"] += 1
                if key in came:
                    self._changed.notify_all()
                    return came.pop(key)
                # messages come in the order in which they were sent; a number far ahead is a lie, as the next one shows
                if any(number <= step + AHEAD for _, number in came):
                    raise MissingError("it sent a later message, but not this one")
                if peer in self._gone:
                    raise MissingError(self._gone[peer])
                if (left := end - monotonic()) > 0:
                    self._changed.wait(left)
                elif longer and self._waits.get(peer) == step - 1:
                    end, longer = end + longer, 0.0
                else:
                    raise MissingError("nothing came in time", late=True)

    def _opened(self, peer: int, what: Tensor | Frame | str) -> Frame | str:
        """The frame that a message is, or what is wrong with it."""
        if not isinstance(what, Tensor):
            return what
        try:
            frame = self._read(peer, what)
        except FrameError as error:
            self.refused[f"process {peer} sent {error}"] += 1
            return f"it sent {error}"
        self.usable.add(peer)
        return frame

    def newest(self, peer: int, near: int) -> Frame | None:
        """The message with the highest number that came of a peer and was not asked for.

        One number far ahead is not believed, until the peer's next message is near it, or near the number given.
        """
        with self._changed:
            came = self._came[peer]
            came.update({key: one._replace(what=self._opened(peer, one.what)) for key, one in came.items()})
            good = [one.what for one in came.values() if isinstance(one.what, Frame)]
        good.sort(key=lambda frame: frame.step)
        known = [near, *(frame.step for frame in good)]
        believed = [frame for before, frame in zip(known, good, strict=False) if frame.step - before <= AHEAD]
        return believed[-1] if believed else None

    def passed(self, peer: int, step: int) -> bool:
        """Whether a peer's message with this number and the next one have both come, and neither was asked for."""
        with self._changed:
            steps = {number for _, number in self._came[peer]}
        return {step, step + 1} <= steps

    def heard(self, peer: int) -> float:
        """When, by the clock `monotonic`, something last came from a peer."""
        return self._heard[peer][0] if peer in self._heard else float("-inf")

    def last(self, peer: int) -> int:
        """The number of the message that came last from a peer; -1 if none did."""
        return self._heard[peer][1] if peer in self._heard else -1

    def gone(self, peer: int) -> str:
        """Why nothing more will come from this peer for now; "" if it is there."""
        return self._gone.get(peer, "")

    def close(self, timeout: float = 5.0) -> None:
        """Let what was handed in leave, say goodbye, and wait a little for that of the others."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        goodbye, end = notice(GOODBYE), monotonic() + timeout
        for peer, connected in self._connected.items():
            if not connected.is_set():
                self._lose(peer, "it never came")
                continue
            for letter in (goodbye, None):
                with suppress(Full):
                    self._letters[peer].put(letter, timeout=max(0.0, end - monotonic()))
        if hasattr(self._group, "close"):
            self._group.close()
        for thread in tuple(self._threads):
            thread.join(max(0.0, end - monotonic()))

    def _receives(self, peer: int, size: int) -> None:
        if not hasattr(self._group, "connect"):
            self._begin(peer)
            self._reads(peer, size)
            return
        while not self._closing and self._group.connect(peer):
            self._begin(peer)
            self._reads(peer, size)

    def _begin(self, peer: int) -> None:
        """Begin with a connection. One after the first has a sender of its own: the earlier may be stuck for good."""
        with self._changed:
            if self._connected[peer].is_set():
                earlier, self._letters[peer] = self._letters[peer], Queue(WAITING)
                with suppress(Full):
                    earlier.put_nowait(None)
            self._gone.pop(peer, None)
            self._came[peer].clear()
        self._connected[peer].set()
        self._start(self._sends, peer, self._letters[peer])

    def _reads(self, peer: int, size: int) -> None:
        while True:
            room = torch.empty(size + max(size, ROOM), dtype=torch.uint8)
            buffer, behind = room[:size], room[size : size + len(MARK)]  # a frame's rows are part of the buffer
            buffer[: HEADER.size] = 0  # what came before must not pass for a header
            behind.copy_(MARK)
            try:
                self._group.recv([room], peer, TAG).wait(ENDLESS)
            except RuntimeError as error:
                self._lose(peer, _reason(error))
                return
            try:
                kind, step, count = announced(buffer)
            except FrameError as error:
                self.refused[f"process {peer} sent {error}"] += 1
                continue
            if kind == GOODBYE:
                self._lose(peer, FINISHED)
                return
            if kind == STILL_WAITING:
                self._waits[peer] = step
            elif torch.equal(behind, MARK):
                self._accept(peer, (kind, step), Letter(buffer, count))
            else:
                self.refused[f"process {peer} sent messages that were too large"] += 1
                self._accept(peer, (kind, step), Letter(f"it sent a message of more than {size} bytes", count))

    def _accept(self, peer: int, key: tuple[int, int], letter: Letter) -> None:
        with self._changed:
            came = self._came[peer]
            self._heard[peer] = monotonic(), key[1]
            if key in came:
                self.refused[f"process {peer} sent a message twice"] += 1
                return
            for lie in [other for other in came if other[1] > key[1] + AHEAD]:
                del came[lie]  # messages come in the order in which they were sent
            while len(came) >= AHEAD and not self._lossy and not self._closing:
                self._changed.wait()
            if len(came) >= AHEAD:
                del came[next(iter(came))]
                self.refused[f"process {peer} was ahead by more messages than are kept"] += 1
            came[key] = letter
            self._changed.notify_all()

    def _sends(self, peer: int, letters: "Queue[Tensor | None]") -> None:
        while (data := letters.get()) is not None and letters is self._letters[peer]:
            if self._gone.get(peer, FINISHED) != FINISHED:
                continue
            try:
                self._group.send([data], peer, TAG).wait(ENDLESS)
            except RuntimeError as error:
                self._lose(peer, _reason(error), letters)

    def _lose(self, peer: int, why: str, letters: "Queue[Tensor | None] | None" = None) -> None:
        """Note that a peer is gone; not if it has come back since, and these letters were for an earlier connection."""
        with self._changed:
            if letters is None or letters is self._letters[peer]:
                self._gone.setdefault(peer, why)
            self._changed.notify_all()


def _reason(error: Exception) -> str:
    """What gloo says, without source lines, addresses and jokes: [pair.cc:534] Connection closed by peer [::1]:80."""
    first, *_ = str(error).strip().splitlines() or [""]
    return re.sub(r" *\[[^]]*\](:\d+)?\.? *", "", first).partition("GLHF")[0].rstrip(" .")
