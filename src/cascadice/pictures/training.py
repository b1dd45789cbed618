"""A figure of a training run: accuracy, losses and consensus distance over the rounds."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.files import Folder
from cascadice.pictures.panels import panels, write

LINES_UP_TO = 64  # participants; more are shown as a band from minimum to maximum
COLOURS = {"accuracy": "#0072B2", "evaluation": "#009E73", "training": "#D55E00", "consensus": "#4D4D4D"}  # Okabe–Ito


ByRound = Mapping[int, Float[Tensor, " n"]]


def plot(
    path: Folder, *, train_loss: ByRound, test_loss: ByRound, accuracy: ByRound, consensus: Mapping[int, float],
    title: str = "",
) -> None:  # fmt: skip
    """Plot metrics by round as PNG or SVG: thin lines are participants, thick lines their mean; NaN is no accuracy."""
    if not train_loss:
        raise ValueError("there must be at least one round to plot; found none.")
    figure, (left, losses, distance) = panels(3, (13, 4.2))
    left.set_title("test accuracy")
    if not accuracy or bool(torch.stack(list(accuracy.values())).isnan().all()):
        left.text(0.5, 0.5, "not evaluated", ha="center", transform=left.transAxes)
    else:
        _lines(left, accuracy, COLOURS["accuracy"], "mean; thin: each participant")
        left.set(ylim=(0, 1))
        left.legend(loc="lower right", frameon=False)
    _lines(losses, train_loss, COLOURS["training"], "on their batches")
    if test_loss:
        means = [float(values.mean()) for values in test_loss.values()]
        losses.plot(list(test_loss), means, "--", color=COLOURS["evaluation"], linewidth=2.2, label="on the test data")
    losses.set(title="loss", ylim=(0, None))
    losses.legend(loc="upper right", frameon=False)
    distance.plot(list(consensus), list(consensus.values()), color=COLOURS["consensus"], linewidth=1.6)
    label = r"root mean square of $\|\theta_k - \bar\theta\|$"
    distance.set(title="consensus distance", ylabel=label, ylim=(0, None))
    for axes in (left, losses, distance):
        axes.set_xlabel("round")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    write(figure, path)


def _lines(axes: Any, curves: ByRound, colour: str, name: str) -> None:
    """A line for each participant, or a band of all, and the mean of those that took part in the round."""
    rounds, known = list(curves), torch.stack(list(curves.values())).cpu()
    values = known.numpy()
    if values.shape[1] <= LINES_UP_TO:
        axes.plot(rounds, values, color=colour, linewidth=0.6, alpha=0.35)
    else:
        axes.fill_between(rounds, values.min(1), values.max(1), color=colour, alpha=0.2, linewidth=0)
    marker = "o" if len(rounds) == 1 else ""
    axes.plot(rounds, known.nanmean(1), color=colour, linewidth=2.4, marker=marker, label=name)
