"""Files that are there whole or not at all: JSON and safetensors, written aside and then renamed. Nothing is pickled."""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "cascadice-1"
Folder = str | os.PathLike[str]
Tensors = dict[str, Tensor]


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; when that went well, the file is flushed to disk and takes its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sweep(folder: Folder) -> None:
    """Remove the drafts that a killed process left."""
    for draft in (*Path(folder).glob(".tmp-*"), *Path(folder).glob("rounds/.tmp-*")):
        draft.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """An object as readable JSON."""
    with aside(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). Restore it, or start again with --overwrite.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object; found {type(content).__name__}. Restore it.")
    return content


def write_tensors(path: Path, tensors: Tensors, note: Mapping[str, str]) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors sorts tensors in a way of its own; dictionaries of state are walked side by side, so order matters
    content = {"format": FORMAT, **note, "names": list(plain), "checksum": _checksum(plain)}
    with aside(path) as draft:
        # one entry, because several are written in any order, and equal runs should make equal files
        save_file(plain, draft, metadata={"cascadice": json.dumps(content)})
        draft.chmod(0o644)  # safetensors would hide it from everybody else


def read_tensors(path: Path, expected: str | None) -> tuple[Tensors, dict[str, Any]]:
    """Tensors in memory of their own (a mapped file may be misaligned, which can change the last bit of a product)."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} is not there.")
    try:
        with safe_open(path, "pt") as file:
            note = json.loads((file.metadata() or {}).get("cascadice", "{}"))
            tensors = {name: file.get_tensor(name).clone() for name in note.get("names", ())}
    except (SafetensorError, OSError) as error:
        raise damaged(path, " ".join(str(error).split())) from None
    if note.get("format") != FORMAT:
        raise ValueError(
            f"{path} must be of format {FORMAT}; found {note.get('format')}. Use the version that wrote it."
        )
    if note.get("checksum") != _checksum(tensors):
        raise damaged(path, "its checksum is wrong")
    _check_layout(path, note.get("layout", "{}"), expected)
    return tensors, note


def _checksum(tensors: Tensors) -> int:
    """Of the bytes of all tensors, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        total = zlib.crc32(content, zlib.crc32(name.encode(), total))
    return total


def damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason.rstrip('.')}. Delete it; what it held must be computed again.")


def _check_layout(path: Path, found: str, expected: str | None) -> None:
    if expected is None or found == expected:
        return
    there, here = json.loads(found), json.loads(expected)
    name = next((n for n in (*here, *there) if here.get(n) != there.get(n)), "the order of parameters")
    raise ValueError(f"{path} is of another model: {name} is {there.get(name)} there, {here.get(name)} here.")
