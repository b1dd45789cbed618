"""Console output: plain lines, tables, and progress as a bar or, without a terminal, as a few lines."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from rich import console as rich_console
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cascadice.names import visible

LINES = 10  # of progress, if no bar can be drawn
REDRAW = 0.1  # seconds between redraws, because reading a loss on CUDA waits for it

Item = TypeVar("Item")


class Console(rich_console.Console):
    """Prints text literally, also in tables: names from files may contain markup or terminal control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text without markup and emoji, with control characters escaped."""
        return super().render_str(visible(text), **{**options, "markup": False, "emoji": False})

    def doing(self, what: str) -> AbstractContextManager[Any]:
        """Show a status line during a block, on a terminal only.

        Elsewhere no thread is started: if memory is short, that may hang (https://github.com/python/cpython/issues/140746).
        """
        return self.status(what) if self.is_terminal and not self.quiet else nullcontext()

    def print_table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], right: int = 0, wrap: str = "", padding: int = 3
    ) -> None:
        """Print rows; `right` columns after the first are right-aligned, and only the column `wrap` may break lines.

        Lines are longer than the console where the other columns need it: nothing is cut.
        """
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        texts = [visible("\n".join(column)) for column in zip(columns, *cells, strict=True)]
        breaks = [bool(wrap) and column == wrap for column in columns]
        widest = [max(map(cell_len, text.split("\n"))) for text in texts]
        words = [max(map(cell_len, text.split()), default=0) for text in texts]
        least = [words[number] if broken else widest[number] for number, broken in enumerate(breaks)]
        gaps = padding * (len(columns) - 1)
        width = gaps + max(sum(least), min(sum(widest), self.width - gaps))
        table = Table(box=None, padding=(0, padding, 0, 0), pad_edge=False, width=width)
        for number, column in enumerate(columns):
            side: JustifyMethod = "right" if 0 < number <= right else "left"
            table.add_column(column, justify=side, no_wrap=not breaks[number])
        for row in cells:
            table.add_row(*row)
        self.print(table, crop=False)


def say(console: Console, text: str) -> None:
    """Print one plain line: no colours, no wrapping, no markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def track(
    rounds: Iterable[Item], total: int, console: Console, doing: str, done: Callable[[Item], str], *,
    start: int = 0, state: Callable[[], str] = str, unit: str = "rounds",
) -> Generator[Item, None, None]:  # fmt: skip
    """Yield the rounds and show progress: a bar named `doing`, or without a terminal up to ten lines `done(round)`.

    `start` rounds were done before; `state()` is a text to show beside the progress; `unit` is what is counted.
    """
    with counting(total, console, doing, start=start, state=state, unit=unit) as count:
        for round in rounds:
            yield round
            count(partial(done, round))


@contextmanager
def counting(
    total: int, console: Console, doing: str, *, start: int = 0, state: Callable[[], str] = str, unit: str = "rounds"
) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Show progress as `track` does, for work that does not yield rounds: call the yielded function after each.

    Its argument is a function that returns the line to print without a terminal.
    """
    every, began, redrawn, count = max(1, -(-total // LINES)), monotonic(), 0.0, start
    counts = (TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[speed]}"))
    columns = (*counts, TimeRemainingColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=total, completed=start, speed="", state="")

        def one_more(done: Callable[[], str]) -> None:
            nonlocal count, redrawn
            count, now = count + 1, monotonic()
            if not console.is_terminal:
                if count % every == 0 or count == total:
                    say(console, f"{done()}, {count}/{total}{state()}")
            elif now - redrawn >= REDRAW or count == total:
                redrawn, speed = now, f"{(count - start) / max(now - began, 1e-9):.1f} {unit}/s"
                bar.update(task, completed=count, speed=speed, state=state())

        yield one_more
