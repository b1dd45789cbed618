"""Messages to and from the other processes, by torch.distributed.

Each peer has two threads: one sends to it, one receives from it. A peer that dies stops its own threads, nobody else's.
The receiving thread always has a buffer ready, with room for twice the largest message its peer may send, and at most
`AHEAD` messages wait until they are asked for, so memory is bounded whatever a peer sends. Buffers are used again. The
number in its header says whether a message is late, early or repeated. The thread that asks for a message checks the
rest, because a switch between threads costs more than the checks.
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

OUTGOING = 4  # messages to a peer that does not read, before further ones wait or are dropped
AHEAD = 4  # messages of a peer that are kept until they are asked for
ANSWERING = 1.0  # seconds to find room for an answer to a goodbye
TAG = 7
ROOM = 2**20  # bytes by which a message may be too large at least, or by its whole size: beyond that, gloo aborts
MARK = bytes([0x5A, 0xC3, 0x96, 0x0F] * 2)  # stands behind the largest message allowed
NO_HEADER = bytes(HEADER.size)
FINISHED = "it has finished"
ENDLESS = timedelta(days=3650)  # gloo closes every pair of a group in which one wait times out


class MissingError(Exception):
    """A message that was not there when it was needed; `late` if it may still come."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class _Buffer:
    """Memory for a message of at most `size` bytes; a mark behind them is overwritten by a larger one."""

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size + max(size, ROOM), dtype=torch.uint8)
        self.message = self.memory[:size]
        whole = self.memory.numpy().data
        self._header, self._behind = whole[: HEADER.size], whole[size : size + len(MARK)]

    def prepare(self) -> None:
        """Remove the header of an earlier message, which must not pass for that of the next."""
        self._header[:], self._behind[:] = NO_HEADER, MARK

    @property
    def overflowed(self) -> bool:
        return self._behind != MARK


class Received(NamedTuple):
    """A message that has arrived: its bytes, the frame they hold, or what is wrong with it; and how many bytes."""

    content: Tensor | Frame | str
    bytes: int = 0
    buffer: _Buffer | None = None


class _Peer:
    """What is known of another process. `changed` guards all of it and is notified of every change."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed, self.connected = threading.Condition(), threading.Event()
        self.outgoing: Queue[Tensor | None] = Queue(OUTGOING)
        self.messages: dict[tuple[int, int], Received] = {}  # by kind and number, in the order of arrival
        self.gone, self.said_goodbye = "", False
        self.last_arrival, self.last_step = float("-inf"), -1
        self.waits_in = -1  # the exchange in which it said that it waits for somebody
        self._spare: list[_Buffer] = []
        self._in_use: _Buffer | None = None

    def empty_buffer(self) -> _Buffer:
        buffer = self._spare.pop() if self._spare else _Buffer(self.size)
        buffer.prepare()
        return buffer

    def use(self, buffer: _Buffer | None) -> None:
        """Note that the frame in this buffer is being used, and no longer the one before it."""
        if self._in_use is not None:
            self._spare.append(self._in_use)
        self._in_use = buffer


class Post:
    """Sends frames to other processes, and hands out those that arrived.

    Args:
        group: A process group of torch.distributed that can send and receive (gloo); or `Pairs`, which connects again
            to a peer that comes back.
        peers: The other processes it talks to, and how many bytes the largest message of each has.
        read: Makes a frame of the bytes that a peer sent, or raises a FrameError; called when it is asked for.
        lossy: What to do when one side is ahead by more messages than are kept: drop some, or wait for the other.
    """

    def __init__(
        self, group: Any, peers: Mapping[int, int], read: Callable[[int, Tensor], Frame], lossy: bool = False
    ) -> None:
        self._group, self._read, self._lossy, self._closing = group, read, lossy, False
        # bytes, for each peer; received are those of messages that were asked for, as their headers say
        self.sent, self.received = Counter[int](), Counter[int]()
        self.refused = Counter[str]()  # what was wrong with messages that were not used
        self.usable = set[int]()  # peers of which a message could be read
        self._peers = {peer: _Peer(size) for peer, size in peers.items()}
        self._threads = list[threading.Thread]()
        for peer in peers:
            self._start(self._receives, peer)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def meet(self, timeout: float) -> bool:
        """Wait until every peer has connected; False if one does not in time."""
        end = monotonic() + timeout
        return all(state.connected.wait(max(0.0, end - monotonic())) for state in self._peers.values())

    def send(self, peer: int, data: Tensor, timeout: float = 0.0) -> bool:
        """Send a packed frame while the caller goes on. False if the peer is gone or does not read."""
        state = self._peers[peer]
        if state.gone:
            return False
        try:
            state.outgoing.put(data, block=not self._lossy, timeout=timeout)
        except Full:
            self.refused[f"process {peer} does not read; messages to it were dropped"] += 1
            return False
        self.sent[peer] += len(data)
        return True

    def receive(self, peer: int, kind: int, step: int, end: float, longer: float = 0.0) -> Frame:
        """Return the frame with this number, waited for until the clock `monotonic` says `end`.

        If the peer has said that it waits for another one, in the exchange before, it is waited for `longer`. The rows
        of the frame are valid until the next message of the same peer is received. A MissingError says why none is.
        """
        received = self._wait_for(peer, (kind, step), end, longer)
        self._peers[peer].use(received.buffer)
        self.received[peer] += received.bytes  # not on arrival, which may be in an earlier round or in this one
        content = self._opened(peer, received.content)
        if isinstance(content, str):
            raise MissingError(content)
        return content

    def _wait_for(self, peer: int, key: tuple[int, int], end: float, longer: float) -> Received:
        state, step = self._peers[peer], key[1]
        with state.changed:
            while True:
                for old in [other for other in state.messages if other[1] < step]:
                    del state.messages[old]
                    self.refused[f"process {peer} sent messages that were stale"] += 1
                if key in state.messages:
                    state.changed.notify_all()
                    return state.messages.pop(key)
                # messages come in the order in which they were sent; a number far ahead is a lie, as the next one shows
                if any(number <= step + AHEAD for _, number in state.messages):
                    raise MissingError("it sent a later message, but not this one")
                if state.gone:
                    raise MissingError(state.gone)
                if (left := end - monotonic()) > 0:
                    state.changed.wait(left)
                elif longer and state.waits_in == step - 1:
                    end, longer = end + longer, 0.0
                else:
                    raise MissingError("nothing came in time", late=True)

    def _opened(self, peer: int, content: Tensor | Frame | str) -> Frame | str:
        """Return the frame in a message, or what is wrong with it."""
        if not isinstance(content, Tensor):
            return content
        try:
            frame = self._read(peer, content)
        except FrameError as error:
            self.refused[f"process {peer} sent {error}"] += 1
            return f"it sent {error}"
        self.usable.add(peer)
        return frame

    def newest(self, peer: int, near: int) -> Frame | None:
        """Return the message of a peer with the highest number that nobody has asked for yet.

        One number far ahead is not believed, until the peer's next message is near it, or near the number given.
        """
        state = self._peers[peer]
        with state.changed:
            for key, one in state.messages.items():
                state.messages[key] = one._replace(content=self._opened(peer, one.content))
            good = [one.content for one in state.messages.values() if isinstance(one.content, Frame)]
        good.sort(key=lambda frame: frame.step)
        known = [near, *(frame.step for frame in good)]
        believed = [frame for before, frame in zip(known, good, strict=False) if frame.step - before <= AHEAD]
        return believed[-1] if believed else None

    def passed(self, peer: int, step: int) -> bool:
        """Whether a peer's message with this number and the next one have both come, and neither was asked for."""
        state = self._peers[peer]
        with state.changed:
            return {step, step + 1} <= {number for _, number in state.messages}

    def last_arrival(self, peer: int) -> float:
        """When, by the clock `monotonic`, a message of a peer last arrived; −∞ if none did."""
        return self._peers[peer].last_arrival

    def last_step(self, peer: int) -> int:
        """The number of the message of a peer that arrived last; −1 if none did."""
        return self._peers[peer].last_step

    def gone(self, peer: int) -> str:
        """Why nothing more will come from this peer for now; "" if it is there."""
        return self._peers[peer].gone

    def close(self, timeout: float = 5.0) -> None:
        """Let outgoing messages leave, say goodbye, and wait a little for the goodbyes of the others."""
        self._closing = True
        end = monotonic() + timeout
        for state in self._peers.values():
            with state.changed:
                state.changed.notify_all()
            if not state.connected.is_set():
                self._lose(state, "it never came")
            else:
                self._say_goodbye(state, max(0.0, end - monotonic()))
        if hasattr(self._group, "close"):
            self._group.close()
        for thread in tuple(self._threads):
            thread.join(max(0.0, end - monotonic()))

    def _say_goodbye(self, state: _Peer, timeout: float) -> None:
        """Say it once, as the last message. A peer answers it: gloo aborts a process that ends while a thread waits."""
        with state.changed:
            said, state.said_goodbye = state.said_goodbye, True
        for message in () if said else (notice(GOODBYE), None):
            with suppress(Full):
                state.outgoing.put(message, timeout=timeout)

    def _receives(self, peer: int) -> None:
        if not hasattr(self._group, "connect"):
            self._connected(peer)
            self._receives_until_gone(peer)
            return
        while not self._closing and self._group.connect(peer):
            self._connected(peer)
            self._receives_until_gone(peer)

    def _connected(self, peer: int) -> None:
        """Start to send. After the first connection, with a new thread: the earlier one may be stuck for good."""
        state = self._peers[peer]
        with state.changed:
            if state.connected.is_set():
                earlier, state.outgoing = state.outgoing, Queue(OUTGOING)
                with suppress(Full):
                    earlier.put_nowait(None)
            state.gone, state.said_goodbye = "", False
            state.messages.clear()
        state.connected.set()
        self._start(self._sends, peer, state.outgoing)

    def _receives_until_gone(self, peer: int) -> None:
        state = self._peers[peer]
        while True:
            buffer = state.empty_buffer()
            try:
                self._group.recv([buffer.memory], peer, TAG).wait(ENDLESS)
            except RuntimeError as error:
                return self._lose(state, _reason(error))
            try:
                kind, step, count = announced(buffer.message)
            except FrameError as error:
                self.refused[f"process {peer} sent {error}"] += 1
                continue
            if kind == GOODBYE:
                self._lose(state, FINISHED)
                return self._say_goodbye(state, ANSWERING)
            if kind == STILL_WAITING:
                state.waits_in = step
            elif not buffer.overflowed:
                self._accept(peer, (kind, step), Received(buffer.message, count, buffer))
            else:
                self.refused[f"process {peer} sent messages that were too large"] += 1
                why = f"it sent a message of more than {state.size} bytes"
                self._accept(peer, (kind, step), Received(why, count))

    def _accept(self, peer: int, key: tuple[int, int], message: Received) -> None:
        state = self._peers[peer]
        with state.changed:
            messages = state.messages
            state.last_arrival, state.last_step = monotonic(), key[1]
            if key in messages:
                self.refused[f"process {peer} sent a message twice"] += 1
                return
            for lie in [other for other in messages if other[1] > key[1] + AHEAD]:
                del messages[lie]  # messages come in the order in which they were sent
            while len(messages) >= AHEAD and not self._lossy and not self._closing:
                state.changed.wait()
            if len(messages) >= AHEAD:
                del messages[next(iter(messages))]
                self.refused[f"process {peer} was ahead by more messages than are kept"] += 1
            messages[key] = message
            state.changed.notify_all()

    def _sends(self, peer: int, outgoing: "Queue[Tensor | None]") -> None:
        state = self._peers[peer]
        while (data := outgoing.get()) is not None and outgoing is state.outgoing:
            if state.gone not in ("", FINISHED):
                continue
            try:
                self._group.send([data], peer, TAG).wait(ENDLESS)
            except RuntimeError as error:
                if outgoing is state.outgoing:  # else it has come back since
                    self._lose(state, _reason(error))

    def _lose(self, state: _Peer, why: str) -> None:
        with state.changed:
            state.gone = state.gone or why
            state.changed.notify_all()


def _reason(error: Exception) -> str:
    """What gloo says, without source lines, addresses and jokes: [pair.cc:534] Connection closed by peer [::1]:80."""
    first, *_ = str(error).strip().splitlines() or [""]
    return re.sub(r" *\[[^]]*\](:\d+)?\.? *", "", first).partition("GLHF")[0].rstrip(" .") or "its connection failed"
