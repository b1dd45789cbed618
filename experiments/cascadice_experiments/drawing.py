"""What all pictures share: colours that colour-blind readers can tell apart, and how to save a picture."""

from os import PathLike
from pathlib import Path
from typing import Any

from cascadice.files import replacing

HELPED, HARMED = "#0072B2", "#D55E00"  # blue and orange of Okabe and Ito, like all colours here
SKY, GREEN, PINK, YELLOW, GREY = "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#4D4D4D"
SUFFIXES = (".png", ".svg")


def save(figure: Any, path: str | PathLike[str], dpi: int = 150) -> None:
    """Write a Matplotlib figure as PNG or SVG, by the suffix of `path`; a failure leaves an earlier file untouched."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, format=path.suffix.lower().removeprefix("."))


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A Matplotlib figure, its size in inches, and its axes, `[rows, columns]`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def hide_box(axes: Any) -> None:
    """Hide the upper and right borders."""
    axes.spines[["top", "right"]].set_visible(False)
