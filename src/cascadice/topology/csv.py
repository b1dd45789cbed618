"""Mixing matrices as CSV: row k holds the weights that participant k gives; numbers only, no header."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.files import replacing
from cascadice.topology.matrices import links, matrix


def read_csv(path: str | PathLike[str], *, normalize: bool = False) -> Float[Tensor, "n n"]:
    """W from a CSV file, checked.

    Args:
        path: Row k holds the weights that participant k gives; numbers only, no header.
        normalize: Divide each row by its sum.

    Raises:
        ValueError: The file does not hold a mixing matrix; the message names the line or row.
    """
    rows = Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    values = [_row(text, line, path) for line, text in enumerate(rows, start=1) if text.strip()]
    if not values:
        raise ValueError(f"{path}: the file must hold a row of weights for each participant; it is empty.")
    if len({len(row) for row in values}) > 1:
        longer = next(k for k, row in enumerate(values) if len(row) != len(values[0]))
        raise ValueError(
            f"{path}: rows must be equally long; row 0 has {len(values[0])} entries, row {longer} has "
            f"{len(values[longer])}. Complete the file."
        )
    try:
        return matrix(np.stack(values), normalize=normalize)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_csv(W: Float[Tensor, "n n"], path: str | PathLike[str]) -> None:
    """Write W as CSV, which `read_csv` reads back bit for bit. The file is replaced atomically."""
    lines = (",".join(f"{weight!r}" if weight else "0" for weight in row) for row in _rows(W))
    with replacing(Path(path)) as draft:
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _row(text: str, line: int, path: str | PathLike[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        return np.array(text.strip().split(","), dtype=np.float64)
    except ValueError:
        raise ValueError(f"{path}: line {line} must be numbers between commas; remove headers and labels.") from None


def _rows(W: Float[Tensor, "n n"]) -> list[list[float]]:
    if W.layout == torch.strided:
        return W.tolist()
    rows = [[0.0] * W.shape[1] for _ in range(W.shape[0])]
    for k, j, weight in zip(*(column.tolist() for column in links(W)), strict=True):
        rows[k][j] = weight
    return rows
