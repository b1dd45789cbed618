"""A figure of panels side by side, styled and saved in the one way all pictures of results are."""

from os import PathLike
from pathlib import Path
from typing import Any

from cascadice.files import replacing

SUFFIXES = (".png", ".svg")
NAMED_UP_TO = 32  # participants: above it, their numbers no longer fit along an axis


def panels(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of this size in inches, and its `count` panels (one alone is not in a list)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, count)


def save(figure: Any, path: str | PathLike[str], title: str = "") -> None:
    """Write a figure as PNG or SVG, by the suffix of `path`, whole or not at all.

    Raises:
        ValueError: If the path has any other suffix.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    if title:
        figure.suptitle(title)
    for axes in figure.axes:
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def number_participants(axes: Any, order: Any) -> None:
    """Put the participants' numbers along both axes of a matrix, unless they are too many."""
    if len(order) <= NAMED_UP_TO:
        axes.set_xticks(range(len(order)), order)
        axes.set_yticks(range(len(order)), order)
        axes.tick_params(labelsize=8 if len(order) <= 16 else 6)
