"""A picture of who holds what."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

LEGIBLE = 40  # names or numbers along an axis; beyond, every second, fifth, tenth …


def draw(holdings: Int[Tensor, "nodes classes"], path: str | Path, classes: Sequence[str]) -> None:
    """Samples of each class at each participant as a heat map, totals beside it; PNG or SVG by the suffix of `path`."""
    from matplotlib.figure import Figure

    nodes, n_classes = holdings.shape
    if n_classes != len(classes):
        raise ValueError(f"classes must name every column; there are {n_classes} columns and {len(classes)} names.")
    size = (4.5 + min(12, max(3, 0.42 * n_classes)), 2 + min(12, max(2, 0.25 * nodes)))
    figure = Figure(figsize=size, layout="constrained")
    shares, totals = figure.subplots(1, 2, sharey=True, width_ratios=[size[0] - 2, 2])
    image = shares.imshow(holdings.cpu().numpy(), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    figure.colorbar(image, ax=totals, label="samples of the class")
    shares.set(xlabel="class", ylabel="participant", title="who holds what")
    _tick(shares.xaxis, classes, rotation=90 if max(map(len, classes)) > 2 else 0)
    _tick(shares.yaxis, [str(node) for node in range(nodes)])
    totals.barh(range(nodes), holdings.sum(1).tolist(), height=0.8, color="0.45")
    totals.set(xlabel="samples in all")
    totals.tick_params(axis="y", labelleft=False)
    totals.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _tick(axis: Any, names: Sequence[str], rotation: int = 0) -> None:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, len(names)) if len(names) / step <= LEGIBLE)
    axis.set_ticks(range(0, len(names), every), names[::every], rotation=rotation, fontsize=8)
