"""Figures of panels side by side, with one style, and how they are saved."""

from pathlib import Path
from typing import Any

from cascadice.files import Folder, replacing

NAMED_UP_TO = 32  # participants; more numbers do not fit along an axis
SUFFIXES = (".png", ".svg")


def panels(count: int, size: tuple[float, float], rows: int = 1) -> tuple[Any, Any]:
    """A figure of this size in inches, and its `count` panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, count // rows, squeeze=False).ravel()


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
