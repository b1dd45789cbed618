"""The processes that `torchrun` started: the rank of this one, what all of them agree on, and their connection.

Processes find one another through torchrun's store. Small facts (settings, numbers of rounds) are told through it as
JSON; parameters and adjoints go from process to process, by gloo. Nothing is unpickled.
"""

import json
import os
import platform
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import cascadice
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.exchange.pairs import Pairs
from cascadice.engine.networks import Network
from cascadice.engine.parts import split
from cascadice.files import Folder, jsonl
from cascadice.names import lookup, visible
from cascadice.runs.distributed.rendezvous import PAUSE, arrive, begun_key, connect, make_group, store_that_answers
from cascadice.runs.distributed.shared_facts import difference

dist: Any = torch.distributed  # its types leave out what is needed here

TIMEOUT = 60.0  # seconds to wait for other processes
LOOPBACK = "lo"
STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells those it starts
LARGEST = 2**24  # bytes of a fact that is told
HURRY = 0.5  # seconds to say goodbye after an error
CARRY_ON, RESTART = "carry-on", "restart"
POLICIES: Mapping[str, str] = {
    "stop": "all stop",
    CARRY_ON: "the others go on without it; it comes back when it is started again",
    RESTART: "all are started again by torchrun --max-restarts, and go on from the last checkpoint",
}
"""What happens when a process is missing."""


@dataclass(frozen=True)
class World:
    """All processes of a run, from the point of view of one."""

    rank: int  # the number of this process
    size: int
    group: Any  # sends and receives tensors; None if processes may come and go
    store: Any  # holds what processes tell one another
    timeout: float = TIMEOUT  # seconds to wait for the others
    policy: str = "stop"  # what happens when one is missing
    patience: float | None = None  # seconds to wait for the messages of a round; None: 2 with carry-on, else `timeout`
    interface: str = LOOPBACK  # the network interface to talk over
    again: bool = False  # any process (with carry-on, this one) was started before
    begun: bool = False  # and all processes (with carry-on, this one) had begun to write the run then
    lasting: Any = None  # the part of the store that survives a restart of the processes
    tells_samples: bool = False  # it tells the others the scores of its strongest samples
    _told: Iterator[int] = field(default_factory=count)

    @property
    def alone(self) -> bool:
        """Whether this is the only process: torchrun did not start it."""
        return self.store is None

    @property
    def carries_on(self) -> bool:
        """Whether processes continue without a missing one, and so must not wait for all."""
        return self.policy == CARRY_ON

    def folder(self, run: Folder) -> Path:
        """The folder of this process inside a run's folder."""
        return Path(run) if self.alone else Path(run) / folder_name(self.rank)

    def members(self, nodes: int) -> tuple[int, ...]:
        """The participants of this process; () if it has all of them."""
        return () if self.alone else split(nodes, self.size)[self.rank]

    @contextmanager
    def exchange(self, network: Network) -> Iterator[Any]:
        """The `Messages` between this process's part of the network and the others; None if it has all of it."""
        if self.alone:
            yield None
            return
        if self.carries_on:
            group, policy, patience = Pairs(self.store, self.rank, self.interface), CARRY_ON, self.patience
        else:
            group, policy, patience = self.group, "stop", self.patience or self.timeout
        messages = Messages(network, split(network.whole, self.size), self.rank, group, policy, patience)
        try:
            yield messages
        except BaseException:
            messages.post.close(HURRY)
            raise
        messages.post.close()

    def tell(self, value: Any) -> list[Any]:
        """Send a JSON value to all processes, which must call this equally often; return all values, by rank.

        Raises ConnectionError if a process does not answer in time, or has failed.
        """
        if self.alone:
            return [value]
        number = next(self._told)
        with store_that_answers():
            self.store.set(f"told/{number}/{self.rank}", json.dumps(value).encode())
            return [self._hear(number, rank) for rank in range(self.size)]

    def _hear(self, number: int, rank: int) -> Any:
        key, end = f"told/{number}/{rank}", time.monotonic() + self.timeout
        while True:
            failed = self.store.check([f"failed/{rank}"])  # asked first: it may tell, and then fail at once
            if self.store.check([key]):
                break
            if failed:
                why = self.store.get(f"failed/{rank}").decode(errors="replace")
                raise ConnectionError(f"process {rank} failed: {visible(why)}")
            if time.monotonic() > end:
                raise ConnectionError(f"process {rank} did not answer for {self.timeout:g} s. Is it still running?")
            time.sleep(PAUSE)
        data = self.store.get(key)
        if len(data) > LARGEST:
            raise ConnectionError(f"process {rank} sent {len(data)} bytes; at most {LARGEST} were expected.")
        return jsonl.parse(data)

    def common(self, numbers: Sequence[int]) -> list[int]:
        """The numbers that occur in every process."""
        told = self.tell(list(numbers))
        return sorted(set(told[0]).intersection(*told[1:]))

    def total(self, *values: float) -> tuple[float, ...]:
        """The sums of these values over all processes."""
        return tuple(map(sum, zip(*self.tell(list(values)), strict=True)))

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise ValueError unless all processes agree on these facts."""
        if found := difference(self.tell(dict(facts)), [f"process {rank}" for rank in range(self.size)]):
            raise ValueError(f"all processes must agree; {found}. Start them all alike.")

    def begin(self) -> None:
        """Note that this process has started to write the run: if it is started again, it resumes."""
        if self.lasting is not None:
            with store_that_answers():
                self.lasting.set(begun_key(self.rank), b"")

    def fail(self, why: str) -> None:
        """Tell the processes that wait for this one that it has failed."""
        with suppress(RuntimeError):
            self.store.set(f"failed/{self.rank}", why.encode()[:1000])

    def leave(self) -> None:
        """Leave: if this process hosts the store, wait for the others first."""
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", b"")
            end, everybody = time.monotonic() + min(self.timeout, 10.0), [f"left/{rank}" for rank in range(self.size)]
            while self.rank == 0 and time.monotonic() < end and not self.store.check(everybody):
                time.sleep(PAUSE)


ONE_PROCESS = World(0, 1, None, None)


def folder_name(rank: int) -> str:
    """The name of the folder of one process, e.g. rank-003."""
    return f"rank-{rank:03d}"


def started() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started this process and others."""
    return all(name in os.environ for name in STARTED) and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def joined(
    interface: str | None = None, timeout: float | None = None, policy: str | None = None,
    patience: float | None = None, tell_samples: bool = False,
) -> Iterator[World]:  # fmt: skip
    """Join the processes that torchrun started, inside this block; yields `ONE_PROCESS` if it did not start this one.

    The arguments are those of `World`; without an interface, $GLOO_SOCKET_IFNAME or the loopback interface is used.
    Raises ValueError if versions differ or torchrun's variables make no sense, ConnectionError if others are missing.
    """
    if not started():
        given = {"interface": interface, "timeout": timeout, "policy": policy, "patience": patience}
        if flags := [f"--{name}" for name in given if given[name] is not None] + ["--tell-samples"] * tell_samples:
            raise ValueError(f"{', '.join(flags)}: only for processes that torchrun started. Leave it out.")
        yield ONE_PROCESS
        return
    world = _joined(interface, TIMEOUT if timeout is None else timeout, policy or "stop", patience, tell_samples)
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


def _joined(
    interface: str | None, timeout: float, policy: str, patience: float | None, tells_samples: bool = False
) -> World:
    lookup(POLICIES, policy, "policy")
    name = interface or os.environ.get("GLOO_SOCKET_IFNAME") or LOOPBACK
    lookup(dict.fromkeys(known for _, known in socket.if_nameindex()), name, "network interface")
    try:
        rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        found = ", ".join(f"{name}={os.environ[name]!r}" for name in STARTED)
        raise ValueError(f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers; found {found}.") from None
    if not 0 < port < 2**16:
        raise ValueError(f"MASTER_PORT must be from 1 to {2**16 - 1}; found {port}.")
    if not 0 <= rank < size or timeout <= 0 or (patience is not None and patience <= 0):
        found = f"{rank}, {size}, {timeout:g}, {patience}"
        raise ValueError(f"RANK must be below WORLD_SIZE, --timeout and --patience above 0; found {found}.")
    store = connect(os.environ["MASTER_ADDR"], port, rank, size, timeout)
    lasting = dist.PrefixStore("cascadice/lasting", store)
    with store_that_answers():
        start, again, begun = arrive(lasting, rank, size, timeout, policy, policy == CARRY_ON)
    if again and policy == "stop":
        raise ValueError(
            "processes were started again, or two have the same RANK, and the policy is to stop. Use --policy restart "
            "to continue from the last checkpoint, or leave out --max-restarts."
        )
    # a process that is started again must not find the addresses of those that died
    home = dist.PrefixStore(f"cascadice/{start}", store)
    group = None if policy == CARRY_ON else make_group(home, rank, size, name, timeout)
    return World(rank, size, group, home, timeout, policy, patience, name, again, begun, lasting, tells_samples)
