"""Combine the folders of a multi-process run, one per process, into a view of the whole run.

From the folder of a single process, only its own numbers are known; those of others are NaN.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascadice.engine.metrics import Metrics
from cascadice.files import Folder
from cascadice.runs import store
from cascadice.runs.distributed.shared_facts import facts_of_run, not_one_run
from cascadice.runs.folder import CONFIG, MANIFEST, read_config, read_manifest, status_of
from cascadice.runs.round_metrics import RoundMetrics


def places_of(run: Folder) -> list[Path]:
    """The folder of a run, or the folders of its processes; none if there is no run."""
    folder = Path(run)
    if (folder / CONFIG).exists():
        return [folder]
    return sorted(place for place in folder.glob("rank-*") if (place / CONFIG).exists())


def mixed_up(places: Sequence[Path]) -> str:
    """A message that the processes' folders belong to different runs; "" if they belong to one."""
    return not_one_run([place.name for place in places], [facts_of_run(each, read_config(each)) for each in places])


def gathered_manifest(places: Sequence[Path]) -> dict[str, Any]:
    """The manifest of the first process, with the progress of all of them."""
    manifests = [read_manifest(place) for place in places]
    statuses = [status_of(*each) for each in zip(places, manifests, strict=True)]
    if len(places) == 1:
        return manifests[0] | ({"status": statuses[0]} if manifests[0] else {})
    rounds, seconds = ([each.get(name, 0) for each in manifests] for name in ("rounds", "seconds"))
    status = ", ".join(dict.fromkeys(map(str, statuses)))
    return manifests[0] | {"status": status, "rounds": min(rounds), "seconds": max(seconds)}


def members_of(place: Path) -> Any:
    """The participants of the process that wrote a folder; None if it was the only one."""
    return (read_manifest(place).get("process") or {}).get("members")


def gathered_metrics(places: Sequence[Path], nodes: int) -> list[RoundMetrics]:
    """The metrics of each round; NaN for participants whose process did not record it or whose folder is missing.

    No process knows the consensus distance, which is NaN.
    """
    members = [members_of(place) for place in places]
    each = [store.read_metrics(place) for place in places]
    if members == [None]:
        return each[0]
    whole = dict[int, RoundMetrics]()
    for place, own, metrics in zip(places, members, each, strict=True):
        known = isinstance(own, list) and all(isinstance(k, int) and 0 <= k < nodes for k in own)
        if not known or any(len(one.train_loss) != len(own) for one in metrics[:1]):
            raise ValueError(
                f"{place / MANIFEST} must name the participants that {store.METRICS} has, below {nodes}; found {own!r}."
            )
        for one in metrics:
            of_all = whole.get(one.t) or RoundMetrics(one.t, _unknown(nodes), _unknown(), None, None)
            of_all.train_loss[own] = one.train_loss.double()
            if one.test is not None:
                test = of_all.test or Metrics(_unknown(nodes), _unknown(nodes))
                test.loss[own], test.accuracy[own] = one.test.loss.double(), one.test.accuracy.double()
                of_all = of_all._replace(test=test)
            whole[one.t] = of_all
    return [whole[t] for t in sorted(whole)]


def _unknown(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=torch.float64)
