"""`torchrun … -m cascadice run --policy carry-on`, a torchrun for each process: some are killed, and come back."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep, time
from typing import NamedTuple

from cascadice.runs import store
from cascadice.runs.config import Config
from cascadice.runs.distributed.processes import folder_name
from chaos.unhurried import PACE
from chaos.verify import AFTER
from chaos.worker import NODES, RANKS

SETTINGS = {
    "nodes": NODES, "topology": "complete", "per_node": 40, "batch_size": 8, "dtype": "float64", "lr": 0.05,
    "optimizer": "momentum", "model": "chaos.unhurried:make", "record": "all", "checkpoint_every": 10,
    "eval_every": 50, "strategy": "vmap", "participants": ("4:batch-size=6",),
}  # fmt: skip
FIRST, BETWEEN = 15, 10  # rounds before the first process is killed, and after one has come back
A_RETURN = 90  # rounds that the others may train until a process is back
QUICK, SLOW = 0.02, 0.8  # seconds of a round, and while somebody is away
LONGEST_RETURN = 150.0  # seconds, on a machine that is busy with other work


class Kill(NamedTuple):
    """A process that was killed: which, when by the clock, and where the rounds lie that only it had."""

    rank: int
    at: float
    rounds: Path


def config(kills: int) -> Config:
    """What they train."""
    return Config(rounds=FIRST + kills * A_RETURN, epochs=None, **SETTINGS)  # type: ignore[arg-type]


def launch(kills: int, folder: Path, seed: int) -> list[Kill]:
    """Train in `folder / "run"`, and kill processes on the way, one after the other; those that were killed.

    Raises:
        ChildProcessError: Where a torchrun fails, or does not end in time.
    """
    chance, run, pace, killed = random.Random(seed + 2), folder / "run", folder / "pace", list[Kill]()
    pace.write_text(str(QUICK))
    agents = _start(config(kills), run, pace, folder)
    try:
        for number, rank in enumerate(chance.sample(range(RANKS), RANKS)[:kills]):
            _wait(lambda r=rank: len(store.saved_rounds(run / folder_name(r))) >= FIRST, agents)  # type: ignore[misc]
            sleep(chance.uniform(0.0, 0.3))
            killed.append(_kill(agents[rank].pid, rank, run, folder / f"lost-{number}"))
            start, survivor = _latest(run, rank), (rank + 1) % RANKS
            _wait(lambda r=survivor, s=start: _latest(run, r) > s + AFTER, agents)  # type: ignore[misc]
            pace.write_text(str(SLOW))
            _wait(lambda r=rank, s=start: _latest(run, r) > s, agents)  # type: ignore[misc]
            pace.write_text(str(QUICK))
            start = _latest(run, rank)
            _wait(lambda r=rank, s=start: _latest(run, r) >= s + BETWEEN, agents)  # type: ignore[misc]
        pace.write_text("0")
        _wait(lambda: all(agent.poll() is not None for agent in agents), agents)
    finally:
        for agent in agents:
            _stop(agent)
    return killed


def _start(settings: Config, run: Path, pace: Path, folder: Path) -> list["subprocess.Popen[bytes]"]:
    """A torchrun for each process: one of several would stop them all when one dies."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = {name: getattr(settings, name) for name in (*SETTINGS, "rounds")}
    flags = [
        f"--{name.replace('_', '-')}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in said.items()
    ]
    agents = []
    for rank in range(RANKS):
        how = f"--nnodes {RANKS} --nproc-per-node 1 --max-restarts 2 --master-addr 127.0.0.1 --master-port {port}"
        command = [sys.executable, "-m", "torch.distributed.run", *how.split(), "--node-rank", str(rank)]
        command += ["-m", "cascadice", "run", *flags, "--out", str(run), "--policy", "carry-on", "--quiet"]
        with (folder / f"{rank}.log").open("wb") as log:
            environment = os.environ | {PACE: str(pace), "OMP_NUM_THREADS": "1"}
            agents.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return agents


def _kill(agent: int, rank: int, run: Path, copy: Path) -> Kill:
    """Kill the process of an agent; keep the rounds that are in its folder, some of which will be deleted."""
    (child,) = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    at = time()
    os.kill(int(child), signal.SIGKILL)
    shutil.copytree(run / folder_name(rank) / "rounds", copy / "rounds")
    return Kill(rank, at, copy)


def _latest(run: Path, rank: int) -> int:
    return max(store.saved_rounds(run / folder_name(rank)), default=-1)


def _wait(done: Callable[[], bool], agents: Sequence["subprocess.Popen[bytes]"]) -> None:
    end = monotonic() + LONGEST_RETURN
    while not done():
        failed = [rank for rank, agent in enumerate(agents) if agent.poll()]
        if failed or monotonic() > end:
            why = f"torchrun {failed[0]} failed" if failed else f"nothing happened for {LONGEST_RETURN:g} s"
            raise ChildProcessError(f"processes that torchrun started were killed, and {why}")
        sleep(0.02)


def _stop(agent: "subprocess.Popen[bytes]") -> None:
    """End an agent, which then ends its process."""
    with suppress(ProcessLookupError):
        agent.terminate()
    try:
        agent.wait(20.0)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
