"""Open a recorded run, read its rounds, train it again; and find the folder for results about it."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from cascadice.engine import Evaluation, Network, Round, draw
from cascadice.engine.backwards import segment
from cascadice.engine.operator import Exchange
from cascadice.files import Folder
from cascadice.influence.trust import RULES
from cascadice.influence.weighted_run import WeightedRun, final_value
from cascadice.names import lookup
from cascadice.runs import folder as folders
from cascadice.runs import store
from cascadice.runs.config import Config, build, length_of, override
from cascadice.runs.distributed.departures import read_departures, really
from cascadice.runs.distributed.processes import ONE_PROCESS, World, folder_name
from cascadice.runs.distributed.shared_facts import facts_of_run, not_one_run
from cascadice.runs.round_metrics import quality
from cascadice.runs.saved import as_drawn, network_of


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
        return folders.run_fingerprint(self.folder, self.config)

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
    config, numbers = folders.read_run_config(folder), tuple(world.common(store.saved_rounds(folder)))
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
    folders.run_fingerprint(folder, config)
    folders.check_process(folder, None, world)
    if not world.alone:
        told = world.tell(facts_of_run(folder, config))
        if wrong := not_one_run([folder_name(rank) for rank in range(world.size)], told):
            raise ValueError(wrong)
    if config.saved is not None:
        network = network_of(folder, config, settings)
    else:
        network = build(override(config, settings or {}), quiet=quiet, processes=world.size, rank=world.rank)
    folders.check_process(folder, network, world)
    folders.check_data(folder, network.data)
    if world.alone:
        return network
    return replace(network, mixing=really(network.mixing, world.tell(read_departures(folder).rows)))


@dataclass(frozen=True)
class Playable:
    """A run that can be trained again at any weight of the updates, in memory or by several processes."""

    fingerprint: str
    network: Network  # trains as the run did
    rounds: int
    recorded: RecordedRounds | None  # all its rounds, if all of them were recorded
    length: int  # how many rounds to keep at a time; the same after a restart, so that the checkpoints fit
    exchange: Exchange | None = None
    world: World = ONE_PROCESS
    lost: int | None = None  # the first round that is missing though all were to be recorded

    def before_and_after(
        self, evaluation: Evaluation, on: str | int = "all", trained: float | None = None,
        played: Callable[[], None] | None = None, during: range | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """f(0) and f(1): the loss without updates, those of the rounds `during` or all, and of the final models.

        `trained` is this process's part of the latter, if it is known. `played` is called after each round in which
        somebody trains.
        """
        run = WeightedRun(self.network, self.rounds, evaluation, 0.0, during, on, exchange=self.exchange)
        untrained = final_value(run if during is None else replace(run, played=played))
        if trained is None:
            trained = final_value(replace(run, rounds=self.rounds_at(1.0), at=1.0, played=played))
        before, after = self.world.total(untrained, trained)
        return before, after

    def rounds_at(self, at: float) -> int | RecordedRounds:
        """The argument `rounds` of `whole_run` at this weight: the recorded rounds at 1, else how many to train."""
        return self.recorded if at == 1 and self.recorded is not None else self.rounds


def playable(run: Recording) -> Playable:
    """Prepare an opened run to be trained again, with the recorded draws if all rounds were recorded."""
    folder, config, network = run.folder, run.config, run.network
    if config.rule is not None and not lookup(RULES, config.rule, "rule").averages:
        found = f"{folder} used the rule {config.rule!r}, which does not. Train it with another rule, or with none"
        raise ValueError(f"a run can be trained again at other weights only if its participants average; {found}.")
    if config.saved is not None and (why := mixed_by_rule(folder)):  # whose settings do not name the rule
        raise ValueError(f"{folder} cannot be trained again: {why}.")
    manifest = folders.read_manifest(folder)
    if away := read_departures(folder).away:
        how = (
            f"{folders.launcher((manifest.get('process') or {}).get('of', 1))} influence {folder.parent} --kind shares"
        )
        found = f"{folder} lacks round {away[0]}. Score the rounds that all of them recorded: {how}"
        raise ValueError(f"a run can be trained again only if every process recorded every round; {found}.")
    rounds = int(manifest.get("rounds", length_of(config, network)))
    if rounds < 1:
        raise ValueError(f"{folder} has no rounds yet. Continue it with: {folders.resuming(folder, manifest)}")
    if manifest.get("status") == "diverged":
        how = "Train it with a lower learning rate, or ask what its updates did within a few hops: --kind truth"
        raise ValueError(f"{folder} diverged in round {rounds}, so it has no final models. {how}.")
    saved, length = store.saved_rounds(folder), segment(network, rounds)
    missing = min(set(range(rounds)).difference(saved), default=None)
    if missing is None:
        recorded = RecordedRounds(folder, range(rounds), network, run.fingerprint)
        averaged = recorded[-1].rule is None  # gossip in an order that a recording cannot repeat is read as a rule
        return Playable(run.fingerprint, as_drawn(network, folder), rounds, recorded if averaged else None, length)
    if config.saved is not None:
        found = f"{folder} lacks round {missing}. Save it with all of them, from round 0 on"
        raise ValueError(f"a network that was built in Python can be trained again only from its rounds; {found}.")
    if config.rule is not None:
        found = f"{folder} lacks round {missing}. Train it again with --record all"
        raise ValueError(f"the rule {config.rule!r} chose W during the run, so every round must be recorded; {found}.")
    if earlier := [t for t in saved if t < rounds]:  # a continued run may have had other learning rates
        t = earlier[-1]
        then, now = store.load_draw(folder, t), draw(network, t)
        rate, planned = (torch.as_tensor(each.lr, dtype=torch.float64).cpu() for each in (then, now))
        if not torch.equal(then.batch, now.batch) or not torch.allclose(rate, planned):
            found = f"its settings give other batches or learning rates for round {t} than its recording"
            raise ValueError(f"{folder} cannot be trained again: {found}. Train it with --record all.")
    return Playable(run.fingerprint, network, rounds, None, length, lost=missing if config.record == "all" else None)


def mixed_by_rule(folder: Path) -> str:
    """Why a recording says too little, if a round in it was mixed by a rule that does not average; else ""."""
    if (t := store.first_by_rule(folder)) is None:
        return ""
    found = f"round {t} was mixed by a rule that does not average, and a recording does not hold the rule"
    return f"{found}. Pass the rounds themselves, in Python: cd.score(network, rounds)"


def results_folder(run: Path, name: str, out: Folder | None, written: Sequence[str], overwrite: bool) -> Path:
    """The folder for the results of a command: `out`, or `name` in the run's folder. Nothing is created or removed.

    `written` are the files that the command writes; if one exists, `overwrite` must be set.
    """
    folder = run / name if out is None else Path(out)
    folders.check_writable(folder, "a result")
    own = {os.path.realpath(run / part) for part in folders.RUN_FILES}
    if os.path.realpath(folder) in own or any((folder / part).exists() for part in folders.RUN_FILES):
        raise ValueError(f"{folder} belongs to a run; results need their own folder. Choose another with --out.")
    existing = [folder / file for file in written if (folder / file).exists()]
    if existing and not overwrite:
        raise ValueError(f"{existing[0]} already exists. Replace it with --overwrite, or choose another --out.")
    return folder
