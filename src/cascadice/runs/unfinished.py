"""Unfinished sweeps on disk, so that a stopped command can continue.

A folder of unfinished sweeps
    at-0.5.safetensors           the scores of the sweep at α = 0.5 so far; if it has not ended, its adjoint too
    at-0.5/000040.safetensors    participants before round 40 of the run at 0.5, to train it again from there
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import torch
from torch.utils._pytree import tree_map

from cascadice import files
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Adjoint
from cascadice.files.tensors import read_tensors, write_tensors
from cascadice.influence.whole_run import KeptScores, RoundScores, Sweep, WholeRun, from_kept, stack_rounds
from cascadice.runs import store

SAVE_SECONDS = 60.0


@dataclass(frozen=True)
class Checkpoints(MutableMapping[int, Participants]):
    """Checkpoints of `engine.backwards` on disk, one file each."""

    folder: Path
    device: torch.device

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:06d}.safetensors"

    def __getitem__(self, t: int) -> Participants:
        if not self._path(t).exists():
            raise KeyError(t)
        tensors, _ = read_tensors(self._path(t), None)
        return store.from_tensors("", {name: tensor.to(self.device) for name, tensor in tensors.items()})

    def __setitem__(self, t: int, participants: Participants) -> None:
        write_tensors(self._path(t), store.to_tensors("", participants), {"t": str(t)})

    def __delitem__(self, t: int) -> None:
        files.remove(self._path(t))

    def __contains__(self, t: object) -> bool:
        return isinstance(t, int) and self._path(t).exists()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdecimal()))

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass
class SavedSweep:
    """The scores of one sweep so far, last round first, and the folder they are saved in."""

    path: Path
    device: torch.device
    latest: Sweep | None = None
    kept: list[KeptScores] = field(default_factory=list)
    saved: float = field(default_factory=monotonic)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the run that this sweep belongs to."""
        return Checkpoints(self.path.with_suffix(""), self.device)

    def add(self, scores: RoundScores) -> None:
        """Add the scores of the next round; they are saved once a minute."""
        latest = tree_map(torch.clone, scores.sweep.adjoint)  # the next round is pulled back in its place
        self.kept.append(scores.kept)
        self.latest = scores.sweep._replace(adjoint=latest)
        if monotonic() - self.saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the sweep; one that has reached round 0 no longer needs its adjoint and checkpoints."""
        if self.latest is None:
            return
        t, adjoint, value = self.latest
        tensors = dict(zip(("participants", "samples", "drawn"), stack_rounds(self.kept), strict=True))
        if t > 0:
            tensors |= {"theta": adjoint.theta, **{f"state.{name}": v for name, v in adjoint.state.items()}}
        write_tensors(self.path, tensors, {"t": str(t), "value": repr(value)})
        if t == 0:
            files.remove(self.checkpoints.folder)
        self.saved = monotonic()

    def result(self) -> WholeRun:
        """The result of a finished sweep."""
        assert self.latest is not None
        return from_kept(self.kept, self.latest)


def open_sweep(folder: Path, at: float, device: torch.device) -> SavedSweep:
    """The saved sweep at this weight; empty if it has not begun."""
    path = folder / f"at-{at!r}.safetensors"
    if not path.exists():
        return SavedSweep(path, device)
    tensors, metadata = read_tensors(path, None)
    state = {name.removeprefix("state."): value for name, value in tensors.items() if name.startswith("state.")}
    adjoint = Adjoint(tensors.get("theta", torch.empty(0, 0)), state)
    adjoint = tree_map(lambda tensor: tensor.to(device), adjoint)
    kept = list(zip(*(tensors[name] for name in ("participants", "samples", "drawn")), strict=True))
    return SavedSweep(path, device, Sweep(int(metadata["t"]), adjoint, float(metadata["value"])), kept)
