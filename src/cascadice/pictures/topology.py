"""A figure of a mixing matrix: its graph, and the matrix itself."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from cascadice.files import Folder
from cascadice.pictures.panels import write
from cascadice.topology import Links, links

NETWORK_UP_TO = 64  # participants; arrows of more would hide one another
PIXELS = 512  # along a side of the matrix; with more participants, a pixel shows the largest of several weights
COLOURS = "cividis_r"  # dark is strong; distinct for colour-blind readers too


def plot(W: Float[Tensor, "n n"], path: Folder, *, title: str = "") -> None:
    """Plot W as PNG or SVG: the graph on the left (up to 64 participants), the matrix on the right.

    The area of a participant shows the weight that others give it, the width and darkness of an arrow its weight.

    Args:
        W: A mixing matrix.
        path: The file to write; its ending says which format.
        title: Shown above.

    Example:
        >>> plot(cd.topology.mixing("ring", 8)(0), "ring.png", title="A ring of 8")  # doctest: +SKIP
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    nodes, entries = W.shape[0], links(W.detach().cpu())
    both = nodes <= NETWORK_UP_TO
    figure = Figure(figsize=(13, 6.4) if both else (7.4, 6.6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    if both:
        plot_network(axes[0], nodes, entries)
    _heat_map(axes[-1], nodes, entries)
    figure.suptitle(title if both else f"{title}\n{nodes} participants: too many to draw as a graph".strip())
    write(figure, path)


def plot_network(
    axes: Any, nodes: int, entries: Links, sizes: Any = None, fill: Sequence[str] | str = "#d9d9d9",
    notes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Draw the links and the participants on a circle, their area by `sizes` or by the weight that others give.

    `notes` are texts to write beside the participants' numbers.
    """
    from matplotlib import colormaps

    k, j, weight = (column.numpy() for column in entries)
    between = k != j
    k, j, weight = k[between], j[between], weight[between]
    shown = np.bincount(j, weight, minlength=nodes) if sizes is None else np.nan_to_num(sizes)
    area = 40 + 900 * min(1, 16 / nodes) ** 2 * shown / max(shown.max(), 1e-12)
    angle = math.pi / 2 - 2 * math.pi * np.arange(nodes) / nodes
    position = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    strength = weight / weight.max(initial=1e-12)
    crowding, colour = min(1.0, 60 / max(len(weight), 1)) ** 0.7, colormaps[COLOURS]
    for i in np.argsort(strength, kind="stable"):  # strong arrows on top
        axes.add_patch(_arrow(position[j[i]], position[k[i]], area[j[i]], area[k[i]], strength[i], crowding, colour))
    axes.scatter(*position.T, s=area, c=fill, edgecolors="#222222", linewidths=1.2, zorder=3)
    size = 11 if nodes <= 32 else 8
    for node, outwards in enumerate(position):
        away = outwards * (math.sqrt(area[node]) / 2 + size)  # in points, as circles are: clear of them in any axes
        look = {"xytext": away, "textcoords": "offset points", "va": "center"}
        axes.annotate(str(node), outwards, **look, ha="center", fontsize=size, zorder=4)
        if notes:
            axes.annotate(notes[node], outwards, **look | _beside(away, outwards), fontsize=8, color="0.3")
    wide, high = (2.0, 1.6) if notes else (1.3, 1.3)
    axes.set(xlim=(-wide, wide), ylim=(-high, high), aspect="equal")
    axes.set_title("who sends to whom (size: weight the others give it)")
    axes.axis("off")


def _beside(away: Any, outwards: Any) -> dict[str, Any]:
    """Where a note about a participant goes: beyond its number, which is `away` from it in this direction."""
    (x, y), (right, up) = outwards, away
    if abs(x) < 0.1:
        return {"xytext": (right, up + math.copysign(14, y)), "ha": "center"}
    return {"xytext": (right + math.copysign(12, x), up), "ha": "left" if x > 0 else "right"}


def _arrow(start: Any, end: Any, start_area: float, end_area: float, strength: float, width: float, colour: Any) -> Any:
    """An arrow from source to receiver, curved so that both directions of a pair show, between the circles' edges."""
    from matplotlib.patches import FancyArrowPatch

    return FancyArrowPatch(
        start, end, connectionstyle="arc3,rad=0.12", arrowstyle="-|>", mutation_scale=4 + 10 * strength * width,
        linewidth=0.3 + 2.7 * strength * width, color=colour(0.25 + 0.75 * strength), zorder=2,
        shrinkA=math.sqrt(start_area) / 2, shrinkB=math.sqrt(end_area) / 2,
    )  # fmt: skip


def _heat_map(axes: Any, nodes: int, entries: Links) -> None:
    block = math.ceil(nodes / PIXELS)
    side = math.ceil(nodes / block)
    image = np.zeros((side, side))
    np.maximum.at(image, tuple((column // block).numpy() for column in entries[:2]), entries.weights.numpy())
    edges = (-0.5, side * block - 0.5, side * block - 0.5, -0.5)
    axes.set_facecolor("#f4f4f4")
    shown = axes.imshow(np.ma.masked_equal(image, 0), COLOURS, vmin=0, extent=edges, interpolation="nearest")
    axes.figure.colorbar(shown, ax=axes, label="W[k, j]" if block == 1 else f"largest W[k, j] of {block} x {block}")
    axes.set(xlabel="source j", ylabel="receiver k", title="weight that k gives to j")
    if nodes <= 32:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(nodes))
            axis.set_ticks(np.arange(nodes + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
        axes.tick_params(labelsize=9 if nodes <= 16 else 7)
