"""A run as a whole, where its processes have a folder each: what is known of everybody, put together.

A single process's folder gives what that process knows; others' numbers are NaN then.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.metrics import Metrics
from cascadice.files import Folder
from cascadice.runs import store
from cascadice.runs.folder import CONFIG, MANIFEST, read_manifest, status_of
from cascadice.runs.round_metrics import RoundMetrics


def places_of(run: Folder) -> list[Path]:
    """The folder of a run, or those of its processes; none if there is no run.

    Example:
        >>> places_of("runs/on-four")  # doctest: +SKIP
        [PosixPath('runs/on-four/rank-000'), PosixPath('runs/on-four/rank-001')]
    """
    folder = Path(run)
    if (folder / CONFIG).exists():
        return [folder]
    return sorted(place for place in folder.glob("rank-*") if (place / CONFIG).exists())


def gathered_manifest(places: Sequence[Path]) -> dict[str, Any]:
    """The manifest of the first, with what all of them say about how far they are."""
    manifests = [read_manifest(place) for place in places]
    statuses = dict.fromkeys(str(status_of(*each)) for each in zip(places, manifests, strict=True))
    if len(places) == 1:
        return manifests[0] | ({"status": status_of(places[0], manifests[0])} if manifests[0] else {})
    rounds, seconds = ([each.get(name, 0) for each in manifests] for name in ("rounds", "seconds"))
    return manifests[0] | {"status": ", ".join(statuses), "rounds": min(rounds), "seconds": max(seconds)}


def gathered_metrics(places: Sequence[Path], nodes: int) -> list[RoundMetrics]:
    """What was measured in the rounds that all have; NaN for participants whose process is not among these places.

    The consensus distance is known to no process, and NaN.
    """
    members: list[Any] = [(read_manifest(place).get("process") or {}).get("members") for place in places]
    each = [store.read_metrics(place) for place in places]
    if members == [None]:
        return each[0]
    for place, own, metrics in zip(places, members, each, strict=True):
        known = isinstance(own, list) and all(isinstance(k, int) and 0 <= k < nodes for k in own)
        if not known or any(len(one.train_loss) != len(own) for one in metrics[:1]):
            raise ValueError(
                f"{place / MANIFEST} must name the participants that {store.METRICS} has, below {nodes}; found {own!r}."
            )
    return [
        RoundMetrics(
            now[0].t,
            _spread([one.train_loss for one in now], members, nodes),
            torch.tensor(torch.nan, dtype=torch.float64),
            Metrics(*(_spread(rows, members, nodes) for rows in zip(*tests, strict=True))) if all(tests) else None,
            None,
        )
        for now in zip(*each, strict=False)
        for tests in [[one.test or () for one in now]]
    ]


def _spread(rows: Sequence[Tensor], members: Sequence[Any], nodes: int) -> Tensor:
    values = torch.full((nodes,), torch.nan, dtype=torch.float64)
    for row, own in zip(rows, members, strict=True):
        values[torch.tensor(own)] = row.double()
    return values
