"""Letters to and from the other processes, by torch.distributed: a thread for each direction of each pair.

The thread that receives always has a buffer waiting, of the largest size that its peer may send, so memory is bounded
by what is expected; late, early and repeated messages are told apart by their number. A peer that dies makes its own
threads end, nobody else's.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Full, Queue
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.exchange.frames import GOODBYE, Frame, FrameError, bytes_of, pack

WAITING = 4  # messages to a peer that does not read, before further ones are dropped
TAG = 7
FINISHED = "it has finished"


class Post:
    """Sends frames to other processes, and hands out those that came.

    Args:
        group: A process group of torch.distributed that can send and receive (gloo).
        peers: The other processes it talks to, and how many bytes the largest message of each has.
        read: Makes a frame of the bytes that a peer sent, or raises a FrameError.

    Attributes:
        sent, received: Bytes, for each peer.
        refused: What was wrong with messages that were not used, and how often.
    """

    def __init__(self, group: Any, peers: Mapping[int, int], read: Callable[[int, Tensor], Frame]) -> None:
        self._group, self._read = group, read
        self.sent, self.received, self.refused = Counter[int](), Counter[int](), Counter[str]()
        self._changed = threading.Condition()
        self._came: dict[int, dict[tuple[int, int], deque[Frame]]] = {peer: {} for peer in peers}
        self._gone: dict[int, str] = {}
        self._letters: dict[int, Queue[Tensor | None]] = {peer: Queue(WAITING) for peer in peers}
        self._threads = [
            threading.Thread(target=work, args=args, daemon=True)
            for peer, size in peers.items()
            for work, args in ((self._receives, (peer, size)), (self._sends, (peer,)))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, peer: int, frame: Frame) -> bool:
        """Hand in a frame; it leaves while the caller goes on. False if the peer is gone or does not read."""
        if peer in self._gone:
            return False
        data = pack(frame)
        try:
            self._letters[peer].put_nowait(data)
        except Full:
            self._refuse(f"process {peer} does not read; a message to it was dropped")
            return False
        self.sent[peer] += len(data)
        return True

    def receive(self, peer: int, kind: int, step: int, timeout: float) -> Frame | None:
        """The frame with this number; None if it does not come in time, or its sender is gone."""
        end = monotonic() + timeout
        with self._changed:
            while True:
                came = self._came[peer]
                for old in [key for key in came if key[0] == kind and key[1] < step]:
                    self._refuse(f"stale messages of process {peer}", len(came.pop(old)))
                if (kind, step) in came:
                    return came.pop((kind, step)).popleft()
                left = end - monotonic()
                if peer in self._gone or left <= 0:
                    return None
                self._changed.wait(left)

    def gone(self, peer: int) -> str:
        """Why nothing more will come from this peer; "" if it is there."""
        return self._gone.get(peer, "")

    def close(self, timeout: float = 5.0) -> None:
        """Let what was handed in leave, say goodbye, and wait a little for that of the others."""
        nothing = torch.empty(0)
        goodbye = pack(Frame(GOODBYE, 0, 0, nothing.long(), nothing.view(0, 1)))
        for peer in [peer for peer in self._letters if self.gone(peer) in ("", FINISHED)]:  # it waits for an answer
            for letter in (goodbye, None):
                with suppress(Full):
                    self._letters[peer].put(letter, timeout=timeout)
        end = monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - monotonic()))

    def _receives(self, peer: int, size: int) -> None:
        buffer = torch.empty(size, dtype=torch.uint8)
        while True:
            buffer.zero_()
            try:
                self._group.recv([buffer], peer, TAG).wait()
            except RuntimeError as error:
                self._lose(peer, str(error).strip().partition("\n")[0])
                return
            try:
                frame = self._read(peer, buffer)
            except FrameError as error:
                self._refuse(f"process {peer} sent {error}")
                continue
            if frame.kind == GOODBYE:
                self._lose(peer, FINISHED)
                return
            self._accept(peer, frame)

    def _accept(self, peer: int, frame: Frame) -> None:
        with self._changed:
            waiting = self._came[peer].setdefault((frame.kind, frame.step), deque())
            if waiting:
                self._refuse(f"process {peer} sent a message twice")
            else:
                waiting.append(frame)
                self.received[peer] += bytes_of(frame)
                self._changed.notify_all()

    def _sends(self, peer: int) -> None:
        while (data := self._letters[peer].get()) is not None:
            try:
                self._group.send([data], peer, TAG).wait()
            except RuntimeError as error:
                self._lose(peer, str(error).strip().partition("\n")[0])
                return

    def _lose(self, peer: int, why: str) -> None:
        with self._changed:
            self._gone.setdefault(peer, why)
            self._changed.notify_all()

    def _refuse(self, what: str, times: int = 1) -> None:
        self.refused[what] += times
