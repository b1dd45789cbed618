"""A run in progress: its state in memory, and when it is written to disk."""

import contextlib
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice import __version__, files, interrupts
from cascadice.data.batches import PADDING
from cascadice.data.inputs import are_tokens
from cascadice.engine import DivergedError, Metrics, Network, Participants, Round, consensus, evaluate
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.simulation import from_outlier
from cascadice.files import locks
from cascadice.runs import store
from cascadice.runs.config import Config, to_json
from cascadice.runs.distributed.departures import Departures, write_departures
from cascadice.runs.distributed.processes import ONE_PROCESS, World
from cascadice.runs.folder import CONFIG, DATA, FIGURE, FORMAT, HOLDINGS, MANIFEST, RUN_ID, TARGETS, TOKENS
from cascadice.runs.round_metrics import RoundMetrics

CHECKPOINT_SECONDS = 60.0
UPDATE_SECONDS = 2.0  # between updates of a live view
UPDATE_SHARE = 0.1  # of the time at most goes into updates of a live view, which share the interpreter with training


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Journal:
    """A run in progress: its metrics and latest round, and the folder they are written to."""

    folder: Path
    config: Config
    network: Network
    fingerprint: str
    data: str
    every: int | None = None
    world: World = ONE_PROCESS
    exchange: Messages | None = None
    t: int = 0
    checkpointed: int = 0
    participants: Participants | None = None
    metrics: list[RoundMetrics] = field(default_factory=list)
    earlier_seconds: float = 0.0
    began: float = field(default_factory=monotonic)
    ended: float | None = None
    saved: float = field(default_factory=monotonic)
    next_update: float = math.inf
    status: str = "running"
    started: str = field(default_factory=_now)
    counted: tuple[int, int] = (0, 0)
    timed: bool = True
    departures: Departures = field(default_factory=Departures)
    earlier_versions: list[dict[str, str]] = field(default_factory=list)
    run_id: str | None = None
    warning: str = ""

    @cached_property
    def identity(self) -> dict[str, str]:
        """The fingerprint of the run and the layout of the model, which its files contain."""
        return {"run": self.fingerprint, "layout": store.layout(self.network.learner.training)}

    @property
    def seconds(self) -> float:
        """The wall-clock time of training, including evaluation and recording but not plotting."""
        return self.earlier_seconds + (monotonic() if self.ended is None else self.ended) - self.began


def enter(journal: Journal, round: Round, last: bool) -> None:
    """Measure a round, record it if requested, and save a checkpoint or update the live view if they are due."""
    to_keep = store.rounds_to_keep(journal.config.record)
    evaluated = (round.t + 1) % journal.config.eval_every == 0 or last
    test = evaluate(journal.network, round.after) if evaluated and len(journal.network.data.test) else None
    distance, every = consensus(round.after.theta), journal.every
    due = (round.t + 1) % every == 0 if every else monotonic() - journal.saved > CHECKPOINT_SECONDS
    if evaluated or due:
        check_finite(journal.network, round, test, distance)
    # copied, because the engine reuses the round's memory in the next round but one
    loss = round.loss.to(torch.float64, copy=True)
    if journal.network.uneven:  # who sat the round out has none
        loss[(round.draw.batch == PADDING).flatten(1).all(1).to(loss.device)] = torch.nan
    if round.t in to_keep.rounds:
        locks.check_held(journal.folder)
        store.save_round(journal.folder, round, **journal.identity)
    if to_keep.most is not None:
        store.delete_rounds(journal.folder, [round.t - to_keep.most])
    traffic = None if journal.exchange is None else _note_messages(journal, round, journal.exchange)
    journal.metrics.append(RoundMetrics(round.t, loss, distance, test, traffic))
    journal.t, journal.participants = round.t + 1, round.after
    start = monotonic()
    if due:
        save(journal)
    if start >= journal.next_update:  # without a checkpoint: a resumed run drops metrics from after its checkpoint
        _write_metrics(journal)
        _write_manifest(journal)
        journal.next_update = monotonic() + pause_after(monotonic() - start)


def _note_messages(journal: Journal, round: Round, exchange: Messages) -> tuple[int, int]:
    """Note skipped rounds and missing messages; return the bytes sent and received since the last call."""
    journal.departures.away += range(journal.t, round.t)
    if exchange.incomplete:
        own = list(journal.network.members)
        planned = journal.network.mixing(round.t).to_dense()[own]
        journal.departures.note(round.t, own, round.W.to_dense()[own], planned)
    sent, received = journal.counted
    journal.counted = (sum(exchange.post.sent.values()), sum(exchange.post.received.values()))
    return journal.counted[0] - sent, journal.counted[1] - received


def check_finite(network: Network, round: Round, test: Metrics | None, distance: Tensor) -> None:
    """Raise DivergedError where batch losses are finite, but not parameters or what is computed from them."""
    after, size = round.after, round.after.theta.abs().amax(1)
    if not bool(size.isfinite().all()):
        node = int((~size.isfinite()).nonzero()[0])
        raise _blamed(network, round) or DivergedError(round.t, node, sent="has parameters that")
    wrong = distance.isinf() & (size == size.max())
    for tensor in after.state.values():
        wrong = wrong | tensor.reshape(len(tensor), -1).isinf().any(1)
    if test is not None and not bool(test.loss.isfinite().all()):
        measurable = evaluate(network, network.initial).loss.isfinite()  # else training is not to blame
        wrong = wrong | (measurable & ~test.loss.isfinite())
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        large = f"has parameters of up to {float(size[node]):.3g}, and what is computed from them"
        raise _blamed(network, round) or DivergedError(round.t, node, sent=large)


def _blamed(network: Network, round: Round) -> DivergedError | None:
    """The error to raise if somebody sent far larger parameters than the others, who then have them too."""
    size = round.half.theta.abs().amax(1).nan_to_num(torch.inf, torch.inf)
    sent = "sent parameters of up to {} (the median was {}), and what is computed from them"
    return from_outlier(network, round.t, size, sent)


def versions() -> dict[str, str]:
    """The versions of the software that computes here."""
    libraries = {"cascadice": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {**libraries, "python": platform.python_version()}


def _metrics_to_cpu(journal: Journal) -> None:
    """Move all metrics to the CPU at once: moving each as it comes would stall a GPU every round."""
    journal.metrics = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, journal.metrics)


def _write_metrics(journal: Journal) -> None:
    locks.check_held(journal.folder)
    _metrics_to_cpu(journal)
    store.write_metrics(journal.folder, journal.metrics, journal.network.members)


def save(journal: Journal) -> None:
    """Save metrics, then the checkpoint: if process or power dies, everything before a checkpoint is complete."""
    locks.check_held(journal.folder)
    _metrics_to_cpu(journal)
    fresh = [m.train_loss for m in journal.metrics if m.t >= journal.checkpointed]
    # on CUDA the engine looks for divergence only now and then, and Ctrl-C may come before a look at the parameters
    _keep_earlier(journal)
    sound = journal.network.uneven or bool(fresh and torch.stack(fresh).isfinite().all())  # a recorder has looked
    if fresh and sound and journal.participants is not None and bool(journal.participants.theta.isfinite().all()):
        store.flush_rounds(journal.folder, range(journal.checkpointed, journal.t))
        _write_metrics(journal)
        write_departures(journal.folder, journal.departures)
        store.save_checkpoint(journal.folder, journal.t, journal.participants, **journal.identity)
        journal.checkpointed = journal.t
        _write_manifest(journal)
    journal.saved = monotonic()


def _keep_earlier(journal: Journal) -> None:
    """Keep the checkpoint about to be replaced, once all processes have it: some may die before they write the next."""
    if journal.world.alone or journal.world.carries_on or journal.t == journal.checkpointed:
        return
    journal.world.tell(journal.checkpointed)
    if (journal.folder / store.CHECKPOINT).exists():
        t, participants = store.load_checkpoint(journal.folder, **journal.identity)
        store.save_checkpoint(journal.folder, t, participants, **journal.identity, name=store.EARLIER)


def pause_after(seconds: float) -> float:
    """How long to wait after an update of a live view that took `seconds`."""
    return max(UPDATE_SECONDS, seconds / UPDATE_SHARE)


def begin(journal: Journal) -> None:
    """Write the manifest, then the settings: from the first file on, the folder is known to hold a run."""
    # the list comes first; files of a version that kept none are added to it
    files.keep_checksums(journal.folder, (path for path in journal.folder.rglob("*") if path.is_file()))
    _write_manifest(journal)
    files.write_json(journal.folder / CONFIG, to_json(journal.config))
    journal.world.begin()


@contextlib.contextmanager
def ending(journal: Journal) -> Iterator[None]:
    """However the training in this block ends, save what was done and write to the manifest how it ended."""
    status = "failed"
    try:
        with interrupts.recognised():
            yield
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except DivergedError as error:
        status, journal.t = "diverged", error.t
        raise
    finally:
        if status == "finished" or (status == "interrupted" and journal.world.alone):
            save(journal)  # interrupted, processes are in different rounds
        end(journal, status)


def end(journal: Journal, status: str) -> None:
    """Keep the rounds before `journal.t` and plot them."""
    locks.check_held(journal.folder)
    journal.status, journal.ended = status, monotonic()
    journal.metrics = [m for m in journal.metrics if m.t < journal.t]
    delete_later_rounds(journal)
    store.flush_rounds(journal.folder, range(journal.checkpointed, journal.t))
    write_departures(journal.folder, journal.departures)
    if status != "finished" or journal.checkpointed != journal.t:  # else they were written with the checkpoint
        _write_metrics(journal)
    _write_manifest(journal)
    if status == "finished" or journal.world.alone:  # after a failure, torchrun and the others wait for this to end
        plot(journal)


def delete_later_rounds(journal: Journal) -> None:
    """Delete recorded rounds that a resumed run will record again, and those after a divergence."""
    there = (*store.saved_rounds(journal.folder), *store.missing_rounds(journal.folder))
    store.delete_rounds(journal.folder, [t for t in there if t >= journal.t])


def plot(journal: Journal) -> None:
    """Plot how the data are divided, and how training went."""
    from cascadice.data import partition
    from cascadice.pictures.partition import plot as plot_partition
    from cascadice.pictures.training import plot as plot_training

    parts, data, metrics, c = journal.network.partition, journal.network.data, journal.metrics, journal.config
    if parts is not None and data.classes and data.train.y.dim() == 1:
        counts = partition.counts([data.train.rows(part) for part in parts], data.train.y, len(data.classes))
        plot_partition(counts, journal.folder / HOLDINGS, data.classes)
    if metrics:
        tests = {m.t: m.test for m in metrics if m.test is not None}
        among = "" if c.saved else f", {c.mixing or c.topology}"
        plot_training(
            journal.folder / FIGURE,
            train_loss={m.t: m.train_loss for m in metrics},
            test_loss={t: test.loss for t, test in tests.items()},
            accuracy={t: test.accuracy for t, test in tests.items()},
            consensus={m.t: float(m.consensus) for m in metrics},
            title=f"{journal.network.nodes} participants{among}: {c.model} on {c.data}",
        )


def _write_manifest(journal: Journal) -> None:
    network, world = journal.network, journal.world
    cuda, process = network.device.type == "cuda", {"rank": world.rank, "of": world.size, "members": network.members}
    manifest = {
        "format": FORMAT,
        "fingerprint": journal.fingerprint,
        "status": journal.status,
        "rounds": journal.t,
        **({"seconds": round(journal.seconds, 3)} if journal.timed else {}),
        "started": journal.started,
        "finished": None if journal.status == "running" else _now(),
        "strategy": network.strategy,
        "nodes": network.whole,
        "parameters": network.learner.size,
        DATA: journal.data,
        **({TARGETS: TOKENS} if are_tokens(network.data.test.y) else {}),
        "seed": journal.config.seed,
        "device": torch.cuda.get_device_name(network.device) if cuda else platform.processor() or platform.machine(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **({"earlier_versions": journal.earlier_versions} if journal.earlier_versions else {}),
        **({} if world.alone else {"process": process}),
        **({RUN_ID: journal.run_id} if journal.run_id else {}),
    }
    files.write_json(journal.folder / MANIFEST, manifest)
