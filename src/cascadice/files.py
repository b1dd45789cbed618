"""Atomic writing and safe reading of JSON and safetensors files.

A file is written under a temporary name, then renamed: readers see the old file or the new one, never half of either.
Nothing is pickled.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TENSOR_FORMAT = "cascadice-1"
Folder = str | os.PathLike[str]
Tensors = dict[str, Tensor]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; if the block succeeds, flush that file to disk and rename it to `path`.

    Missing parent folders are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def remove_drafts(folder: Folder) -> None:
    """Remove the temporary files that a killed process left in a folder or in its `rounds`."""
    for draft in (*Path(folder).glob(".tmp-*"), *Path(folder).glob("rounds/.tmp-*")):
        draft.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as indented JSON, atomically."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; a ValueError says what is wrong with the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). Restore it, or start again with --overwrite.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object; found {type(content).__name__}. Restore it.")
    return content


def write_tensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write named tensors and their metadata as safetensors, atomically, with a checksum."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors sorts tensors in its own way; dictionaries of optimizer state are walked in parallel, so order matters
    content = {"format": TENSOR_FORMAT, **metadata, "names": list(plain), "checksum": _checksum(plain)}
    with replacing(path) as draft:
        # one metadata entry: several would be written in any order, and equal runs should make equal files
        save_file(plain, draft, metadata={"cascadice": json.dumps(content)})
        draft.chmod(0o644)  # safetensors makes it readable by its owner alone


def read_tensors(path: Path, layout: str | None) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors of a file and their metadata; `layout` is the model layout they must have, if any.

    The tensors are copied out of the mapped file, which may be misaligned: that can change the last bit of a product.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        with safe_open(path, "pt") as file:
            metadata = json.loads((file.metadata() or {}).get("cascadice", "{}"))
            tensors = {name: file.get_tensor(name).clone() for name in metadata.get("names", ())}
    except (SafetensorError, OSError) as error:
        raise damaged(path, " ".join(str(error).split())) from None
    check_format(path, metadata.get("format"), TENSOR_FORMAT)
    if metadata.get("checksum") != _checksum(tensors):
        raise damaged(path, "its checksum is wrong")
    if layout not in (None, found := metadata.get("layout", "{}")):
        in_file, in_model = json.loads(found), json.loads(layout)
        differing = (name for name in (*in_model, *in_file) if in_model.get(name) != in_file.get(name))
        name = next(differing, "the order of parameters")
        shapes = f"{name} is {in_file.get(name)} in the file, {in_model.get(name)} here"
        raise ValueError(f"{path} belongs to another model: {shapes}.")
    return tensors, metadata


def check_format(path: Path, found: object, known: str) -> None:
    """Refuse a file of a format that this version does not know, such as one of a later version."""
    if found != known:
        raise ValueError(
            f"{path} must be of format {known}; found {found}. Read it with the version of cascadice that wrote it."
        )


def _checksum(tensors: Tensors) -> int:
    """CRC-32 over the bytes of all tensors, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return total


def damaged(path: Path, reason: str) -> ValueError:
    """The error to raise about a damaged file."""
    return ValueError(f"{path} is damaged: {reason.rstrip('.')}. Delete it; what it held must be computed again.")
