"""What a run says about itself: before, while and after it trains."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from torch import Tensor

from cascadice.data import partition
from cascadice.engine.networks import Network
from cascadice.runs.store import RoundMetrics
from cascadice.topology import describe_schedule

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINES = 10  # of progress where no bar can be drawn
REDRAW = 0.1  # seconds; looking at a loss on CUDA waits for it
FULL_TABLE_UP_TO = 32  # participants; beyond, least, mean and greatest

Advance = Callable[[RoundMetrics], None]


@contextmanager
def progress(console: "Console", rounds: int, start: int = 0) -> Iterator[Advance]:
    """A bar to advance by the measures of each round; where there is no terminal, a plain line now and then."""
    if not console.is_terminal:
        yield _lines(console, rounds)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"), console=console) as bar:
        task = bar.add_task("", total=rounds, completed=start, speed="", state="")
        began, drawn, seen = monotonic(), 0.0, math.nan

        def advance(measures: RoundMetrics) -> None:
            nonlocal drawn, seen
            if measures.test is not None:
                seen = float(measures.test.accuracy.mean())
            now, done = monotonic(), measures.t + 1
            if now - drawn < REDRAW and done < rounds:
                return
            drawn = now
            speed = f"{(done - start) / max(now - began, 1e-9):.1f} rounds/s"
            bar.update(task, completed=done, speed=speed, state=_state(measures, seen))

        yield advance


def _lines(console: "Console", rounds: int) -> Advance:
    every, seen = max(1, -(-rounds // LINES)), math.nan

    def advance(measures: RoundMetrics) -> None:
        nonlocal seen
        if measures.test is not None:
            seen = float(measures.test.accuracy.mean())
        if (done := measures.t + 1) % every == 0 or done == rounds:
            console.print(f"round {done}/{rounds}  {_state(measures, seen)}", highlight=False)

    return advance


def _state(measures: RoundMetrics, accuracy: float) -> str:
    known = "" if math.isnan(accuracy) else f"  accuracy {accuracy:.3f}"
    return f"loss {float(measures.train_loss.mean()):.4f}{known}"


def opening(console: "Console", network: Network, rounds: int, name: str) -> None:
    """What is about to be trained: model, network and who holds what."""
    say = _plain(console)
    how = f"{rounds} rounds, {network.strategy} on {network.device}"
    say(f"{network.nodes} participants train on {network.data.name}: {network.learner.size:,} parameters each, {how}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = describe_schedule(network.mixing)
    sums = "doubly" if found.doubly_stochastic else "row"
    over = f" over {found.rounds} rounds" if found.rounds > 1 else ""
    say(f"{name}: {found.links} links{over}, spectral gap {found.spectral_gap:.4f}, {sums}-stochastic")
    for warning in caught:
        say(f"warning: {warning.message}")
    if network.partition is None or network.data.train.y.dim() != 1 or network.nodes > FULL_TABLE_UP_TO:
        sizes = [len(part) for part in network.partition or []] or [0]
        say(f"each holds {_span(min(sizes), max(sizes))} samples")
        return
    classes = network.data.classes
    console.print(partition.table(partition.counts(network.partition, network.data.train.y, len(classes)), classes))


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def closing(console: "Console", measures: RoundMetrics) -> None:
    """How good everybody became, and how far apart they are."""
    if measures.test is not None:
        classify = not bool(measures.test.accuracy.isnan().any())
        what, values = ("accuracy", measures.test.accuracy) if classify else ("loss", measures.test.loss)
        if len(values) <= FULL_TABLE_UP_TO:
            console.print(_compact(f"test {what} of each participant", values))
        spread = f"mean {float(values.mean()):.4f}, least {float(values.min()):.4f}, greatest {float(values.max()):.4f}"
        _plain(console)(f"test {what}: {spread}")
    _plain(console)(f"consensus distance: {float(measures.consensus):.4g}")


def _compact(title: str, values: Tensor, wide: int = 8) -> "Table":
    """Eight participants a line: number above value."""
    from rich.table import Table

    table = Table(title=title, show_header=False)
    for first in range(0, len(values), wide):
        nodes = range(first, min(first + wide, len(values)))
        table.add_row("participant", *(str(k) for k in nodes), style="dim")
        table.add_row("", *(f"{float(values[k]):.3f}" for k in nodes), end_section=True)
    return table


def _plain(console: "Console") -> Callable[[str], None]:
    return lambda text: console.print(text, highlight=False, soft_wrap=True, markup=False)
