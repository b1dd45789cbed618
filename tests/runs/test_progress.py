"""What a run prints."""

import io
from threading import active_count

import torch
from torch import Tensor

from cascadice.console import Console
from cascadice.runs.progress import holdings_table


def shown(holdings: Tensor, classes: list[str]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(holdings_table(holdings, classes))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_table_shows_every_class_or_the_commonest() -> None:
    text = shown(torch.tensor([[3, 0], [1, 41]]), ["cat", "dog"])
    assert "dog" in text
    assert "42" in text
    many = torch.zeros(1, 30, dtype=torch.int64)
    many[0, 4], many[0, 7] = 5, 6
    assert "c7 (6), c4 (5)" in shown(many, [f"c{c}" for c in range(30)])


def test_where_there_is_no_terminal_no_thread_draws() -> None:
    before = active_count()
    with Console(quiet=True).doing("counting"), Console(file=io.StringIO()).doing("counting"):
        assert active_count() == before
