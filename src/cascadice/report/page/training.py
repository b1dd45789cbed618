"""Training curves: a line for each participant, or a band from the lowest to the highest if there are too many."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cascadice.applications.plain import Json, evenly, short
from cascadice.pictures.training import LINES_UP_TO
from cascadice.runs import store
from cascadice.runs.store import RoundMetrics

POINTS = 400  # most points of a curve


def read_metrics(folder: Path, notes: list[str]) -> list[RoundMetrics]:
    """What the run has measured so far."""
    if not (folder / store.METRICS).exists():
        notes.append("Nothing has been measured yet: the first checkpoint will write the first metrics.")
        return []
    try:
        return store.read_metrics(folder)
    except ValueError as error:
        notes.append(str(error))
        return []


def curves(metrics: Sequence[RoundMetrics]) -> Json | None:
    """Training loss and consensus distance by round, and test loss and accuracy where they were measured."""
    if not metrics:
        return None
    kept = [metrics[place] for place in evenly(len(metrics), POINTS)]
    tests = [(m.t, m.test) for m in metrics if m.test is not None]
    tests = [tests[place] for place in evenly(len(tests), POINTS)]
    return {
        "loss": _curve([(m.t, m.train_loss) for m in kept]),
        "test loss": _curve([(t, test.loss) for t, test in tests]),
        "accuracy": _curve([(t, test.accuracy) for t, test in tests if not bool(test.accuracy.isnan().any())]),
        "consensus": {"rounds": [m.t for m in kept], "mean": short([float(m.consensus) for m in kept])},
        "thinned": len(kept) < len(metrics),
    }


def _curve(points: Sequence[tuple[int, Tensor]]) -> Json | None:
    if not points:
        return None
    values = torch.stack([value for _, value in points]).double()
    curve: Json = {"rounds": [t for t, _ in points], "mean": short(values.mean(1))}
    if values.shape[1] <= LINES_UP_TO:
        return {**curve, "each": [short(column) for column in values.T]}
    return {**curve, "least": short(values.amin(1)), "greatest": short(values.amax(1))}
