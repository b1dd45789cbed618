"""Messages that are not what they should be, made of good ones."""

import math
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.exchange.frames import HEADER, MODEL, checksum

LONG = timedelta(days=1)
MAGIC, FORMAT, KIND, STEP, ROUND, ROWS, COLUMNS, TYPE, CHECKSUM = range(9)


def _changed(data: bytes, fields: Mapping[int, int], tail: bytes = b"") -> bytes:
    """A message with other fields in its header and another end, and the checksum that belongs to it."""
    header, body = list(HEADER.unpack(data[: HEADER.size])), data[HEADER.size :]
    body = body[: len(body) - len(tail)] + tail
    for field, change in fields.items():
        header[field] += change
    header[CHECKSUM] = checksum(torch.frombuffer(bytearray(body), dtype=torch.uint8))
    return HEADER.pack(*header) + body


MESSAGE_FAULTS: Mapping[str, Callable[[bytes], list[bytes]]] = {
    "NaN": lambda data: [_changed(data, {}, struct.pack("<d", math.nan))],
    "infinite": lambda data: [_changed(data, {}, struct.pack("<d", math.inf))],
    "shape": lambda data: [_changed(data, {COLUMNS: -1})],
    "many rows": lambda data: [_changed(data, {ROWS: 1 << 31})],
    "type": lambda data: [_changed(data, {TYPE: 1})],
    "checksum": lambda data: [data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]],
    "cut off": lambda data: [data[: len(data) // 2]],
    "too large": lambda data: [data + bytes(len(data))],
    "no header": lambda data: [bytes(reversed(data))],
    "other round": lambda data: [_changed(data, {ROUND: 1})],
    "far ahead": lambda data: [_changed(data, {STEP: 1 << 40, ROUND: 1 << 40})],
    "stranger": lambda data: [_changed(data[: HEADER.size] + struct.pack("<q", 77) + data[HEADER.size + 8 :], {})],
    "twice": lambda data: [data, data],
    "lost": lambda data: [],
}
OF_SEVERAL = ("stale", "reordered")
HARMLESS = {"twice"}  # the message itself is good


class Faulty:
    """A process group, or `Pairs`, whose messages are changed as a plan says.

    Args:
        group: What really sends.
        plan: What is wrong with the parameters sent in a round; "reordered" exchanges a message for the next one,
            "stale" replaces it by the one before.
        note: Called with the round and the fault before each of these messages.
    """

    def __init__(
        self, group: Any, plan: Mapping[int, str], note: Callable[[int, str], object] = lambda t, fault: None
    ) -> None:
        self._group, self._plan, self._note = group, plan, note
        self._held: dict[int, bytes] = {}
        self._last: dict[int, bytes] = {}
        if hasattr(group, "connect"):
            self.connect, self.close = group.connect, group.close

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """As of a process group."""
        return self._group.recv(tensors, peer, tag)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> "Faulty":
        """Send what the plan makes of a message."""
        data = tensors[0].numpy().tobytes()
        _, _, kind, _, t, *_ = HEADER.unpack(data[: HEADER.size])
        fault = self._plan.get(t) if kind == MODEL else None
        if fault is not None:
            self._note(t, fault)
        held = [self._held.pop(peer)] if peer in self._held else []
        before, self._last[peer] = self._last.get(peer, data), data
        if fault == "reordered":
            self._held[peer], sent = data, []
        elif fault == "stale":
            sent = [before]
        else:
            sent = MESSAGE_FAULTS[fault](data) if fault in MESSAGE_FAULTS else [data]
        for each in [*sent, *held]:
            self._group.send([torch.frombuffer(bytearray(each), dtype=torch.uint8)], peer, tag).wait(LONG)
        return self

    def wait(self, timeout: Any = None) -> None:
        """Nothing: what is to be sent has left."""
