"""Changes of files that know their format, drawn by Hypothesis: which entry, which value, which bytes."""

import io
import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

BATCH = 60
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 5, 2**31, 2**63, -(2**63), 10**40, 0.0, -0.0, 0.5, 1e308, math.nan, math.inf]),
    st.integers(-10, 100),
    st.floats(-10, 10),
    st.sampled_from(["", "0", "x", "\x1b[31m", "[/b]", "<script>", "../..", "nan", "NaN", "\ud800", "é" * 50]),
    st.sampled_from([[], {}, [[]], [None], {"": 1}, [0] * 5, {"format": "cascadice-run-9"}]),
)
PLACE = st.floats(0, 1, exclude_max=True)  # of all the places there are


def drawn(strategy: st.SearchStrategy[Any], seed: int) -> Iterator[Any]:
    """Values of a strategy without end, the same for the same seed; none comes twice, by its last entry's words."""
    seen: set[str] = set()
    for batch in count():
        values: list[Any] = []

        @hypothesis.seed(seed * 100_003 + batch)
        @settings(
            max_examples=BATCH, database=None, deadline=None, phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck), derandomize=False,
        )  # fmt: skip
        @given(strategy)
        def collect(value: Any) -> None:
            values.append(value)  # noqa: B023

        collect()
        new = {repr([part[-1] if isinstance(part, tuple) else part for part in value]): value for value in values}
        yield from (value for words, value in new.items() if words not in seen)
        seen.update(new)


# ---------------------------------------------------------------- bytes


def _at(content: bytes, place: float) -> int:
    return int(place * max(1, len(content)))


def edit_bytes(content: bytes, how: str, place: float, extent: int, value: int) -> bytes:
    """Flip, cut, drop, insert, blank, repeat or overwrite some bytes."""
    at = _at(content, place)
    here = content[at : at + extent]
    middle = {
        "flip": bytes([content[at] ^ (1 << value % 8)]) + content[at + 1 : at + extent] if content else b"",
        "cut": None,
        "drop": b"",
        "insert": here + bytes([value]) * extent,
        "blank": bytes(len(here)),
        "repeat": here + here,
        "integer": struct.pack("<I" if value % 2 else ">I", (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)[value % 4]) + here[4:],
    }[how]
    return content[:at] if middle is None else content[:at] + middle + content[at + extent :]


BYTES = st.builds(
    lambda how, place, extent, value: ("bytes", lambda content: edit_bytes(content, how, place, extent, value),
                                       f"{how} {extent} at {place:.4f} by {value}"),
    st.sampled_from(["flip", "cut", "drop", "insert", "blank", "repeat", "integer"]),
    PLACE,
    st.sampled_from([1, 1, 4, 8, 64, 500]),
    st.integers(0, 255),
)  # fmt: skip


# ---------------------------------------------------------------- JSON


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _paths(entry, (*path, key))


def edit_object(content: Any, how: str, place: float, value: Any) -> Any:
    """Set, remove, rename or nest one entry of a JSON value, or write a number slightly differently."""
    paths = list(_paths(content))
    if not paths:
        return value
    *way, last = paths[int(place * len(paths))]
    holder = content
    for step in way:
        holder = holder[step]
    if how == "remove":
        del holder[last]
    elif how == "rename" and isinstance(holder, dict):
        holder[f"{last}x"] = holder.pop(last)
    elif how == "nest":
        nested: Any = holder[last]
        for _ in range(int(place * 20) + 1):
            nested = [nested]
        holder[last] = nested
    elif how == "nudge" and isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
        holder[last] = holder[last] + 1
    else:
        holder[last] = value
    return content


def _edited_json(content: bytes, how: str, place: float, value: Any) -> bytes:
    if how == "deep":
        return b'{"a":' * 100_000
    return (json.dumps(edit_object(json.loads(content), how, place, value), indent=2) + "\n").encode()


def _edited_lines(content: bytes, how: str, place: float, value: Any) -> bytes:
    """The same in a file with a JSON object on each line; lines are also removed, repeated and swapped."""
    rows = content.splitlines(keepends=True)
    at = int(place * len(rows))
    if how == "remove":
        del rows[at]
    elif how == "rename":
        rows[at:at] = [rows[at]]
    elif how == "nest":
        rows[at], rows[-1] = rows[-1], rows[at]
    else:
        entry = edit_object(json.loads(rows[at]), how, place * 7919 % 1, value) if how != "deep" else [[[]]]
        rows[at] = json.dumps(entry).encode() + b"\n"
    return b"".join(rows)


OBJECT = st.tuples(st.sampled_from(["set", "set", "nudge", "nudge", "remove", "rename", "nest", "deep"]), PLACE, VALUES)


def _named(name: str, edit: Callable[..., bytes], arguments: tuple[Any, ...]) -> tuple[str, Any, str]:
    return name, lambda content: edit(content, *arguments), f"{name} {arguments!r}"


JSON = OBJECT.map(lambda chosen: _named("json", _edited_json, chosen))
JSON_LINES = OBJECT.map(lambda chosen: _named("line", _edited_lines, chosen))


# ---------------------------------------------------------------- safetensors


def _edited_safetensors(content: bytes, part: str, how: str, place: float, value: Any) -> bytes:
    """Change the header (types, shapes, offsets), the metadata within, or swap the bytes of two tensors."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if part == "header":
        header = edit_object(header, how, place, value)
    elif part == "metadata":
        inner = json.loads(header["__metadata__"]["cascadice"])
        header["__metadata__"]["cascadice"] = json.dumps(edit_object(inner, how, place, value))
    else:
        at = int(place * len(data)) // 4 * 4
        data = data[:at] + struct.pack("<f", 1.5) + data[at + 4 :]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


TENSORS = st.tuples(
    st.sampled_from(["header", "metadata", "metadata", "data"]),
    st.sampled_from(["set", "nudge", "remove", "rename", "nest"]),
    PLACE,
    VALUES,
).map(lambda chosen: _named("safetensors", _edited_safetensors, chosen))


# ---------------------------------------------------------------- Parquet


def _edited_parquet(content: bytes, how: str, place: float, value: int) -> bytes:
    """Rewrite a table with a value changed, rows or a column removed, renamed or of another type."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(content), use_threads=False)
    column = int(place * table.num_columns)
    name, row = table.column_names[column], int(place * 7919 % 1 * max(1, table.num_rows))
    if how == "value":
        values = table[column].to_pylist()
        if values:
            values[row] = f"{values[row]}x" if isinstance(values[row], str) else type(values[row] or 0)(value)
        table = table.set_column(column, table.schema.field(column), pa.array(values, table.schema.field(column).type))
    elif how == "rows":
        table = table.slice(row) if value % 2 else table.slice(0, row)
    elif how == "column":
        table = table.drop_columns([name])
    elif how == "rename":
        table = table.rename_columns([f"{old}x" if old == name else old for old in table.column_names])
    elif how == "type":
        texts = pa.array([str(entry) for entry in table[column].to_pylist()], pa.string())
        table = table.set_column(column, name, texts)
    else:
        table = pa.concat_tables([table, table])
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


PARQUET = st.tuples(
    st.sampled_from(["value", "value", "rows", "column", "rename", "type", "twice"]), PLACE, st.integers(-5, 1000)
).map(lambda chosen: _named("parquet", _edited_parquet, chosen))


# ---------------------------------------------------------------- files as such


def _instead(path: Path, what: str) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "circle":
        path.symlink_to(path.name)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "empty":
        path.touch()
    elif what == "dangling":
        path.symlink_to("nowhere")


INSTEAD = st.sampled_from(["nothing", "folder", "pipe", "circle", "device", "empty", "dangling"]).map(
    lambda what: ("instead", what, f"{what} instead")
)
SUFFIXES = {".json": JSON, ".jsonl": JSON_LINES, ".safetensors": TENSORS, ".parquet": PARQUET}


def mutation_of(name: str) -> st.SearchStrategy[tuple[str, Any, str]]:
    """Changes of a file of this name: two of three know its format, if it has one that is known."""
    own = SUFFIXES.get(Path(name).suffix)
    return st.one_of(*([] if own is None else [own] * 4), BYTES, BYTES, INSTEAD)


def mutate(path: Path, mutation: tuple[str, Any, str]) -> bool:
    """Change a file; whether it is now another."""
    kind, edit, _ = mutation
    if kind == "instead":
        _instead(path, edit)
        return True
    before = path.read_bytes()
    try:
        after = edit(before)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):  # the change makes no sense here
        return False
    path.write_bytes(after)
    return bool(after != before)
