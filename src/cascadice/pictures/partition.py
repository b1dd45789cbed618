"""A figure of how the data is divided among the participants."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from cascadice.files import Folder
from cascadice.names import visible
from cascadice.pictures.panels import write

LEGIBLE = 40  # labels along an axis; of more, only every second, fifth, tenth … is shown


def plot(counts: Int[Tensor, "nodes classes"], path: Folder, classes: Sequence[str]) -> None:
    """Plot the number of samples of each class at each participant as a heat map with totals, as PNG or SVG."""
    from matplotlib.figure import Figure

    nodes, n_classes = counts.shape
    if n_classes != len(classes):
        raise ValueError(f"classes must name every column; found {n_classes} columns and {len(classes)} names.")
    size = (4.5 + min(12, max(3, 0.42 * n_classes)), 2 + min(12, max(2, 0.25 * nodes)))
    figure = Figure(figsize=size, layout="constrained")
    shares, totals = figure.subplots(1, 2, sharey=True, width_ratios=[size[0] - 2, 2])
    image = shares.imshow(counts.cpu().numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    figure.colorbar(image, ax=totals, label="samples of the class")
    shares.set(xlabel="class", ylabel="participant", title="who holds what")
    _tick(shares.xaxis, classes, rotation=90 if max(map(len, classes)) > 2 else 0)
    _tick(shares.yaxis, [str(node) for node in range(nodes)])
    totals.barh(range(nodes), counts.sum(1).tolist(), height=0.8, color="0.45")
    totals.set(xlabel="samples in total")
    totals.tick_params(axis="y", labelleft=False)
    totals.spines[["top", "right"]].set_visible(False)
    write(figure, path)


def _tick(axis: Any, names: Sequence[str], rotation: int = 0) -> None:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if len(names) / step <= LEGIBLE)
    shown = [visible(name) for name in names[::every]]
    axis.set_ticks(range(0, len(names), every), shown, rotation=rotation, fontsize=8, parse_math=False)
