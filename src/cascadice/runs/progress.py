"""What a run prints: before, during and after training."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from rich import progress as rich_progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from cascadice.data import partition
from cascadice.engine.networks import Network
from cascadice.runs.metrics import RoundMetrics
from cascadice.topology import describe_schedule

LINES = 10  # of progress where no bar can be drawn
REDRAW = 0.1  # seconds; reading a loss on CUDA waits for it
FULL_TABLE_UP_TO = 32  # participants; beyond, minimum, mean and maximum

Advance = Callable[[RoundMetrics], None]
Item = TypeVar("Item")


def say(console: Console, text: str) -> None:
    """Print one plain line: no colours, no wrapping, no markup."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def track(
    items: Iterable[Item], total: int, console: Console, doing: str, done: Callable[[Item], str]
) -> Iterator[Item]:
    """Yield the items and show progress: a bar named `doing`, or without a terminal up to ten lines `done(item)`."""
    if console.is_terminal:
        yield from rich_progress.track(items, doing, total=total, console=console, transient=True)
        return
    every = max(1, -(-total // LINES))
    for count, item in enumerate(items, start=1):
        yield item
        if count % every == 0 or count == total:
            console.print(f"{done(item)}, {count}/{total}", highlight=False)


@contextmanager
def progress(console: Console, rounds: int, start: int = 0) -> Iterator[Advance]:
    """Show the progress of training: a bar, or without a terminal up to ten lines; call the result after each round."""
    if not console.is_terminal:
        yield _lines(console, rounds)
        return
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"), console=console) as bar:
        task = bar.add_task("", total=rounds, completed=start, speed="", state="")
        began, redrawn, accuracy = monotonic(), 0.0, math.nan

        def advance(metrics: RoundMetrics) -> None:
            nonlocal redrawn, accuracy
            accuracy = _latest_accuracy(metrics, accuracy)
            now, completed = monotonic(), metrics.t + 1
            if now - redrawn < REDRAW and completed < rounds:
                return
            redrawn = now
            speed = f"{(completed - start) / max(now - began, 1e-9):.1f} rounds/s"
            bar.update(task, completed=completed, speed=speed, state=_state(metrics, accuracy))

        yield advance


def _lines(console: Console, rounds: int) -> Advance:
    every, accuracy = max(1, -(-rounds // LINES)), math.nan

    def advance(metrics: RoundMetrics) -> None:
        nonlocal accuracy
        accuracy = _latest_accuracy(metrics, accuracy)
        if (completed := metrics.t + 1) % every == 0 or completed == rounds:
            console.print(f"round {completed}/{rounds}  {_state(metrics, accuracy)}", highlight=False)

    return advance


def _latest_accuracy(metrics: RoundMetrics, earlier: float) -> float:
    return earlier if metrics.test is None else float(metrics.test.accuracy.mean())


def _state(metrics: RoundMetrics, accuracy: float) -> str:
    known = "" if math.isnan(accuracy) else f"  test accuracy {accuracy:.3f}"
    return f"training loss {float(metrics.train_loss.mean()):.4f}{known}"


def print_opening(console: Console, network: Network, rounds: int, name: str) -> None:
    """Print what is about to be trained: the model, the graph and how the data are divided."""
    how = f"{rounds} rounds, {network.strategy} on {network.device}"
    size = f"{network.learner.size:,} parameters each"
    say(console, f"{network.nodes} participants train on {network.data.name}: {size}, {how}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixing = describe_schedule(network.mixing)
    sums = "doubly" if mixing.doubly_stochastic else "row"
    over = f" over {mixing.rounds} rounds" if mixing.rounds > 1 else ""
    say(console, f"{name}: {mixing.links} links{over}, spectral gap {mixing.spectral_gap:.4f}, {sums}-stochastic W")
    for warning in caught:
        say(console, f"warning: {warning.message}")
    if network.partition is None or network.data.train.y.dim() != 1 or network.nodes > FULL_TABLE_UP_TO:
        sizes = [len(part) for part in network.partition or []] or [0]
        each = str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        say(console, f"each participant holds {each} training samples")
        return
    classes = network.data.classes
    console.print(holdings_table(partition.counts(network.partition, network.data.train.y, len(classes)), classes))


def holdings_table(holdings: Tensor, classes: Sequence[str], *, widest: int = 20) -> Table:
    """`partition.counts` as a table; with more than `widest` classes, only each participant's three commonest."""
    table, narrow = Table(title="who holds what"), len(classes) <= widest
    for heading in ("participant", "samples", *(classes if narrow else ("classes", "commonest"))):
        table.add_column(heading, justify="left" if heading == "commonest" else "right")
    for node, row in enumerate(holdings.tolist()):
        held = sorted((c for c in range(len(row)) if row[c]), key=lambda c: -row[c])
        commonest = ", ".join(f"{classes[c]} ({row[c]})" for c in held[:3])
        cells = [str(count or "·") for count in row] if narrow else [str(len(held)), commonest]
        table.add_row(str(node), str(sum(row)), *cells)
    return table


def print_closing(console: Console, metrics: RoundMetrics) -> None:
    """Print how good the participants became, and how far apart they are."""
    if metrics.test is not None:
        classify = not bool(metrics.test.accuracy.isnan().any())
        name, values = ("accuracy", metrics.test.accuracy) if classify else ("loss", metrics.test.loss)
        if len(values) <= FULL_TABLE_UP_TO:
            console.print(_compact(f"test {name} of each participant", values))
        spread = f"mean {float(values.mean()):.4f}, min {float(values.min()):.4f}, max {float(values.max()):.4f}"
        say(console, f"test {name}: {spread}")
    say(console, f"consensus distance (root mean square distance from the mean model): {float(metrics.consensus):.4g}")


def _compact(title: str, values: Tensor, wide: int = 8) -> Table:
    """Eight participants per row: number above value."""
    table = Table(title=title, show_header=False)
    for first in range(0, len(values), wide):
        nodes = range(first, min(first + wide, len(values)))
        table.add_row("participant", *(str(k) for k in nodes), style="dim")
        table.add_row("", *(f"{float(values[k]):.3f}" for k in nodes), end_section=True)
    return table
