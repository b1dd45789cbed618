"""A picture of a training run: how good every participant became, and how far apart they stayed."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascadice.files import aside
from cascadice.pictures.topology import SUFFIXES
from cascadice.runs.store import RoundMetrics

LINES_UP_TO = 64  # participants; of more, a band from the least to the greatest
COLOURS = {"accuracy": "#0072B2", "evaluation": "#009E73", "training": "#D55E00", "consensus": "#4D4D4D"}  # Okabe–Ito


def draw(measures: Sequence[RoundMetrics], path: str | PathLike[str], *, title: str = "") -> None:
    """Draw accuracy, losses and consensus distance over the rounds into `path` (PNG or SVG, by its suffix).

    Thin lines are participants, thick ones their mean.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    if not measures:
        raise ValueError("there must be at least one round to draw; found none.")
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    accuracy, loss, consensus = figure.subplots(1, 3)
    _accuracy(accuracy, measures)
    _losses(loss, measures)
    _consensus(consensus, measures)
    for axes in (accuracy, loss, consensus):
        axes.set_xlabel("round")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    with aside(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def _accuracy(axes: Any, measures: Sequence[RoundMetrics]) -> None:
    judged = [(m.t, m.test.accuracy) for m in measures if m.test is not None]
    axes.set_title("test accuracy")
    if not judged or bool(torch.stack([a for _, a in judged]).isnan().all()):
        axes.text(0.5, 0.5, "not evaluated", ha="center", transform=axes.transAxes)
        return
    _lines(axes, judged, COLOURS["accuracy"], "mean; thin: each participant")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", frameon=False)


def _losses(axes: Any, measures: Sequence[RoundMetrics]) -> None:
    _lines(axes, [(m.t, m.train_loss) for m in measures], COLOURS["training"], "on their batches")
    judged = [(m.t, m.test.loss.mean()) for m in measures if m.test is not None]
    if judged:
        rounds, values = zip(*judged, strict=True)
        axes.plot(rounds, values, color=COLOURS["evaluation"], linewidth=2.2, linestyle="--", label="on the test data")
    axes.set_title("loss")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", frameon=False)


def _consensus(axes: Any, measures: Sequence[RoundMetrics]) -> None:
    distances = [float(m.consensus) for m in measures]
    axes.plot([m.t for m in measures], distances, color=COLOURS["consensus"], linewidth=1.6)
    axes.set_title("consensus distance")
    axes.set_ylabel(r"root mean square of $\|\theta_k - \bar\theta\|$")
    axes.set_ylim(bottom=0)


def _lines(axes: Any, points: list[tuple[int, Tensor]], colour: str, name: str) -> None:
    rounds = [t for t, _ in points]
    values = torch.stack([value for _, value in points]).cpu().numpy()
    if values.shape[1] <= LINES_UP_TO:
        axes.plot(rounds, values, color=colour, linewidth=0.6, alpha=0.35)
    else:
        axes.fill_between(rounds, values.min(1), values.max(1), color=colour, alpha=0.2, linewidth=0)
    marker = "o" if len(rounds) == 1 else ""
    axes.plot(rounds, values.mean(1), color=colour, linewidth=2.4, marker=marker, label=name)
