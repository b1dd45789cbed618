"""A message between two processes: rows of numbers, and a header that says what they are.

Everything in it is checked before use: a frame that is not what was announced is refused, and nothing is unpickled.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAGIC, FORMAT = 0x63617363, 2
HEADER = struct.Struct("<IHHqqIII4xQ")  # magic, format, kind, step, round, rows, columns, type, checksum
GOODBYE, MODEL, ADJOINT, STILL_WAITING = 0, 1, 2, 3
KINDS = {GOODBYE: "goodbye", MODEL: "parameters", ADJOINT: "adjoints", STILL_WAITING: "notice that it waits"}
BLOCK = 512  # words that are summed before they are weighted
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class FrameError(ValueError):
    """A message that must not be used."""


class Frame(NamedTuple):
    """Rows of participants: their parameters, or adjoints."""

    kind: int  # MODEL or ADJOINT; without rows STILL_WAITING, for a third process, or GOODBYE, the last of its sender
    step: int  # the number of the exchange, the same in every process
    t: int
    nodes: Int[Tensor, " rows"]
    rows: Float[Tensor, "rows columns"]
    not_finite: tuple[int, ...] = ()  # whose rows were left out, because they are NaN or infinite


def size(rows: int, columns: int, dtype: torch.dtype) -> int:
    """The bytes of a frame."""
    return HEADER.size + rows * (8 + columns * dtype.itemsize)


def pack(frame: Frame) -> Tensor:
    """The frame as bytes."""
    rows = frame.rows.detach()
    (count, columns), kind = rows.shape, TYPES.index(rows.dtype)
    data = torch.empty(size(count, columns, rows.dtype), dtype=torch.uint8)
    body = data[HEADER.size :]
    nodes, values = _rows(body, count, columns, rows.dtype)
    nodes.copy_(frame.nodes)
    values.copy_(rows)  # the only copy, from wherever they are
    header = MAGIC, FORMAT, frame.kind, frame.step, frame.t, count, columns, kind, checksum(body)
    HEADER.pack_into(data.numpy().data, 0, *header)
    return data


def notice(kind: int, step: int = 0) -> Tensor:
    """A frame without rows, as bytes."""
    nothing = torch.empty(0)
    return pack(Frame(kind, step, step, nothing.long(), nothing.view(0, 1)))


def announced(data: Tensor) -> tuple[int, int, int]:
    """The kind and the number of a frame and its bytes, as it says itself; of these at most all that there are."""
    if len(data) < HEADER.size:
        raise FrameError(f"a message of {len(data)} bytes, which is too short")
    magic, form, kind, step, _, rows, columns, number, _ = _header(data)
    if magic != MAGIC or form != FORMAT:
        raise FrameError("a message that is not one of ours, or of another version")
    if kind not in KINDS:
        raise FrameError(f"a message of unknown kind {kind}")
    return kind, step, min(len(data), size(rows, columns, TYPES[number % len(TYPES)]))


def unpack(data: Tensor, columns: int, dtype: torch.dtype, allowed: Mapping[int, frozenset[int]]) -> Frame:
    """The frame at the start of these bytes, a view of them if its rows are finite; else a FrameError says why not.

    `allowed` has the participants whose rows its sender may send, by kind.
    """
    kind, step, _ = announced(data)
    if kind not in allowed:
        raise FrameError(f"a {KINDS[kind]}, where rows were expected")
    t, count, width, number, summed = _header(data)[4:]
    found = TYPES[number] if number < len(TYPES) else f"type {number}"
    most = len(allowed[kind])
    if width != columns or found != dtype or count > most:
        raise FrameError(f"{count} rows of {width} {found}, where at most {most} of {columns} {dtype} were expected")
    if len(data) < (end := size(count, width, dtype)):
        raise FrameError(f"a message cut off at {len(data)} of {end} bytes")
    body = data[HEADER.size : end]
    if checksum(body) != summed:
        raise FrameError("a message that was changed on its way")
    nodes, rows = _rows(body, count, width, dtype)
    whose = set(nodes.tolist())
    if len(whose) != count or not whose <= allowed[kind]:
        raise FrameError("rows of participants that are not its own to send")
    # a sum is 17 times as fast, but may overflow
    if isfinite(rows.sum().item()) or not len(wrong := nodes[~(good := rows.isfinite().all(1))]):
        return Frame(kind, step, t, nodes, rows)
    if not bool(good.any()):
        raise FrameError(f"numbers of participant {int(wrong[0])} that are NaN or infinite")
    return Frame(kind, step, t, nodes[good], rows[good], tuple(wrong.tolist()))


def not_finite(data: Tensor) -> int | None:
    """The first participant in a packed frame whose row is not finite; None if all are."""
    rows, columns, number, _ = _header(data)[5:]
    end = size(rows, columns, TYPES[number])
    nodes, values = _rows(data[HEADER.size : end], rows, columns, TYPES[number])
    return next(iter(nodes[~values.isfinite().all(1)].tolist()), None)


def _rows(body: Tensor, rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return body[: 8 * rows].view(torch.int64), body[8 * rows :].view(dtype).view(rows, columns)


def _header(data: Tensor) -> tuple[int, ...]:
    return HEADER.unpack_from(data.numpy().data)


def checksum(body: Tensor) -> int:
    """Finds accidents, not intent: Σ (2i − 1) Σ_{words of block i} modulo 2⁶⁴; five times as fast as a CRC.

    Any change of one word is found, because odd numbers have inverses.
    """
    words = body[: len(body) // 8 * 8].view(torch.int64)
    whole = len(words) // BLOCK * BLOCK
    sums = torch.cat([words[:whole].view(-1, BLOCK).sum(1), words[whole:], body[8 * len(words) :].long()])
    return int(sums.dot(_odd(len(sums)))) % 2**64


@lru_cache(maxsize=8)
def _odd(count: int) -> Int[Tensor, " count"]:
    return 2 * torch.arange(count) + 1
