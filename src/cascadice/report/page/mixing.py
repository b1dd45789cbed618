"""Who gossiped with whom in the rounds that a page shows."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cascadice import topology
from cascadice.engine import behaviours as behaviour
from cascadice.report.page.numbers import Json, evenly, short
from cascadice.runs import store
from cascadice.runs.config import Config, parse_behaviour, schedule

ROUNDS = 60  # to choose from, at most
LINKS = 60_000  # of all different matrices together

Matrix = NDArray[np.float64]


def mixing(
    folder: Path, config: Config, shown: Sequence[int], rounds: Sequence[int], hops: int, notes: list[str]
) -> Json | None:
    """The links among the participants shown: `matrices`, and `of` each round, which of them it and its hops used.

    The first matrix is the mean over those rounds. Of a round that was recorded it is the W that was used, of others
    the one that the settings say. Cost: W of each round and hop is read; parameters are not.
    """
    chosen = [rounds[place] for place in evenly(len(rounds), ROUNDS)]
    different: dict[bytes, Matrix] = {}
    of: dict[str, list[int]] = {}
    try:
        W = _history(folder, config)
        for t in chosen:
            keys = [_kept(different, _among(shown, W(s))) for s in range(t, t + hops)]
            of[str(t)] = [1 + list(different).index(key) for key in keys]
            if sum(np.count_nonzero(matrix) for matrix in different.values()) > LINKS:
                break
    except (ValueError, TypeError, OSError) as error:
        notes.append(f"Who gossiped with whom is not shown: {error}")
        return None
    if len(of) < len(rounds) and len(different) > 1:
        notes.append(f"The network is drawn for {len(of)} of {len(rounds)} rounds.")
    matrices = list(different.values())
    mean = np.mean([matrices[places[0] - 1] for places in of.values()], axis=0)
    return {"matrices": [_columns(shown, matrix) for matrix in (mean, *matrices)], "of": of}


def _kept(different: dict[bytes, Matrix], matrix: Matrix) -> bytes:
    key = matrix.tobytes()
    different.setdefault(key, matrix)
    return key


def _among(shown: Sequence[int], W: Tensor) -> Matrix:
    place = np.full(W.shape[0], -1)
    place[list(shown)] = np.arange(len(shown))
    receivers, sources, weights = (column.numpy() for column in topology.links(W))
    k, j = place[receivers], place[sources]
    inside = (k >= 0) & (j >= 0)
    matrix = np.zeros((len(shown), len(shown)))
    matrix[k[inside], j[inside]] = weights[inside]
    return matrix


def _history(folder: Path, config: Config) -> Callable[[int], Tensor]:
    planned, recorded = schedule(config), set(store.recorded(folder))
    nodes = planned(0).shape[0]
    if away := behaviour.absent([parse_behaviour(text) for text in config.behaviours]):
        planned = topology.presence(planned, topology.absences(away, nodes))

    def W(t: int) -> Tensor:
        try:
            return _used(folder, t, nodes) if t in recorded else planned(t)
        except FileNotFoundError:  # a run under way may keep its last rounds only
            return planned(t)

    return W


def _used(folder: Path, t: int, nodes: int) -> Tensor:
    """W of a recorded round, without its parameters, which may be a thousand times as large."""
    from safetensors import SafetensorError, safe_open

    path = store._round_path(folder, t)
    try:
        with safe_open(path, "pt") as file:
            parts = {name: file.get_tensor(name) for name in file.keys() if name.split(".")[0] == "W"}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    return store._matrix(parts, nodes)


def _columns(shown: Sequence[int], matrix: Matrix) -> Json:
    k, j = matrix.nonzero()
    names = np.array(shown)
    return {"receiver": names[k].tolist(), "source": names[j].tolist(), "weight": short(matrix[k, j])}
