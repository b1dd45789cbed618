"""What a figure is: a plan that is plain data, a measurement of it, a picture of what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

Columns = Mapping[str, Sequence[Any]]
Part = dict[str, Any]


class Result(NamedTuple):
    """What was measured: single points, what they come to, and that in words. `more` is whatever else a picture needs.

    In a row of the summary a list of three is a value with its lower and upper end.
    """

    points: Columns
    summary: Sequence[Mapping[str, Any]]
    findings: Sequence[str]
    more: Mapping[str, Any]


class Mixing(NamedTuple):
    """A mixing matrix in a CSV file, in place of the figure's own."""

    path: str
    normalize: bool = False


class Means(NamedTuple):
    """With what, and how thoroughly, a figure is made.

    `part(name, make)` makes a part of the measurement, or finds it where an earlier attempt left it.
    """

    quick: bool
    device: str
    data_root: str | None
    mixing: Mixing | None
    part: Callable[[str, Callable[[], Part]], Part]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper (`shows`: its labels there; empty if beyond it), or several with one measurement.

    `plan(quick)` gives dataclasses that determine the result. `seconds` is what it takes, quick on two cores and whole
    on an H200: for the time left. `claim` is what the paper says of it.
    """

    title: str
    shows: tuple[str, ...]
    data: tuple[str, ...]
    plan: Callable[[bool], Sequence[Any]]
    measure: Callable[[Sequence[Any], Means], Result]
    draw: Callable[[Result, Path], None]
    claim: str
    seconds: tuple[int, int]
    takes_mixing: bool = False

    def settings(self, quick: bool) -> list[dict[str, Any]]:
        """The plan as JSON knows it."""
        return [asdict(panel) for panel in self.plan(quick)]


def joined(parts: Sequence[Columns]) -> dict[str, list[Any]]:
    """Tables of the same columns, one below the other."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
