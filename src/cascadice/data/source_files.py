"""Find data files, and report missing or damaged ones."""

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascadice.files.digests import check_ordinary

Root = str | os.PathLike[str] | None


def search_path(root: Root = None) -> list[Path]:
    """The folders to search, in order: `root`, $CASCADICE_DATA, the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folders = [root, os.environ.get("CASCADICE_DATA"), Path(cache) / "cascadice"]
    return [Path(folder).expanduser() for folder in folders if folder]


def locate(
    name: str, folder: str, layouts: Sequence[Sequence[str]], root: Root = None,
    recognise: Callable[[list[Path]], bool] = lambda paths: True,
) -> list[Path]:  # fmt: skip
    """The files of the first complete layout, a list of glob patterns, in one of the folders of the search path.

    In each of these, the data set's own `folder` is searched first, and trusted; files outside it must be ones that
    `recognise` knows. Errors call the data set `name`.
    """
    rejected = ""
    for searched in search_path(root):
        for directory in (searched / folder, searched):
            for layout in layouts:
                paths = [path for pattern in layout for path in sorted(directory.glob(pattern))[:1]]
                if len(paths) == len(layout):
                    if directory != searched or recognise(paths):
                        return paths
                    own = searched / folder
                    rejected = f"{searched} has such files, but of another data set; put {name} into {own}. "
    wanted = " or ".join(layout[0] for layout in layouts)
    tried = ", ".join(f"{searched}, {searched / folder}" for searched in search_path(root))
    raise FileNotFoundError(
        f"{name} was not found: looked for {wanted} in {tried}. {rejected}"
        "Use --download (download=True), or name the folder that holds it: --data-root, or CASCADICE_DATA."
    )


@contextmanager
def reading(path: Path, failed: str = "is damaged") -> Iterator[None]:
    """Report any error inside the block as damage to `path`, with a remedy; `path` must be an ordinary file.

    Errors of the operating system (no such file, no permission, circular links) are passed on.
    """
    check_ordinary(path)
    try:
        yield
    except MemoryError as cause:
        raise MemoryError(f"{path} holds more than fits into memory: {_one_line(cause)}.") from cause
    except Exception as cause:
        if isinstance(cause, OSError) and cause.errno:
            raise
        raise ValueError(f"{path} {failed}: {_one_line(cause)}. Delete it and download it again.") from cause


@contextmanager
def open_npz(path: Path, *names: str) -> Iterator[Callable[[str], NDArray[Any]]]:
    """A function that reads arrays of an npz file by name; errors in the block are reported as damage to the file.

    An intact file that lacks one of these `names` gets its own error. Nothing is unpickled. This does not use np.load,
    which does not compare checksums if an array ends before its zip member does.
    """
    with reading(path):
        zipped = zipfile.ZipFile(path)
    with zipped:
        if missing := [name for name in names if f"{name}.npy" not in zipped.namelist()]:
            wanted = f"{path} must hold the arrays {', '.join(names)}"
            raise ValueError(f"{wanted}; it lacks {', '.join(missing)}. Make the file again with all of them.")
        with reading(path):
            yield partial(_read_array, zipped)


def _read_array(zipped: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with zipped.open(f"{name}.npy") as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        expect(f"nothing after the array {name}", b"", member.read(1))  # reading to the end compares the checksum
    return array


def expect(what: str, wanted: object, found: object) -> None:
    """Raise a short ValueError, to be reported by `reading`, if two values differ."""
    if wanted != found:
        raise ValueError(f"expected {what} {wanted}, found {found or repr(found)}")


def _one_line(cause: Exception) -> str:
    """The message of `cause` on one line, without its full stop."""
    return " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
