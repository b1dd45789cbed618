"""Text of several kinds: the sources and documents that come with Python, one kind a participant."""

import sysconfig
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from cascadice.data import DataSet, from_tensors

KINDS = ("asyncio", "email", "encodings", "idlelib", "lib2to3", "multiprocessing", "pydoc_data", "unittest", "xml",
         "distutils", "tkinter", "ctypes", "json", "http", "logging", "importlib")  # fmt: skip
CONTEXT, PER_KIND, TESTS = 128, 512, 32
LETTERS = 97  # line break, tab, and the printable ASCII characters; all others are the last


def domains(nodes: int) -> tuple[DataSet, list[list[Tensor]]]:
    """Windows of characters and the next character of each; every participant holds one kind of text.

    The test set has windows of every kind that nobody trains on.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    rows, tests = list[Tensor](), list[Tensor]()
    for kind in KINDS:
        files = sorted((library / kind).rglob("*.py"))
        text = "\n".join(file.read_text(errors="replace") for file in files)
        windows = _windows(text)
        if len(windows) >= 64 and len(rows) < nodes:
            tests.append(windows[-TESTS:])
            rows.append(windows[:-TESTS][:PER_KIND])
    if len(rows) < nodes:
        raise ValueError(f"this Python comes with {len(rows)} kinds of text; {nodes} are needed.")
    ends = torch.tensor([0, *(len(part) for part in rows)]).cumsum(0).tolist()
    train, test = torch.cat(rows), torch.cat(tests)
    data = from_tensors(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], classes=LETTERS)
    return data, [[torch.arange(start, end) for start, end in pairwise(ends)]]


def _windows(text: str) -> Tensor:
    """Rows of CONTEXT + 1 characters as numbers, in a fixed random order."""
    raw = torch.tensor(list(text.encode("ascii", errors="replace")), dtype=torch.int64)
    codes = torch.where(raw >= 32, raw - 30, torch.where(raw == 10, 0, 1)).clamp(0, LETTERS - 1)
    count = len(codes) // (CONTEXT + 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return codes[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)[order]
