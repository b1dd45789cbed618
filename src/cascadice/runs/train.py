"""Run a configuration into a folder, so that it can be stopped at any moment and gone on with, bit for bit."""

import contextlib
import math
import os
import platform
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from cascadice import files
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import MixingRule, Round, consensus
from cascadice.engine.simulation import DivergedError, Metrics, evaluate, simulate
from cascadice.names import lookup
from cascadice.runs import store
from cascadice.runs.config import Config, build, fingerprint, length, to_json
from cascadice.runs.folder import CONFIG, FIGURE, HOLDINGS, INFLUENCE, MANIFEST, check_folder, clear
from cascadice.runs.progress import closing, opening, progress
from cascadice.runs.questions import Question, answers, check_fits, conclude, keep, note_of
from cascadice.runs.store import RoundMetrics

if TYPE_CHECKING:
    from rich.console import Console

CHECKPOINT_SECONDS = 60.0


class Summary(NamedTuple):
    """How a run ended."""

    folder: Path
    rounds: int
    seconds: float
    strategy: str
    last: RoundMetrics


@dataclass
class _Journal:
    """A run under way: what has been done, and where it is written."""

    folder: Path
    config: Config
    network: Network
    t: int = 0
    safe: int = 0
    participants: Participants | None = None
    measures: list[RoundMetrics] = field(default_factory=list)
    earlier: float = 0.0
    began: float = field(default_factory=monotonic)
    saved: float = field(default_factory=monotonic)
    shown_next: float = math.inf
    status: str = "running"
    started: str = field(default_factory=lambda: _now())

    @property
    def layout(self) -> str:
        return store.layout(self.network.learner.training)

    @property
    def seconds(self) -> float:
        return self.earlier + monotonic() - self.began


def run(
    config: Config,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    download: bool = False,
    question: Question | None = None,
    live: int | None = None,
) -> Summary:
    """Train what `config` describes and write everything into the folder `out`.

    `resume` goes on from the folder's checkpoint, and from the beginning where there is none: the final parameters are
    those of a run that was never stopped. `overwrite` replaces the run that is there. `question` is asked of the rounds
    as they come; its answers go into the folder `influence`. `live` is the port on which the run's page is served
    while it trains, to this machine only, 0 for any that is free; its address is printed.
    """
    from rich.console import Console

    console, folder = Console(quiet=quiet), Path(out)
    store.recording(config.record)
    _check_rule(config, resume, question)
    check_folder(folder, config, resume, overwrite)
    network = build(config, download=download, quiet=quiet)
    assert network.partition is not None
    rounds = length(config, network.partition)
    if question is not None:
        _check_askable(question, network, rounds, resume)
    journal = _resumed(folder, config, network, rounds) if resume else _Journal(folder, config, network)
    with _watched(journal, rounds, live):
        if overwrite:
            clear(folder)
        files.write_json(folder / CONFIG, to_json(config))
        if not quiet:
            opening(console, network, rounds, config.mixing or config.topology)
        with _kept(journal):
            _train(journal, rounds, console, question)
        closing(console, journal.measures[-1])
        _point_to_files(console, journal)
        if question is not None:
            conclude(console, network, folder, folder / INFLUENCE)
    return Summary(folder, rounds, journal.seconds, network.strategy, journal.measures[-1])


@contextlib.contextmanager
def _watched(journal: _Journal, rounds: int, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    from cascadice.report.live import serving

    with serving(journal.folder, rounds, port):
        journal.shown_next = 0.0
        yield


def _train(journal: _Journal, rounds: int, console: "Console", question: Question | None) -> None:
    if question is None:
        deque(_trained(journal, rounds, console), maxlen=0)
        return
    note = note_of(question, journal.config)
    with contextlib.closing(_trained(journal, rounds, console, question.hops, question.samples)) as trained:
        for found in answers(journal.network, trained, question):
            keep(journal.folder / INFLUENCE, found, note)


def _trained(
    journal: _Journal, rounds: int, console: "Console", window: int = 0, taped: bool = False
) -> Generator[Round, None, None]:
    """The rounds, each written into the journal before it is passed on."""
    network, recording = journal.network, store.recording(journal.config.record)
    start, now, rule = journal.t, journal.participants, _rule(journal.config, network)
    with progress(console, rounds, start) as advance:
        for done in simulate(network, rounds, start=start, participants=now, window=window, taped=taped, rule=rule):
            judged = (done.t + 1) % journal.config.eval_every == 0 or done.t + 1 == rounds
            measures = _measure(done, evaluate(network, done.after) if judged else None)
            if done.t in recording.rounds:
                store.record(journal.folder, done, layout=journal.layout)
            if recording.most is not None:
                store.forget(journal.folder, [done.t - recording.most])
            journal.measures.append(measures)
            journal.t, journal.participants = done.t + 1, done.after
            if _due(journal):
                _save(journal)
            if monotonic() >= journal.shown_next:
                _show(journal)
            advance(measures)
            yield done


def _measure(done: Round, evaluation: Metrics | None) -> RoundMetrics:
    # the round's memory is used again by the next but one
    return RoundMetrics(done.t, done.loss.to(torch.float64, copy=True), consensus(done.after.theta), evaluation)


def _land(journal: _Journal) -> None:
    """Bring the measures to the CPU, all at once: doing so as they come would stall a GPU every round."""
    journal.measures = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, journal.measures)


def _due(journal: _Journal) -> bool:
    if journal.config.checkpoint_every is not None:
        return journal.t % journal.config.checkpoint_every == 0
    return monotonic() - journal.saved > CHECKPOINT_SECONDS


def _save(journal: _Journal) -> None:
    """Metrics, then the checkpoint: whatever moment the process dies, the checkpoint's past is all there."""
    _land(journal)
    fresh = [m.train_loss for m in journal.measures if m.t >= journal.safe]
    # on CUDA the engine looks for divergence only now and then; nobody wants to go on from NaN
    if fresh and journal.participants is not None and bool(torch.stack(fresh).isfinite().all()):
        store.write_metrics(journal.folder, journal.measures)
        store.save_checkpoint(
            journal.folder, journal.t, journal.participants, run=fingerprint(journal.config), layout=journal.layout
        )
        journal.safe = journal.t
        _write_manifest(journal)
    journal.saved = monotonic()


def _show(journal: _Journal) -> None:
    """What a live page shows, without the checkpoint: a run that goes on drops what was measured after that."""
    from cascadice.report.live import pause

    start = monotonic()
    _land(journal)
    store.write_metrics(journal.folder, journal.measures)
    _write_manifest(journal)
    journal.shown_next = monotonic() + pause(monotonic() - start)


@contextlib.contextmanager
def _kept(journal: _Journal) -> Iterator[None]:
    """However the training inside ends, what was done is kept and the manifest tells how it ended."""
    _write_manifest(journal)
    try:
        yield
    except DivergedError as error:
        _end(journal, "diverged", error.t)
        raise
    except KeyboardInterrupt:
        _save(journal)
        _end(journal, "interrupted", journal.t)
        raise
    except BaseException:
        _end(journal, "failed", journal.t)
        raise
    _save(journal)
    _end(journal, "finished", journal.t)


def _end(journal: _Journal, status: str, t: int) -> None:
    """Keep the rounds before t."""
    _land(journal)
    journal.status, journal.t = status, t
    journal.measures = [m for m in journal.measures if m.t < t]
    store.forget(journal.folder, [kept for kept in store.recorded(journal.folder) if kept >= t])
    store.write_metrics(journal.folder, journal.measures)
    _write_manifest(journal)
    _draw(journal)


def _draw(journal: _Journal) -> None:
    from cascadice.data import partition
    from cascadice.pictures.partition import draw as draw_holdings
    from cascadice.pictures.training import draw

    parts, data = journal.network.partition, journal.network.data
    if parts is not None and data.classes and data.train.y.dim() == 1:
        counts = partition.counts(parts, data.train.y, len(data.classes))
        draw_holdings(counts, journal.folder / HOLDINGS, data.classes)
    if journal.measures:
        c = journal.config
        title = f"{journal.network.nodes} participants, {c.mixing or c.topology}: {c.model} on {c.data}"
        draw(journal.measures, journal.folder / FIGURE, title=title)


def _write_manifest(journal: _Journal) -> None:
    files.write_json(journal.folder / MANIFEST, _manifest(journal))


def _manifest(journal: _Journal) -> dict[str, Any]:
    import numpy

    import cascadice

    network = journal.network
    cuda = network.device.type == "cuda"
    versions = {"cascadice": cascadice.__version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        "status": journal.status,
        "rounds": journal.t,
        "seconds": round(journal.seconds, 3),
        "started": journal.started,
        "finished": None if journal.status == "running" else _now(),
        "strategy": network.strategy,
        "nodes": network.nodes,
        "parameters": network.learner.size,
        "seed": journal.config.seed,
        "device": torch.cuda.get_device_name(network.device) if cuda else platform.processor() or platform.machine(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "versions": {**versions, "python": platform.python_version()},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _point_to_files(console: "Console", journal: _Journal) -> None:
    names = ", ".join((FIGURE, store.METRICS, CONFIG, store.CHECKPOINT))
    kept = f" and {len(kept)} rounds" if (kept := store.recorded(journal.folder)) else ""
    text = f"{journal.seconds:.1f} s; {names}{kept} in {journal.folder}"
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _rule(config: Config, network: Network) -> MixingRule | None:
    from cascadice.applications.choose.idea import build as rule

    return rule(config.rule, network) if config.rule else None


def _check_rule(config: Config, resume: bool, question: Question | None) -> None:
    from cascadice.applications.choose.idea import RULES

    if config.rule is None:
        return
    kind = lookup(RULES, config.rule, "rule")
    if resume and kind.remembers:
        raise ValueError(
            f"a run with the rule {config.rule!r} cannot go on: what it knows of others is not in the checkpoint. "
            "Start it again with --overwrite."
        )
    if not kind.averages and (config.record != "none" or question is not None):
        raise ValueError(
            f"rounds must be averages to be recorded or asked about; the rule {config.rule!r} makes none. Leave out "
            "--record and questions, or use another rule."
        )


def _check_askable(question: Question, network: Network, rounds: int, resume: bool) -> None:
    if resume:
        raise ValueError(
            "a run that goes on cannot be asked about rounds that are gone. Train with --record all, then use "
            "cascadice influence."
        )
    if question.hops > rounds:
        raise ValueError(f"{question.hops} hops need as many rounds; the run has {rounds}. Ask for fewer hops.")
    check_fits(question, network)


def _resumed(folder: Path, config: Config, network: Network, rounds: int) -> _Journal:
    """The journal as of the last checkpoint; what was written after it is dropped and will be made again."""
    journal = _Journal(folder, config, network)
    if (folder / store.CHECKPOINT).exists():
        found = store.load_checkpoint(folder, run=fingerprint(config), layout=journal.layout)
        if found.t > rounds:
            raise ValueError(f"{folder} has {found.t} rounds already; {rounds} were asked for. Ask for more.")
        journal.t = journal.safe = found.t
        journal.participants = tree_map(lambda tensor: tensor.to(network.device), found.participants)
        journal.measures = _earlier(folder, found.t, rounds)
        manifest = files.read_json(folder / MANIFEST)
        journal.earlier, journal.started = manifest["seconds"], manifest["started"]
    store.forget(folder, [t for t in store.recorded(folder) if t >= journal.t])
    files.sweep(folder)
    return journal


def _earlier(folder: Path, t: int, rounds: int) -> list[RoundMetrics]:
    """The measures of the rounds before t; they are not needed to go on, but there must be some in the end."""
    if (folder / store.METRICS).exists():
        return [m for m in store.read_metrics(folder) if m.t < t]
    if t == rounds:
        raise ValueError(f"{folder} is finished, and its metrics are gone. Ask for more rounds, or use --overwrite.")
    return []
