"""The processes that `torchrun` started: who this one is, what all of them agree on, and how they are connected.

Processes find one another through torchrun's store. Small facts (settings, numbers of rounds) are told through it as
JSON; parameters and adjoints go from process to process, by gloo. Nothing is unpickled.
"""

import json
import os
import platform
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import cascadice
from cascadice import jsonl
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.networks import Network
from cascadice.engine.parts import split
from cascadice.files import Folder
from cascadice.names import visible

dist: Any = torch.distributed  # its types leave out what is needed here

TIMEOUT = 60.0  # seconds to wait for other processes
LOOPBACK = "lo"
STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells those it starts
LARGEST = 2**24  # bytes of a fact that is told
HURRY = 0.5  # seconds to say goodbye after an error
PAUSE = 0.01  # seconds between looks at the store


@dataclass(frozen=True)
class World:
    """All processes of a run, as one of them sees them.

    Attributes:
        rank: The number of this process.
        size: How many there are.
        group: Sends and receives tensors.
        store: Holds what processes tell one another.
        timeout: Seconds to wait for the others.
    """

    rank: int
    size: int
    group: Any
    store: Any
    timeout: float = TIMEOUT
    _told: Iterator[int] = field(default_factory=count)

    def folder(self, run: Folder) -> Path:
        """The folder of this process in that of a run."""
        return Path(run) / folder_name(self.rank)

    def members(self, nodes: int) -> tuple[int, ...]:
        """The participants of this process."""
        return split(nodes, self.size)[self.rank]

    @contextmanager
    def exchange(self, network: Network) -> Iterator[Messages]:
        """The exchange between the parts of a network, of which this process has one; it ends with a goodbye."""
        messages = Messages(network, split(network.whole, self.size), self.rank, self.group, patience=self.timeout)
        try:
            yield messages
        except BaseException:
            messages.post.close(HURRY)
            raise
        messages.post.close()

    def tell(self, value: Any) -> list[Any]:
        """Tell the others something that JSON can say, and hear the same of all, in the order of ranks.

        Every process must call it equally often.

        Raises:
            ConnectionError: Where a process says nothing in time, or has failed.
        """
        number = next(self._told)
        self.store.set(f"told/{number}/{self.rank}", json.dumps(value).encode())
        return [self._hear(number, rank) for rank in range(self.size)]

    def _hear(self, number: int, rank: int) -> Any:
        key, end = f"told/{number}/{rank}", time.monotonic() + self.timeout
        try:
            while not self.store.check([key]):
                if self.store.check([f"failed/{rank}"]):
                    why = self.store.get(f"failed/{rank}").decode(errors="replace")
                    raise ConnectionError(f"process {rank} failed: {visible(why)}")
                if time.monotonic() > end:
                    raise ConnectionError(f"process {rank} said nothing for {self.timeout:g} s. Is it still running?")
                time.sleep(PAUSE)
            data = self.store.get(key)
        except (dist.DistError, RuntimeError) as error:
            raise ConnectionError(f"the store of the processes is gone: {_first_line(error)}") from None
        if len(data) > LARGEST:
            raise ConnectionError(f"process {rank} told {len(data)} bytes; at most {LARGEST} were expected.")
        return jsonl.parse(data)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Check that all processes have the same facts.

        Raises:
            ValueError: Where one differs; it says which, and in which process.
        """
        first, *others = self.tell(dict(facts))
        for rank, theirs in enumerate(others, start=1):
            for name in (*first, *theirs):
                if first.get(name) != theirs.get(name):
                    raise ValueError(
                        f"all processes must agree; {name} is {theirs.get(name)!r} in process {rank}, "
                        f"{first.get(name)!r} in process 0. Start them all alike."
                    )

    def fail(self, why: str) -> None:
        """Tell those that wait for this process that they wait in vain."""
        with suppress(RuntimeError):
            self.store.set(f"failed/{self.rank}", why.encode()[:1000])

    def leave(self) -> None:
        """Wait for the others, if this process keeps the store; else just say that it leaves."""
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", b"")
            end = time.monotonic() + min(self.timeout, 10.0)
            while self.rank == 0 and time.monotonic() < end:
                if self.store.check([f"left/{rank}" for rank in range(self.size)]):
                    return
                time.sleep(PAUSE)


def folder_name(rank: int) -> str:
    """The name of the folder of one process, e.g. rank-003."""
    return f"rank-{rank:03d}"


def started() -> bool:
    """Whether torchrun, or something that says the same things, started this process and others."""
    return all(name in os.environ for name in STARTED) and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def joined(interface: str | None = None, timeout: float | None = None) -> Iterator[World | None]:
    """Be one of the processes that torchrun started, inside this block; None if it did not start this one.

    Args:
        interface: The network interface to talk over (None: $GLOO_SOCKET_IFNAME, or the loopback interface).
        timeout: Seconds to wait for other processes (None: 60).

    Raises:
        ValueError: If processes have different versions, or torchrun's variables make no sense.
        ConnectionError: If the others cannot be reached in time.

    Example:
        >>> with joined() as world:
        ...     print("one process" if world is None else f"process {world.rank} of {world.size}")
        one process
    """
    if not started():
        if interface is not None or timeout is not None:
            raise ValueError("--interface and --timeout are for processes that torchrun started. Leave them out.")
        yield None
        return
    world = _joined(interface, TIMEOUT if timeout is None else timeout)
    shown = warnings.formatwarning
    warnings.formatwarning = lambda *what, **more: f"process {world.rank}: {shown(*what, **more)}"
    try:
        versions = {"cascadice": cascadice.__version__, "torch": torch.__version__, "Python": platform.python_version()}
        world.agree({f"the version of {name}": version for name, version in versions.items()})
        yield world
    except BaseException as error:
        world.fail(str(error) or type(error).__name__)
        raise
    finally:
        warnings.formatwarning = shown
        world.leave()


def _joined(interface: str | None, timeout: float) -> World:
    try:
        rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        found = ", ".join(f"{name}={os.environ[name]!r}" for name in STARTED)
        raise ValueError(f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers; found {found}.") from None
    if not 0 <= rank < size or timeout <= 0:
        raise ValueError(f"RANK must be below WORLD_SIZE, and --timeout above 0; found {rank}, {size}, {timeout:g}.")
    store = _store(os.environ["MASTER_ADDR"], port, rank, size, timeout)
    # a restarted process must not find the addresses of those that died
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"cascadice/{attempt}", store)
    name = interface or os.environ.get("GLOO_SOCKET_IFNAME") or LOOPBACK
    return World(rank, size, _group(store, rank, size, name, timeout), store, timeout)


def _store(host: str, port: int, rank: int, size: int, timeout: float) -> Any:
    """The store at this address; process 0 keeps it, unless torchrun's agent does."""
    wait = timedelta(seconds=timeout)
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return dist.TCPStore(
            host, port, size, True, wait, wait_for_workers=False, master_listen_fd=_listening(host, port)
        )
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), max(0.1, end - time.monotonic())).close()
            return dist.TCPStore(host, port, size, False, wait, wait_for_workers=False)
        except (OSError, dist.DistError) as error:
            if time.monotonic() >= end:
                raise ConnectionError(
                    f"process {rank} could not reach the others at {host}:{port} within {timeout:g} s: "
                    f"{_first_line(error)}. Is process 0 running, and MASTER_ADDR its address?"
                ) from None
            time.sleep(10 * PAUSE)


def _listening(host: str, port: int) -> int:
    """A socket that listens at this address alone; the store closes it."""
    try:
        return socket.create_server((host, port), backlog=128).detach()
    except OSError as error:
        raise ConnectionError(
            f"process 0 cannot listen at {host}:{port}: {error.strerror or error}. Choose another port with "
            "MASTER_PORT (torchrun --master-port), or another address with MASTER_ADDR."
        ) from None


def _group(store: Any, rank: int, size: int, interface: str, timeout: float) -> Any:
    try:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
        options._timeout = timedelta(seconds=timeout)
        return dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise ConnectionError(
            f"process {rank} could not connect with the others over the interface {interface!r}: {_first_line(error)}. "
            "Processes on several machines need --interface, e.g. eth0."
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
