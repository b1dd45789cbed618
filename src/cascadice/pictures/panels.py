"""A figure of panels side by side, styled and saved in the one way all pictures of results are."""

from os import PathLike
from typing import Any

from cascadice.pictures import saving

NAMED_UP_TO = 32  # participants: above it, their numbers no longer fit along an axis


def panels(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of this size in inches, and its `count` panels (one alone is not in a list)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, count)


def save(figure: Any, path: str | PathLike[str], title: str = "") -> None:
    """Style all panels and save the figure as PNG or SVG; ValueError if `path` has any other suffix."""
    saving.check_suffix(path)
    if title:
        figure.suptitle(title)
    for axes in figure.axes:
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    saving.save(figure, path)


def number_participants(axes: Any, order: Any) -> None:
    """Put the participants' numbers along both axes of a matrix, unless they are too many."""
    if len(order) <= NAMED_UP_TO:
        axes.set_xticks(range(len(order)), order)
        axes.set_yticks(range(len(order)), order)
        axes.tick_params(labelsize=8 if len(order) <= 16 else 6)
