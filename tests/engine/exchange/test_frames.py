"""A message is what was announced, or it is not used: each check alone."""

import struct

import pytest
import torch

from cascadice.engine.exchange.frames import (
    ADJOINT,
    BLOCK,
    HEADER,
    KINDS,
    MODEL,
    TYPES,
    Frame,
    FrameError,
    checksum,
    pack,
    unpack,
)

ROWS, COLUMNS = 2, 700
MAGIC, FORMAT, KIND, STEP, ROUND, COUNT, WIDTH, TYPE, CHECKSUM = range(9)
ALLOWED = {MODEL: frozenset({3, 4}), ADJOINT: frozenset({0})}


def message(nodes=(3, 4), dtype=torch.float64, rows=None):
    values = torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS).to(dtype) if rows is None else rows
    return pack(Frame(MODEL, 7, 5, torch.tensor(nodes), values))


def read(data, dtype=torch.float64):
    return unpack(data, COLUMNS, dtype, ALLOWED)


def with_header(data, **fields):
    """The message with other fields in its header."""
    header = list(HEADER.unpack(bytes(data[: HEADER.size].numpy())))
    for name, value in fields.items():
        header[globals()[name]] = value
    changed = torch.frombuffer(bytearray(HEADER.pack(*header)), dtype=torch.uint8)
    return torch.cat([changed, data[HEADER.size :]])


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_packed_is_read(dtype):
    frame = read(torch.cat([message(dtype=dtype), torch.ones(9, dtype=torch.uint8)]), dtype)
    assert (frame.kind, frame.step, frame.t, frame.nodes.tolist()) == (MODEL, 7, 5, [3, 4])
    assert torch.equal(frame.rows, torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS).to(dtype))


WRONG = {
    "short": (message()[: HEADER.size - 1], "47 bytes, which is too short"),
    "not ours": (with_header(message(), MAGIC=1), "not one of ours"),
    "another format": (with_header(message(), FORMAT=9), "not one of ours, or of another version"),
    "unknown kind": (with_header(message(), KIND=max(KINDS) + 1), "unknown kind"),
    "more columns": (with_header(message(), WIDTH=COLUMNS + 1), "2 rows of 701 torch.float64, where at most 2 of 700"),
    "fewer columns": (with_header(message(), WIDTH=COLUMNS - 1), "2 rows of 699 torch.float64, where at most 2 of 700"),
    "more rows": (with_header(message(), COUNT=3), "3 rows of 700"),
    "another type": (with_header(message(), TYPE=0), "2 rows of 700 torch.float32"),
    "unknown type": (with_header(message(), TYPE=4), "2 rows of 700 type 4"),
    "cut off": (message()[:-1], "cut off at"),
    "changed": (with_header(message(), CHECKSUM=1), "changed on its way"),
    "a stranger": (message((3, 5)), "not its own to send"),
    "one twice": (message((3, 3)), "not its own to send"),
    "another's adjoint": (with_header(message(), KIND=ADJOINT), "at most 1 of 700"),
    "NaN": (message(rows=torch.full((ROWS, COLUMNS), torch.nan, dtype=torch.float64)), "NaN or infinite"),
    "infinities that cancel": (
        message(rows=torch.tensor([[torch.inf], [-torch.inf]], dtype=torch.float64).repeat(1, COLUMNS)),
        "NaN or infinite",
    ),
}


@pytest.mark.parametrize(("data", "said"), WRONG.values(), ids=WRONG)
def test_anything_else_is_refused(data, said):
    with pytest.raises(FrameError, match=said):
        read(data)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_are_left_out_and_named(wrong):
    values = torch.ones(ROWS, COLUMNS, dtype=torch.float64)
    values[0, 5] = wrong
    frame = read(message(rows=values))
    assert (frame.nodes.tolist(), frame.rows.tolist(), frame.not_finite) == ([4], [[1.0] * COLUMNS], (3,))


def test_large_numbers_are_numbers():
    large = torch.full((ROWS, COLUMNS), 1e308, dtype=torch.float64)
    assert torch.equal(read(message(rows=large)).rows, large)


def test_words_that_change_places_are_noticed():
    words = torch.arange(3 * BLOCK)
    moved = words.clone()
    moved[[1, BLOCK + 1]] = words[[BLOCK + 1, 1]]
    assert checksum(words.view(torch.uint8)) != checksum(moved.view(torch.uint8))
    end = torch.frombuffer(bytearray(struct.pack("<qb", 5, 1)), dtype=torch.uint8)
    assert checksum(end) != checksum(end[:8])
