"""Tensors in safetensors files, each file with a checksum of every tensor and of its metadata."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascadice.files import check_format, checksums, damaged, intact, jsonl, replacing

FORMAT = "cascadice-2"
FORMAT_1 = "cascadice-1"  # of version 0.1.0: one checksum over all tensors, none over metadata
Tensors = dict[str, Tensor]

# in the order of the tensors in a file: the widest first, so that each is aligned
DTYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
PLACES = {dtype: place for place, dtype in enumerate(DTYPES)}


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str], durable: bool = True) -> None:
    """Write named tensors and their metadata as safetensors with checksums, atomically; `durable`: see `replacing`.

    `safetensors.torch.save_file` would write the same bytes, but through a temporary file of its own and after checks
    that take longer than hashing the tensors.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{path} cannot hold {name}: safetensors has no {tensor.dtype}. Convert it.")
    content = {name: content_of(tensor) for name, tensor in tensors.items()}
    sums = {name: _checksum(tensor, content[name]) for name, tensor in tensors.items()}
    # the file has an order of its own; dictionaries of optimizer state are walked in parallel, so the given one counts
    entry: dict[str, Any] = {"format": FORMAT, **metadata, "checksums": sums}
    entry["checksum"] = _metadata_checksum(entry)
    order = sorted(tensors, key=lambda name: (PLACES[tensors[name].dtype], name))
    header = _header({name: tensors[name] for name in order}, entry)
    with replacing(path, durable) as draft, draft.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in order:
            file.write(content[name])


def _header(tensors: Tensors, entry: Mapping[str, Any]) -> bytes:
    """The header of a safetensors file that holds these tensors in this order."""
    # one metadata entry: several would be written in any order, and equal runs should make equal files
    header: dict[str, Any] = {"__metadata__": {"cascadice": json.dumps(entry)}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def read_tensors(path: Path, layout: str | None, only: Sequence[str] = ()) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors of a file and their metadata; `layout` is the model layout they must have, if any.

    `only`: names of the tensors to read, up to the first dot; by default, all are read.

    The tensors are copied out of the mapped file, which may be misaligned: that can change the last bit of a product.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    checksums.verify(path)
    with intact(path, SafetensorError, ValueError, TypeError), safe_open(path, "pt") as file:
        metadata = dict(jsonl.parse((file.metadata() or {}).get("cascadice", "{}")))
        names = metadata["checksums"] if "checksums" in metadata else metadata.get("names", ())
        read = (name for name in names if not only or name.split(".")[0] in only)
        tensors = {name: file.get_tensor(name).clone() for name in read}
    _check_tensors(path, tensors, metadata)
    if layout not in (None, found := metadata.get("layout", "{}")):
        with intact(path, ValueError, TypeError):
            in_file, in_model = dict(jsonl.parse(found)), jsonl.parse(layout)
        differing = (name for name in (*in_model, *in_file) if in_model.get(name) != in_file.get(name))
        name = next(differing, "the order of parameters")
        shapes = f"{name} is {in_file.get(name)} in the file, {in_model.get(name)} here"
        raise ValueError(f"{path} belongs to another model: {shapes}.")
    return tensors, metadata


def _check_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
    """Compare some or all tensors of a file, and its metadata, with the checksums in the file."""
    if metadata.get("format") == FORMAT_1:
        if set(tensors) == set(metadata.get("names", ())) and metadata.get("checksum") != _checksum_1(tensors):
            raise damaged(path, "its checksum is wrong")
        return
    check_format(path, metadata.get("format"), FORMAT)
    if metadata.get("checksum") != _metadata_checksum(metadata):
        raise damaged(path, "the checksum of its metadata is wrong")
    for name, tensor in tensors.items():
        if metadata["checksums"].get(name) != _checksum(tensor, content_of(tensor)):
            raise damaged(path, f"the checksum of {name} is wrong")


def content_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in row-major order; without a copy if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    # of a single entry any stride is contiguous to torch, but only a stride of 1 can be viewed as bytes
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data


def _checksum(tensor: Tensor, content: memoryview) -> str:
    """The type, shape and CRC-32 of a tensor as text: "float32 [3, 64] 1f0b…"."""
    return f"{tensor.dtype} {list(tensor.shape)} {zlib.crc32(content):08x}".removeprefix("torch.")


def _metadata_checksum(metadata: Mapping[str, Any]) -> int:
    """CRC-32 over the metadata, the checksums of the tensors among them."""
    others = {name: value for name, value in metadata.items() if name != "checksum"}
    return zlib.crc32(json.dumps(others, sort_keys=True).encode())


def _checksum_1(tensors: Tensors) -> int:
    """CRC-32 over the bytes of all tensors, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(content_of(tensors[name]), zlib.crc32(name.encode(), total))
    return total
