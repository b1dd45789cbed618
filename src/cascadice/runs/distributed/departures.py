"""Departures of a multi-process run from its schedule: missing messages, and rounds that a process missed.

Every process knows the whole schedule of W in advance. Each process writes the rows of W that it really used, where
they differ, to `departures.json` in its folder, and tells them to the others when they compute influence together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice import files
from cascadice.topology import Schedule

DEPARTURES, FORMAT = "departures.json", "cascadice-departures-1"

Row = tuple[int, int, list[tuple[int, float]]]  # a round, a receiver, the sources it really heard, their weights


@dataclass
class Departures:
    """How one process departed from the schedule."""

    rows: list[Row] = field(default_factory=list)  # of W, of its own participants, in rounds that lacked messages
    away: list[int] = field(default_factory=list)  # rounds not recorded: it was away, or died before a checkpoint

    def before(self, t: int) -> "Departures":
        """The departures before round t."""
        return Departures([row for row in self.rows if row[0] < t], [each for each in self.away if each < t])

    def note(self, t: int, members: Sequence[int], really: Float[Tensor, "m n"], planned: Float[Tensor, "m n"]) -> None:
        """Add the rows of W that members really used in round t, if they differ from the schedule."""
        for k, row, plan in zip(members, really, planned, strict=True):
            if not torch.equal(row, plan):
                self.rows.append((t, k, [(int(j), float(row[j])) for j in row.nonzero().flatten()]))


def write_departures(folder: files.Folder, departures: Departures) -> None:
    """Write the departures of a process to its folder; a run that went as planned has no such file."""
    path = Path(folder) / DEPARTURES
    if departures.rows or departures.away or path.exists():
        files.write_json(path, {"format": FORMAT, "rows": departures.rows, "away": departures.away})


def read_departures(folder: files.Folder) -> Departures:
    """Read the departures in the folder of a process."""
    path = Path(folder) / DEPARTURES
    if not path.exists():
        return Departures()
    content = files.read_json(path)
    files.check_format(path, content.get("format", FORMAT), FORMAT)
    try:
        return Departures([_row(row) for row in content["rows"]], [int(t) for t in content["away"]])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} must hold rows of W and rounds. Restore it from a copy.") from None


def _row(row: Any) -> Row:
    t, k, weights = row
    return int(t), int(k), [(int(j), float(weight)) for j, weight in weights]


def really(planned: Schedule, told: Sequence[Sequence[Any]]) -> Schedule:
    """The schedule with the rows of W that all processes really used."""
    rows: dict[int, list[Row]] = {}
    for row in (_row(each) for one in told for each in one):
        rows.setdefault(row[0], []).append(row)

    def schedule(t: int) -> Float[Tensor, "n n"]:
        W = planned(t).to_dense().clone() if t in rows else planned(t)
        for _, k, weights in rows.get(t, ()):
            W[k] = 0
            for j, weight in weights:
                W[k, j] = weight
        return W

    return schedule if rows else planned
