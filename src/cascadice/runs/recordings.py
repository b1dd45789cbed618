"""A recorded run, opened again: its settings, its network and its rounds; and a folder for what is made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascadice import files
from cascadice.engine import Network, Round
from cascadice.runs import store
from cascadice.runs.config import Config, build, fingerprint, override
from cascadice.runs.folder import CONFIG, MADE, check_writable, read_config


@dataclass(frozen=True)
class Recording:
    """A run in a folder, and which of its rounds were recorded."""

    folder: Path
    config: Config
    network: Network
    recorded: tuple[int, ...]

    @property
    def fingerprint(self) -> str:
        """What tells this run from any other."""
        return fingerprint(self.config)

    def rounds(self, numbers: Sequence[int] | None = None) -> Iterator[Round]:
        """These rounds (all that were recorded), read one by one."""
        layout = store.layout(self.network.learner.training)
        for t in self.recorded if numbers is None else numbers:
            yield store.load_round(self.folder, t, layout=layout, device=self.network.device)

    def in_a_row(self) -> range:
        """The recorded rounds, which must follow one another: what travels through rounds needs every one."""
        span = range(self.recorded[0], self.recorded[-1] + 1)
        if len(span) != len(self.recorded):
            missing = sorted(set(span) - set(self.recorded))[0]
            raise ValueError(f"every round must be recorded; {self.folder} lacks round {missing}. Use --record all.")
        return span


def open_recording(run: files.Folder, settings: Mapping[str, Any] | None = None, *, quiet: bool = False) -> Recording:
    """Open the run in a folder; `settings` are those that may differ from when it trained: device, data_root."""
    folder = Path(run)
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds no run: {CONFIG} is not there. Name the folder that `cascadice run` wrote.")
    config = read_config(folder)
    recorded = tuple(store.recorded(folder))
    if not recorded:
        raise ValueError(f"{folder} has no recorded rounds. Train it with `cascadice run … --record all`.")
    return Recording(folder, config, build(override(config, settings or {}), quiet=quiet), recorded)


def place_for(recording: Path, name: str, out: files.Folder | None, made: Sequence[str], overwrite: bool) -> Path:
    """The folder for what a command makes: `out`, or `name` in the run's folder. Nothing is touched.

    If any file that it `made` before is there, it must have been asked to replace it: it will, when it has new ones.
    """
    place = recording / name if out is None else Path(out)
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file; results need a folder. Choose another with --out.")
    check_writable(place)
    own = {(recording / part).resolve() for part in MADE}
    if place.resolve() in own or any((place / part).exists() for part in MADE):
        raise ValueError(f"{place} is the folder of a run; results need one of their own. Choose another with --out.")
    there = [place / file for file in made if (place / file).exists()]
    if there and not overwrite:
        raise ValueError(f"{there[0]} is there already. Replace it with --overwrite, or choose another --out.")
    return place
