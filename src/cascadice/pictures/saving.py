"""Save figures as PNG or SVG files."""

from os import PathLike
from pathlib import Path
from typing import Any

from cascadice.files import replacing

SUFFIXES = (".png", ".svg")


def check_suffix(path: str | PathLike[str]) -> Path:
    """The path, which must end in .png or .svg."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    return Path(path)


def save(figure: Any, path: str | PathLike[str]) -> None:
    """Save a Matplotlib figure atomically, in the format of the path's suffix."""
    path = check_suffix(path)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))
