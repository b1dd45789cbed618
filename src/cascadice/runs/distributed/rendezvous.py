"""How processes find each other, whenever they start: through the store of torchrun or of process 0."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any

import torch.distributed

from cascadice.names import visible

dist: Any = torch.distributed  # its types leave out what is needed here

PAUSE = 0.01  # seconds between looks at the store
SETTLING = 1.0  # seconds in which others notice that they disagree with process 0


def arrive(lasting: Any, rank: int, size: int, timeout: float, policy: str, alone: bool) -> tuple[str, bool, bool]:
    """Meet the others; return a name of this start, whether any was started before, and whether all had begun to write.

    If `alone`, do not wait for them to come again, because they may have been training for long: the answers are then
    about this process. Each process counts how often it was started. Once all have read the same counts, these name
    this start. The number of restarts that torchrun reports would not do, because each machine counts it separately.
    Raises ValueError if they were told different things, ConnectionError if one does not arrive in time.
    """
    told = {"--policy": policy, "WORLD_SIZE": str(size)}
    for name, value in told.items():
        lasting.set(f"{name}/{rank}", value.encode())
    came, everybody = lasting.add(f"came/{rank}", 1), range(size)
    end = time.monotonic() + timeout
    while True:
        _check_told(lasting, size, rank, told)
        counts = [lasting.add(f"came/{each}", 0) for each in everybody]
        name = ".".join(map(str, counts))
        lasting.set(f"read/{rank}", name)
        read = [lasting.check([f"read/{each}"]) and lasting.get(f"read/{each}").decode() for each in everybody]
        if all(counts) and (alone or read == [name] * size):
            break
        if time.monotonic() > end:
            missing = ", ".join(str(each) for each in everybody if read[each] != name)
            raise ConnectionError(f"process {missing} did not arrive within {timeout:g} s. Was it started?")
        time.sleep(PAUSE)
    begun = [lasting.check([begun_key(each)]) for each in everybody]
    return ("all", came > 1, begun[rank]) if alone else (name, max(counts) > 1, all(begun))


def begun_key(rank: int) -> str:
    """The key in the store under which this process notes that it has started to write the run."""
    return f"begun/{rank}"


def _check_told(lasting: Any, size: int, rank: int, told: Mapping[str, str]) -> None:
    for (name, ours), other in product(told.items(), range(size)):
        key = f"{name}/{other}"
        if lasting.check([key]) and (theirs := lasting.get(key).decode(errors="replace")) != ours:
            time.sleep(0 if rank else SETTLING)  # the store may end with process 0: let the others look, too
            raise ValueError(
                f"all processes must agree; {name} is {visible(theirs)!r} in process {other}, {ours!r} in process "
                f"{rank}. Start them all alike."
            )


@contextmanager
def store_that_answers() -> Iterator[None]:
    """Inside this block, a store that is gone is a ConnectionError that says so."""
    try:
        yield
    except RuntimeError as error:  # of which torch's DistError is one
        raise ConnectionError(
            f"the store of the processes is gone: {first_line(error)}. The error of the process that kept it, process "
            "0 or torchrun, may say more."
        ) from None


def connect(host: str, port: int, rank: int, size: int, timeout: float) -> Any:
    """Connect to the store at this address, which process 0 hosts unless torchrun's agent does."""
    wait = timedelta(seconds=timeout)
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return dist.TCPStore(
            host, port, size, True, wait, wait_for_workers=False, master_listen_fd=_listening(host, port)
        )
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), max(0.1, end - time.monotonic())).close()
            return _in_time(lambda: dist.TCPStore(host, port, size, False, wait, wait_for_workers=False), end)
        except (OSError, dist.DistError) as error:
            if time.monotonic() >= end:
                raise ConnectionError(
                    f"the other processes could not be reached at {host}:{port} within {timeout:g} s: "
                    f"{first_line(error)}. Is process 0 running, and is MASTER_ADDR its address?"
                ) from None
            time.sleep(10 * PAUSE)


def _in_time(make: Callable[[], Any], end: float) -> Any:
    """The result of `make` if it returns before `end`: a store would wait forever for a server that is not one."""
    made: Future[Any] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=work, daemon=True).start()  # not an executor's, which the end of the program waits for
    try:
        return made.result(max(0.1, end - time.monotonic()))
    except TimeoutError:
        if made.done():  # its own
            raise
        raise ConnectionError("something listens there, but it is not a torchrun store") from None


def _listening(host: str, port: int) -> int:
    """A socket that listens only at this address; the store closes it."""
    try:
        return socket.create_server((host, port), backlog=128).detach()
    except OSError as error:
        raise ConnectionError(
            f"process 0 cannot listen at {host}:{port}: {error.strerror or error}. Choose another port with "
            "MASTER_PORT (torchrun --master-port), or another address with MASTER_ADDR."
        ) from None


def make_group(store: Any, rank: int, size: int, interface: str, timeout: float) -> Any:
    """Make a process group over this interface; all processes must take part."""
    try:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(interface=interface)]
        options._timeout = timedelta(seconds=timeout)
        return dist.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise ConnectionError(
            f"cannot connect to the other processes over the interface {interface!r}: {first_line(error)}. "
            "Processes on several machines need --interface, e.g. eth0."
        ) from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0].rstrip(".")
