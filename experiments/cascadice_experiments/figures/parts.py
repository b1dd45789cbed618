"""The parts of a figure's measurement, kept on disk so that an interrupted figure goes on where it stopped."""

import math
from collections.abc import Callable, Mapping
from hashlib import blake2b
from json import dumps
from pathlib import Path
from time import monotonic
from typing import Any

import cascadice
from cascadice.files import read_json, write_json
from cascadice_experiments.figures.figure import Part

Say = Callable[[str], None]


class Parts:
    """The parts of one figure: read from its folder, or made and written there."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], say: Say, total: int) -> None:
        self.folder, self.settings, self.say, self.total = folder, settings, say, total
        self.start, self.made, self.read = monotonic(), 0, 0
        self.earlier_seconds = 0.0  # what the parts that were read took to measure

    def part(self, name: str, make: Callable[[], Part]) -> Part:
        """The part of this name: what an earlier attempt with the same settings kept, or `make()`."""
        key = dumps([cascadice.__version__, self.settings, name], sort_keys=True).encode()
        path = self.folder / f"{blake2b(key, digest_size=8).hexdigest()}.json"
        if (kept := _kept(path)) is not None:
            self.read, self.earlier_seconds = self.read + 1, self.earlier_seconds + kept["seconds"]
            self.say(f"  {name}: measured earlier")
            return dict(kept["part"])
        start = monotonic()
        made = plain(make())
        write_json(path, {"seconds": monotonic() - start, "part": made})
        self.made += 1
        self.say(f"  {name}: {monotonic() - start:.1f} s{self._time_left()}")
        return dict(read_json(path)["part"])  # exactly what a later attempt would read

    def _time_left(self) -> str:
        finished, each = self.read + self.made, (monotonic() - self.start) / self.made
        minutes = each * (self.total - finished) / 60
        left = f" ({finished} of {self.total}, about {minutes:.1f} min left for this figure)"
        return left if finished < self.total else ""


def _kept(path: Path) -> dict[str, Any] | None:
    """What is kept of a part; None if it is missing or damaged, so that it is measured again."""
    try:
        kept = read_json(path)
    except (OSError, ValueError):
        return None
    return kept if kept.keys() == {"seconds", "part"} else None


def plain(value: Any) -> Any:
    """The value as JSON gives it back: lists for tuples, null for NaN and infinities."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
