"""Open a recorded run: its settings, its network and its rounds; and find the folder for results about it."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from cascadice.engine import Network, Round
from cascadice.files import Folder
from cascadice.runs import store
from cascadice.runs.config import Config, build, override
from cascadice.runs.distributed.departures import read_departures, really
from cascadice.runs.distributed.processes import ONE_PROCESS, World, folder_name
from cascadice.runs.distributed.shared_facts import facts_of_run, not_one_run
from cascadice.runs.folder import RUN_FILES, check_data, check_process, check_writable, read_run_config, run_fingerprint
from cascadice.runs.round_metrics import quality
from cascadice.runs.saved import network_of


@dataclass(frozen=True)
class RecordedRounds(Sequence[Round]):
    """The rounds with these numbers in a run's folder, each loaded on access and not cached."""

    folder: Path
    numbers: range
    network: Network
    run: str | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Round: ...
    @overload
    def __getitem__(self, place: slice) -> "RecordedRounds": ...
    def __getitem__(self, place: int | slice) -> "Round | RecordedRounds":
        if isinstance(place, slice):
            return replace(self, numbers=self.numbers[place])
        return load_round(self.folder, self.numbers[place], self.network, self.run)


def load_round(folder: Path, t: int, network: Network, run: str | None) -> Round:
    """Load a round of this network; a process stores only its own rows of W, and `network` has the others."""
    layout = store.layout(network.learner.training)
    round_ = store.load_round(folder, t, run=run, layout=layout, device=network.device)
    if not network.members:
        return round_
    return round_._replace(draw=round_.draw._replace(W=network.mixing(t)))


@dataclass(frozen=True)
class Recording:
    """A run in a folder, and the numbers of its recorded rounds."""

    folder: Path
    config: Config
    network: Network
    round_numbers: tuple[int, ...]
    away: tuple[tuple[int, ...], ...] = ()  # the rounds of which each of several processes has no record

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the run's settings, which its files contain."""
        return run_fingerprint(self.folder, self.config)

    def load_rounds(self, numbers: Sequence[int] | None = None) -> Iterator[Round]:
        """Load these rounds one at a time; None means all recorded rounds, of which none may be missing."""
        if numbers is None:
            store.check_rounds(self.folder)
        run = self.fingerprint
        for t in self.round_numbers if numbers is None else numbers:
            yield load_round(self.folder, t, self.network, run)

    def consecutive_rounds(self) -> range:
        """The recorded rounds, without gaps: to follow changes through rounds, every round is needed."""
        store.check_rounds(self.folder)
        span = range(self.round_numbers[0], self.round_numbers[-1] + 1)
        if len(span) != len(self.round_numbers):
            missing = min(set(span) - set(self.round_numbers))
            if (rank := next((rank for rank, rounds in enumerate(self.away) if missing in rounds), None)) is not None:
                why = "it was away, or died before its next checkpoint. Train with --policy restart, which keeps all"
                found = f"{folder_name(rank)} lacks round {missing}: {why}"
                raise ValueError(f"every process must have recorded every round; {found}.")
            raise ValueError(f"every round must be recorded; {self.folder} lacks round {missing}. Use --record all.")
        return span

    def windows(self, starts: Sequence[int], length: int) -> Iterator[list[Round]]:
        """For each start in order, the `length` rounds from there; every round is loaded once."""
        wanted = set(starts)
        for span in spans(starts, length):
            window: deque[Round] = deque(maxlen=length)
            for round in self.load_rounds(span):
                window.append(round)
                if len(window) == length and window[0].t in wanted:
                    yield list(window)

    def final_test_metrics(self, world: World = ONE_PROCESS) -> str:
        """The last test accuracy in words, e.g. "test accuracy 0.912 after round 39"; empty if there is none.

        It is the mean over the participants of all processes that evaluated in that round.
        """
        metrics = store.metrics_so_far(self.folder)
        tests = ((m.t, *quality(m.test)) for m in reversed(metrics) if m.test is not None)
        told = world.tell(next(([t, name, float(values.sum()), len(values)] for t, name, values in tests), None))
        for t, name, *_ in sorted((one for one in told if one), reverse=True)[:1]:
            sums, counts = zip(*(one[2:] for one in told if one and one[:2] == [t, name]), strict=True)
            return f"test {name} {sum(sums) / sum(counts):.3f} after round {t}"
        return ""


def spans(starts: Sequence[int], length: int) -> list[range]:
    """The rounds to load for windows of `length` rounds from each start; overlapping windows are merged."""
    merged: list[range] = []
    for t in starts:
        if merged and t < merged[-1].stop:
            merged[-1] = range(merged[-1].start, t + length)
        else:
            merged.append(range(t, t + length))
    return merged


def open_recording(
    run: Folder, settings: Mapping[str, Any] | None = None, *, quiet: bool = False, world: World = ONE_PROCESS,
    recorded: bool = True,
) -> Recording:  # fmt: skip
    """Open the recorded run in a folder.

    Args:
        run: The folder that `cascadice run --record …` wrote.
        settings: Settings that may differ from those it was trained with: `device`, `data_root`.
        quiet: Print nothing.
        world: The processes that trained the run; each opens its own folder, with the rounds that all have.
        recorded: Whether there must be recorded rounds; a run without them can still be trained again.

    Returns:
        The run: its settings, its network and the numbers of its recorded rounds.

    Raises:
        ValueError: If the folder holds no run, or settings or data are not those it was trained with.

    Example:
        >>> recording = open_recording("runs/demo")  # doctest: +SKIP
        >>> rounds = list(recording.load_rounds())  # doctest: +SKIP
    """
    folder = Path(run)
    config, numbers = read_run_config(folder), tuple(world.common(store.saved_rounds(folder)))
    if recorded and not numbers:
        raise ValueError(f"{folder} has no recorded rounds. Train it with `cascadice run … --record all`.")
    network = build_recorded(folder, config, settings, quiet=quiet, world=world)
    away = () if world.alone else tuple(map(tuple, world.tell(read_departures(folder).away)))
    return Recording(folder, config, network, numbers, away)


def build_recorded(
    folder: Path, config: Config, settings: Mapping[str, Any] | None = None, *, quiet: bool = False,
    world: World = ONE_PROCESS,
) -> Network:  # fmt: skip
    """Build the network of the run in a folder, after checking that it was trained with these settings and data.

    `settings` may change `device` and `data_root`. With several processes, each builds its part, and W has the rows
    that all processes really used.
    """
    run_fingerprint(folder, config)
    check_process(folder, None, world)
    if not world.alone:
        told = world.tell(facts_of_run(folder, config))
        if wrong := not_one_run([folder_name(rank) for rank in range(world.size)], told):
            raise ValueError(wrong)
    if config.saved is not None:
        network = network_of(folder, config, settings)
    else:
        network = build(override(config, settings or {}), quiet=quiet, processes=world.size, rank=world.rank)
    check_process(folder, network, world)
    check_data(folder, network.data)
    if world.alone:
        return network
    return replace(network, mixing=really(network.mixing, world.tell(read_departures(folder).rows)))


def results_folder(run: Path, name: str, out: Folder | None, written: Sequence[str], overwrite: bool) -> Path:
    """The folder for the results of a command: `out`, or `name` in the run's folder. Nothing is created or removed.

    `written` are the files that the command writes; if one exists, `overwrite` must be set.
    """
    folder = run / name if out is None else Path(out)
    check_writable(folder, "a result")
    own = {os.path.realpath(run / part) for part in RUN_FILES}
    if os.path.realpath(folder) in own or any((folder / part).exists() for part in RUN_FILES):
        raise ValueError(f"{folder} belongs to a run; results need their own folder. Choose another with --out.")
    existing = [folder / file for file in written if (folder / file).exists()]
    if existing and not overwrite:
        raise ValueError(f"{existing[0]} already exists. Replace it with --overwrite, or choose another --out.")
    return folder
