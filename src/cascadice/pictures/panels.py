"""Figures of panels side by side, with one style, and how they are saved."""

from pathlib import Path
from typing import Any

from cascadice.files import Folder, replacing

NAMED_UP_TO = 32  # participants; more numbers do not fit along an axis
SUFFIXES = (".png", ".svg")


def panels(count: int, size: tuple[float, float], rows: int = 1) -> tuple[Any, Any]:
    """A figure of this size in inches, and its `count` panels (a single one is not in a list)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, count // rows)
    return figure, axes if rows == 1 else axes.ravel()


def save(figure: Any, path: Folder, title: str = "") -> None:
    """Style all panels and write the figure."""
    if title:
        figure.suptitle(title)
    for axes in figure.axes:
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    write(figure, path)


def write(figure: Any, path: Folder) -> None:
    """Write the figure atomically, as .png or .svg by the path's suffix."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def plot_matrix(
    axes: Any, matrix: Any, limits: tuple[float, float], order: Any, title: str, colours: str = "RdBu_r",
    **colour_bar: Any,
) -> None:  # fmt: skip
    """Show a matrix [source, receiver] like W: a row for each receiver and a column for each source."""
    low, high = limits
    image = axes.imshow(matrix.T, colours, vmin=low, vmax=high, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, **colour_bar)
    axes.set(xlabel="source j", ylabel="receiver k", title=title)
    if len(order) <= NAMED_UP_TO:
        axes.set_xticks(range(len(order)), order)
        axes.set_yticks(range(len(order)), order)
        axes.tick_params(labelsize=8 if len(order) <= 16 else 6)
