"""What a figure is: a plan that is plain data, a measurement of it, and a picture of what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from cascadice.runs.config import Config

Columns = Mapping[str, Sequence[Any]]
Part = dict[str, Any]


class Result(NamedTuple):
    """What was measured: every point, a summary, the findings in words, and `more` that the picture needs.

    In a row of the summary, a list of three numbers is a value with the lower and upper end of its range.
    """

    points: Columns
    summary: Sequence[Mapping[str, Any]]
    findings: Sequence[str]
    more: Mapping[str, Any]


class Mixing(NamedTuple):
    """A mixing matrix in a CSV file, to use instead of the figure's own."""

    path: str
    normalize: bool = False


class Context(NamedTuple):
    """Where and how a figure is measured.

    `part(name, make)` returns one part of the measurement: `make()`, or what an interrupted attempt kept of it.
    """

    quick: bool
    device: str
    data_root: str | None
    mixing: Mixing | None
    part: Callable[[str, Callable[[], Part]], Part]

    def configure(self, config: Config) -> Config:
        """The configuration on this device, with this data."""
        # compiling for each of several short runs would take longer than the runs
        strategy = "vmap" if self.device.startswith("cuda") else "auto"
        return replace(config, device=self.device, data_root=self.data_root, strategy=strategy)


@dataclass(frozen=True)
class Figure:
    """One figure of the paper, several with one measurement, or one beyond it.

    Attributes:
        title: Its heading.
        shows: Its labels in the paper; empty if the paper has no such figure.
        data: The data sets it needs.
        plan: `plan(quick)` gives dataclasses that determine the result.
        measure: Measures a plan.
        draw: Draws a result into a file, as PNG or SVG.
        claim: What the paper says about it.
        seconds: How long it takes, quick on two cores and in full on an H200; used to estimate the time left.
        takes_mixing: Whether `--mixing` can replace its matrix.
    """

    title: str
    shows: tuple[str, ...]
    data: tuple[str, ...]
    plan: Callable[[bool], Sequence[Any]]
    measure: Callable[[Sequence[Any], Context], Result]
    draw: Callable[[Result, Path], None]
    claim: str
    seconds: tuple[int, int]
    takes_mixing: bool = False

    def settings(self, quick: bool) -> list[dict[str, Any]]:
        """The plan as plain data."""
        return [asdict(panel) for panel in self.plan(quick)]


def stack(tables: Sequence[Columns]) -> dict[str, list[Any]]:
    """Tables with the same columns, one below the other."""
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}


def spread(values: Tensor) -> list[float]:
    """Mean, least and greatest."""
    return [float(values.mean()), float(values.min()), float(values.max())]
