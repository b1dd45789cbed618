"""A run's folder: what is in it, whether it may be written to, and how it is cleared."""

import os
import shutil
from pathlib import Path

from cascadice import files
from cascadice.runs import store
from cascadice.runs.config import Config, determining, from_json, to_json

CONFIG, MANIFEST, FIGURE, HOLDINGS = "config.json", "manifest.json", "training.png", "partition.png"
INFLUENCE = "influence"
FOUND = ("detect", "choose", "reward", "forget", "ledger", "report.html")  # by commands over the run
MADE = (CONFIG, MANIFEST, FIGURE, HOLDINGS, store.METRICS, store.CHECKPOINT, "rounds", INFLUENCE)


def check_folder(folder: Path, config: Config, resume: bool, overwrite: bool) -> None:
    """Everything that can be said of the folder before the network is built; nothing is touched."""
    if resume and overwrite:
        raise ValueError("a run is either resumed or overwritten; found both. Leave one out.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a run needs a folder. Choose another with --out.")
    check_writable(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not ((folder / CONFIG).exists() and (folder / MANIFEST).exists()):
        raise ValueError(f"{folder} holds files that are not a run's. Choose another folder with --out.")
    if not (resume or overwrite):
        raise ValueError(
            f"{folder} holds a run already. Go on with --resume, replace it with --overwrite, or choose another --out."
        )
    if resume:
        _check_same(folder, config)


def check_writable(folder: Path) -> None:
    """The folder, or the one in which it will be made, must be one and open to us."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{there} is not a folder that can be written to. Choose another with --out.")


def read_config(path: str | os.PathLike[str]) -> Config:
    """The configuration of a run, from its folder or its config.json."""
    path = Path(path) / CONFIG if Path(path).is_dir() else Path(path)
    try:
        return from_json(files.read_json(path))
    except (ValueError, TypeError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _check_same(folder: Path, config: Config) -> None:
    there = to_json(read_config(folder))
    for name, here in determining(config).items():
        if here != there[name]:
            raise ValueError(
                f"a run goes on with its own settings; {name} is {there[name]!r} in {folder}, {here!r} here. "
                "Leave it out, or use another folder."
            )


def clear(folder: Path) -> None:
    """Remove what a run made and what was found about it, and nothing else."""
    files.sweep(folder)
    for name in (*MADE, *FOUND):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
