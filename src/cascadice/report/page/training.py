"""How training went, as curves: every participant where they can be told apart, else from the least to the greatest."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cascadice.pictures.training import LINES_UP_TO
from cascadice.report.page.numbers import Json, evenly, short
from cascadice.runs import store
from cascadice.runs.store import RoundMetrics

POINTS = 400  # along a curve


def measures(folder: Path, notes: list[str]) -> list[RoundMetrics]:
    """What the run measured so far."""
    if not (folder / store.METRICS).exists():
        notes.append("Nothing was measured yet: metrics are written with the first checkpoint.")
        return []
    try:
        return store.read_metrics(folder)
    except ValueError as error:
        notes.append(str(error))
        return []


def curves(found: Sequence[RoundMetrics]) -> Json | None:
    """Loss and distance from consensus over the rounds, loss and accuracy on the test data where it was looked at."""
    if not found:
        return None
    some = [found[place] for place in evenly(len(found), POINTS)]
    seen = [m for m in found if m.test is not None]
    judged = [(seen[place].t, seen[place].test) for place in evenly(len(seen), POINTS)]
    accuracy = [(t, e.accuracy) for t, e in judged if e is not None and not bool(e.accuracy.isnan().any())]
    return {
        "loss": _curve([(m.t, m.train_loss) for m in some]),
        "test loss": _curve([(t, e.loss) for t, e in judged if e is not None]),
        "accuracy": _curve(accuracy),
        "consensus": {"rounds": [m.t for m in some], "mean": short([float(m.consensus) for m in some])},
        "thinned": len(some) < len(found),
    }


def _curve(points: Sequence[tuple[int, Tensor]]) -> Json | None:
    if not points:
        return None
    values = torch.stack([value for _, value in points]).double()
    curve: Json = {"rounds": [t for t, _ in points], "mean": short(values.mean(1))}
    if values.shape[1] <= LINES_UP_TO:
        return {**curve, "each": [short(column) for column in values.T]}
    return {**curve, "least": short(values.amin(1)), "greatest": short(values.amax(1))}
