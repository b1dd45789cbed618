"""One of the processes: trains its participants, suffers what was planned, and writes down what it really did."""

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cascadice import data, models, network, topology
from cascadice.engine.distributed_training import carry_on
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.exchange.pairs import Pairs
from cascadice.engine.networks import Network
from cascadice.engine.parts import part_of, split
from chaos.faults import MESSAGE_FAULTS, OF_SEVERAL, Faulty

NODES, RANKS = 6, 4
PARTS = split(NODES, RANKS)
PATIENCE, PACE = 1.0, 0.02  # seconds: to wait for others, and that a round takes at least
AWAY_PACE = 0.05  # seconds that a round takes while somebody is away, or few of its rounds would be left on return
SLOW = 1.5  # seconds by which somebody is slow
HELD_UP = 0.25  # seconds that a round takes beside waiting, and are the fault of a machine busy with other work
DISK_FULL, NOBODY = 3, 4  # exit codes

PROCESS_FAULTS = ("killed at rest", "killed while sending", "killed before writing", "stopped", "slow", "disk full")
ALL = "all"
FAULTS = (*MESSAGE_FAULTS, *OF_SEVERAL, *PROCESS_FAULTS)


class Job(NamedTuple):
    """What a process is told.

    Attributes:
        plan: What happens to it, by round.
        port: Of the store.
        host, interface: Where the store is, and the interface to listen on.
        pace: Seconds that a round takes at least.
        graph: Who hears whom: a topology, or everybody everybody.
    """

    rank: int
    rounds: int
    plan: Mapping[int, str]
    folder: Path
    port: int
    host: str = "127.0.0.1"
    interface: str = "lo"
    pace: float = PACE
    graph: str = ALL


@cache
def whole(graph: str = ALL) -> Network:
    """The network of everybody; momentum is lost where a process dies. No two weights are the same."""
    W = torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    if graph != ALL:
        W = W * (topology.build(graph, NODES)(0).to_dense() != 0)
    return network(
        lambda: models.mlp((64,), 10, hidden=(4,), activation="gelu"), data.digits(), nodes=NODES, batch_size=4,
        lr=0.03, optimizer="momentum", dtype="float64", mixing=W / W.sum(1, keepdim=True),
    )  # fmt: skip


class Log:
    """Lines of JSON; each is complete, or the process died."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, b"\n")  # a line that was cut off ends here

    def write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps({"at": monotonic()} | line) + "\n").encode())

    def fill(self) -> None:
        """From now on there is no room."""
        self._file = os.open("/dev/full", os.O_WRONLY)


def work(job: Job, joining: bool) -> int:
    """Train until the last round; the exit code."""
    log, mine = Log(job.folder / f"{job.rank}.jsonl"), part_of(whole(job.graph), PARTS[job.rank])
    noted: list[int] = []

    def note(t: int, fault: str) -> None:
        if t not in noted:
            log.write(fault=fault, t=t)
        noted.append(t)
        if fault == "killed while sending" and noted.count(t) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    pairs = Pairs(dist.TCPStore(job.host, job.port, is_master=False), job.rank, job.interface)
    exchange = Messages(mine, PARTS, job.rank, Faulty(pairs, job.plan, note), "carry-on", PATIENCE)
    try:
        return _train(job, mine, exchange, log, note, joining)
    except OSError as error:
        print(f"process {job.rank} stops: {error.strerror}", file=sys.stderr)
        return DISK_FULL
    finally:
        exchange.post.close(timeout=0.5)


def _train(job: Job, mine: Network, exchange: Messages, log: Log, note: Any, joining: bool) -> int:
    start, here = 0, mine.initial
    if not joining:
        exchange.post.meet(60.0)
    else:
        if (heard := exchange.listen(here, timeout=10.0)) is None:
            return NOBODY
        log.write(t=heard.t, joined=True, rows=_own(heard.W, mine), theta=heard.participants.theta.tolist())
        start, here = heard.start, heard.participants
    waited, began = _waiting(exchange), monotonic()
    for round_ in carry_on(mine, job.rounds, exchange, start=start, participants=here):
        if (held := monotonic() - began - sum(waited)) > HELD_UP:
            log.write(t=round_.t, held=held)
        fault = job.plan.get(round_.t, "")
        if fault in ("killed before writing", "disk full"):
            note(round_.t, fault)
            _suffer(fault, log)
        log.write(t=round_.t, rows=_own(round_.W, mine), theta=round_.after.theta.tolist())
        if fault in ("killed at rest", "stopped", "slow"):
            note(round_.t, fault)
            _suffer(fault, log)
        away = exchange.attendance.late or any(
            map(exchange.post.gone, (rank for rank in range(RANKS) if rank != job.rank))
        )
        pause = max(job.pace, AWAY_PACE) if away else job.pace
        began = monotonic() + pause
        waited.clear()
        sleep(pause)
    return 0


def _waiting(exchange: Messages) -> list[float]:
    """The seconds for which this process will have waited for messages, each time."""
    receive, waited = exchange.post.receive, list[float]()

    def watched(*args: Any) -> Any:
        start = monotonic()
        try:
            return receive(*args)
        finally:
            waited.append(monotonic() - start)

    exchange.post.receive = watched  # type: ignore[method-assign]
    return waited


def _suffer(fault: str, log: Log) -> None:
    if fault == "disk full":
        log.fill()
    elif fault == "slow":
        sleep(SLOW)
    else:
        os.kill(os.getpid(), signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)


def _own(W: Tensor, mine: Network) -> list[list[float]]:
    rows: list[list[float]] = W.to_dense()[list(mine.members)].tolist()
    return rows


def lines(path: Path) -> Iterable[dict[str, Any]]:
    """What a process wrote down; a line that is cut off was not written."""
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def tensor(values: Any) -> Tensor:
    """Numbers of a log."""
    return torch.tensor(values, dtype=torch.float64)
