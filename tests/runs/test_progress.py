"""What a run prints."""

import io
from threading import active_count

import torch
from torch import Tensor

from cascadice.console import Console
from cascadice.engine.metrics import Metrics
from cascadice.runs.progress import holdings_table, latest, print_closing
from cascadice.runs.round_metrics import RoundMetrics


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


def test_what_one_process_measured_is_printed_under_its_participants() -> None:
    values = torch.tensor([0.25, 0.75])
    own = RoundMetrics(3, values, torch.tensor(0.5), Metrics(values, values))
    assert latest([own], (4, 5)) == "  participants 4–5: training loss 0.5000  test accuracy 0.500"
    assert latest([own]) == "  training loss 0.5000  test accuracy 0.500"
    console = Console(file=io.StringIO(), width=200)
    print_closing(console, own, (4, 5))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "participant │ 4     │ 5" in said
    assert "test accuracy of participants 4–5: mean 0.5" in said
    assert "consensus distance of participants 4–5 (" in said
    print_closing(console, own, (4,))  # the others told theirs
    assert "test accuracy: mean 0.5" in console.file.getvalue()  # type: ignore[attr-defined]
