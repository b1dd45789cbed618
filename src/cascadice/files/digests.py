"""Digests of files."""

import os
from hashlib import file_digest, sha256
from pathlib import Path
from typing import NamedTuple

TENSORS = ".safetensors"


class Digest(NamedTuple):
    """The size and the SHA-256 of a file; for a tensor file, of its header, which has a CRC-32 of each tensor.

    SHA-256 over all tensors would slow recording by a tenth; readers compare the CRC-32 of those that they read.
    """

    bytes: int
    sha256: str


def digest(path: Path) -> Digest:
    """The digest of a file; ValueError if it is not an ordinary file."""
    check_ordinary(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix != TENSORS:
            return Digest(size, file_digest(file, "sha256").hexdigest())
        length = file.read(8)  # of the header, as safetensors writes it
        return Digest(size, sha256(length + file.read(min(int.from_bytes(length, "little"), size))).hexdigest())


def digest_if_there(path: Path) -> Digest | None:
    """The digest of a file; None if there is nothing of this name."""
    try:
        return digest(path)
    except FileNotFoundError:
        return None


def check_ordinary(path: Path) -> None:
    """Raise ValueError unless this is an ordinary file: reading a pipe or a device may never end."""
    if not path.is_file() and path.exists():  # in this order: one look at an ordinary file, in every round
        raise ValueError(f"{path} must be a file; found a folder, a pipe or a device. Restore it, or name another.")
