"""The mixing matrices of the rounds that a page shows: who gossiped with whom."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cascadice import topology
from cascadice.applications.plain import Json, evenly, short
from cascadice.engine import behaviours
from cascadice.runs import store
from cascadice.runs.config import Config, schedule

ROUNDS = 60  # at most, to choose from
LINKS = 60_000  # of all distinct matrices together

Matrix = NDArray[np.float64]


def mixing(
    folder: Path, config: Config, shown: Sequence[int], rounds: Sequence[int], hops: int, notes: list[str]
) -> Json | None:
    """The links among the participants shown: the distinct `matrices`, and `of`: round -> the index of each hop's.

    The first matrix is the mean over these rounds. Recorded rounds show the W that was used, others the W that the
    settings give. Cost: W of each round and hop is read; parameters are not.
    """
    chosen = [rounds[place] for place in evenly(len(rounds), ROUNDS)]
    different: dict[bytes, Matrix] = {}
    of: dict[str, list[int]] = {}
    try:
        W = _mixing_matrices(folder, config)
        for t in chosen:
            matrices = [_among(shown, W(s)) for s in range(t, t + hops)]
            different |= {matrix.tobytes(): matrix for matrix in matrices}
            of[str(t)] = [1 + list(different).index(matrix.tobytes()) for matrix in matrices]
            if sum(np.count_nonzero(matrix) for matrix in different.values()) > LINKS:
                break
    except (ValueError, TypeError, OSError) as error:
        notes.append(f"Who gossiped with whom is not shown: {error}")
        return None
    if len(of) < len(rounds) and len(different) > 1:
        notes.append(f"The network is drawn for {len(of)} of {len(rounds)} rounds.")
    matrices = list(different.values())
    mean = np.mean([matrices[indices[0] - 1] for indices in of.values()], axis=0)
    return {"matrices": [_columns(shown, matrix) for matrix in (mean, *matrices)], "of": of}


def _among(shown: Sequence[int], W: Tensor) -> Matrix:
    receivers, sources, weights = (column.numpy() for column in topology.links(W))
    inside = np.isin(receivers, shown) & np.isin(sources, shown)
    matrix = np.zeros((len(shown), len(shown)))  # `shown` is sorted
    k, j = (np.searchsorted(shown, column[inside]) for column in (receivers, sources))
    matrix[k, j] = weights[inside]
    return matrix


def _mixing_matrices(folder: Path, config: Config) -> Callable[[int], Tensor]:
    recorded = set(store.saved_rounds(folder))
    if config.saved is not None:
        return lambda t: store.load_draw(folder, t).W
    planned = schedule(config)
    if away := behaviours.absent([behaviours.parse(text) for text in config.behaviours]):
        planned = topology.presence(planned, topology.absences(away, planned(0).shape[0]))

    def W(t: int) -> Tensor:
        try:
            return store.load_draw(folder, t).W if t in recorded else planned(t)
        except FileNotFoundError:  # a run in progress may keep only its last rounds
            return planned(t)

    return W


def _columns(shown: Sequence[int], matrix: Matrix) -> Json:
    (k, j), names = matrix.nonzero(), np.array(shown)
    return {"receiver": names[k].tolist(), "source": names[j].tolist(), "weight": short(matrix[k, j])}
