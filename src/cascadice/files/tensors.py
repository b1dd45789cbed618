"""Tensors in safetensors files, each file with a checksum of every tensor and of its metadata."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE
from typing import Any

import torch
from torch import Tensor

from cascadice.files import check_format, checksums, damaged, intact, jsonl, replacing, system_error

FORMAT = "cascadice-2"
FORMAT_1 = "cascadice-1"  # of version 0.1.0: one checksum over all tensors, none over metadata
Tensors = dict[str, Tensor]


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str], durable: bool = True) -> None:
    """Write named tensors and their metadata as safetensors with a checksum, atomically; `durable`: see `replacing`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    first = {tensor.data_ptr(): name for name, tensor in reversed(plain.items())}
    # safetensors writes no tensor under two names
    plain = {name: one if first[one.data_ptr()] == name else one.clone() for name, one in plain.items()}
    # safetensors sorts tensors in its own way; dictionaries of optimizer state are walked in parallel, so order matters
    header: dict[str, Any] = {"format": FORMAT, **metadata, "checksums": tensor_checksums(plain)}
    header["checksum"] = _metadata_checksum(header)
    with replacing(path, durable) as draft:
        mode = draft.stat().st_mode  # as the umask has it; safetensors makes the file readable by its owner alone
        try:
            # one metadata entry: several would be written in any order, and equal runs should make equal files
            save_file(plain, draft, metadata={"cascadice": json.dumps(header)})
        except SafetensorError as error:
            raise system_error(error, path) or error from None
        draft.chmod(S_IMODE(mode))


def read_tensors(path: Path, layout: str | None) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors of a file and their metadata; `layout` is the model layout they must have, if any.

    The tensors are copied out of the mapped file, which may be misaligned: that can change the last bit of a product.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    checksums.verify(path)
    with intact(path, SafetensorError, ValueError, TypeError), safe_open(path, "pt") as file:
        metadata = dict(jsonl.parse((file.metadata() or {}).get("cascadice", "{}")))
        names = metadata["checksums"] if "checksums" in metadata else metadata.get("names", ())
        tensors = {name: file.get_tensor(name).clone() for name in names}
    check_tensors(path, tensors, metadata)
    if layout not in (None, found := metadata.get("layout", "{}")):
        with intact(path, ValueError, TypeError):
            in_file, in_model = dict(jsonl.parse(found)), jsonl.parse(layout)
        differing = (name for name in (*in_model, *in_file) if in_model.get(name) != in_file.get(name))
        name = next(differing, "the order of parameters")
        shapes = f"{name} is {in_file.get(name)} in the file, {in_model.get(name)} here"
        raise ValueError(f"{path} belongs to another model: {shapes}.")
    return tensors, metadata


def check_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
    """Compare tensors that were read from a file, all or some, and its metadata, with the checksums in it."""
    if metadata.get("format") == FORMAT_1:
        if set(tensors) == set(metadata.get("names", ())) and metadata.get("checksum") != _checksum_1(tensors):
            raise damaged(path, "its checksum is wrong")
        return
    check_format(path, metadata.get("format"), FORMAT)
    if metadata.get("checksum") != _metadata_checksum(metadata):
        raise damaged(path, "the checksum of its metadata is wrong")
    for name, found in tensor_checksums(tensors).items():
        if metadata["checksums"].get(name) != found:
            raise damaged(path, f"the checksum of {name} is wrong")


def content_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, row by row; without a copy if it lies on the CPU in this order."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    # of a single entry any stride is contiguous to torch, but only a stride of 1 can be viewed as bytes
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data


def tensor_checksums(tensors: Tensors) -> dict[str, str]:
    """The type, shape and CRC-32 of each tensor, in words: "float32 [3, 64] 1f0b…"."""
    sums = {name: zlib.crc32(content_of(tensor)) for name, tensor in tensors.items()}
    forms = {name: f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.") for name, tensor in tensors.items()}
    return {name: f"{forms[name]} {sums[name]:08x}" for name in tensors}


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
