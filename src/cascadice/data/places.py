"""Where data files are looked for, and what is said when they are absent or damaged."""

import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Root = str | os.PathLike[str] | None


def places(root: Root = None) -> list[Path]:
    """The folders searched, in order: `root`, $CASCADICE_DATA, the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = [root, os.environ.get("CASCADICE_DATA"), Path(cache) / "cascadice"]
    return [Path(place).expanduser() for place in given if place]


def locate(name: str, folder: str, layouts: Sequence[Sequence[str]], root: Root = None) -> list[Path]:
    """The files of the first layout that is complete in a place, or in `folder` there; each file is a glob pattern."""
    directories = [directory for place in places(root) for directory in (place, place / folder)]
    for directory in directories:
        for layout in layouts:
            found = [next(iter(sorted(directory.glob(pattern))), None) for pattern in layout]
            if all(found):
                return [path for path in found if path]
    wanted = " or ".join(layout[0] for layout in layouts)
    tried = ", ".join(str(directory) for directory in directories)
    raise FileNotFoundError(
        f"{name} is not here: looked for {wanted} in {tried}. "
        "Use --download (download=True), or name the folder that holds it: --data-root, or CASCADICE_DATA."
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is reported as damage to `path`, with what to do about it."""
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OSError) as cause:
        raise _damaged(path, cause) from cause
    except (zlib.error, zipfile.BadZipFile, pickle.UnpicklingError) as cause:
        raise _damaged(path, cause) from cause


@contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of an npz file, none of them pickled; damage met while they are read is reported too."""
    # np.load leaves a file that it opened, and could not read, open.
    with reading(path), path.open("rb") as file:
        expect("a zip file, beginning with", b"PK\x03\x04", file.read(4))
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays


def expect(what: str, wanted: object, found: object) -> None:
    """The short inner cause of a damage report."""
    if wanted != found:
        raise ValueError(f"expected {what} {wanted}, found {found or repr(found)}")


def one_line(cause: Exception) -> str:
    """What `cause` says, on one line and without its full stop."""
    return " ".join(str(cause).split()).rstrip(".") or type(cause).__name__


def _damaged(path: Path, cause: Exception) -> ValueError:
    return ValueError(f"{path} is damaged: {one_line(cause)}. Delete it and download it again.")
