"""`python -m chaos.hosts`: a run on two hosts whose link is cut and healed. Hosts are network namespaces (need root).

host 10.77.0.2 (processes 0 and 1) --- switch --- host 10.77.1.2 (processes 2 and 3)
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from chaos.__main__ import serve, start
from chaos.verify import CLOSE, read, verified
from chaos.worker import ALL, PARTS, RANKS, Job, whole, work

ROUNDS, CUT_AT, CUT = 260, 50, 1.5  # rounds; the round and the seconds of the cut
LONGEST = 45  # seconds; continuous integration gives it 60 with what comes before and after


def unavailable() -> str:
    """Why there can be no hosts here; "" if there can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"chaos-{os.getpid()}-try"
    try:
        _ip(f"netns add {name}")
        _ip(f"-n {name} link add port0 type veth peer name port1")
        _forward(name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.decode(errors='replace').strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@contextmanager
def hosts() -> Iterator[tuple[list[str], Callable[[str], None]]]:
    """Two hosts, and a function that sets their link "up" or "down"; they are removed afterwards."""
    names = [f"chaos-{os.getpid()}-{what}" for what in ("a", "b", "switch")]
    switch = names[2]
    try:
        for name in names:
            _ip(f"netns add {name}")
            _ip(f"-n {name} link set lo up")
        for number, name in enumerate(names[:2]):
            near, far = f"10.77.{number}.2", f"10.77.{number}.1"
            _ip(f"-n {switch} link add port{number} type veth peer name eth0 netns {name}")
            for where, what, address in ((name, "eth0", near), (switch, f"port{number}", far)):
                _ip(f"-n {where} addr add {address}/24 dev {what}")
                _ip(f"-n {where} link set {what} up")
            _ip(f"-n {name} route add default via {far}")
        _forward(switch)
        yield names[:2], lambda state: _ip(f"-n {switch} link set port1 {state}")
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                _ip(f"netns del {name}")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


def _forward(name: str) -> None:
    """Let a namespace pass packets on."""
    command = ["ip", "netns", "exec", name, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
    subprocess.run(command, check=True, capture_output=True)


def inside(name: str, task: Callable[[], int]) -> Callable[[], int]:
    """The task, on a host."""

    def there() -> int:
        with Path(f"/run/netns/{name}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {name}")
        return task()

    return there


def run(folder: Path) -> list[list[dict[str, Any]]]:
    """Train on two hosts, cut the link in between, heal it; the logs."""
    whole()
    with hosts() as (names, link):
        keeper, port = -1, 0
        pids: list[int] = []
        try:
            port, keeper = serve("10.77.0.2", lambda task: inside(names[0], task))
            for rank in range(RANKS):
                job = Job(rank, ROUNDS, {}, folder, port, "10.77.0.2", "eth0")
                pids.append(start(inside(names[rank * 2 // RANKS], lambda job=job: work(job, False))))  # type: ignore[misc]
            end = monotonic() + LONGEST
            _wait(lambda: _reached(folder) >= CUT_AT, end)
            link("down")
            sleep(CUT)
            link("up")
            _wait(lambda: all(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids), end)
        finally:
            for pid in (*pids, *([keeper] if port else [])):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return read(folder)


def _reached(folder: Path) -> int:
    path = folder / "0.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def _wait(done: Callable[[], bool], end: float) -> None:
    while not done():
        if monotonic() > end:
            raise TimeoutError("the processes on two hosts did not finish in time")
        sleep(0.02)


def across(logs: list[list[dict[str, Any]]]) -> list[int]:
    """The rounds in which the first host heard the second."""
    far = [k for part in PARTS[RANKS // 2 :] for k in part]
    lines = [line for log in logs[: RANKS // 2] for line in log if "rows" in line]
    return sorted({line["t"] for line in lines if any(row[k] for row in line["rows"] for k in far)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what happened; 1 if the hosts did not find each other again, or a round is not the simulator's."""
    if why := unavailable():
        print(f"two hosts: skipped, {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        logs = run(Path(folder))
    gap, heard = max(verified(logs, ROUNDS, ALL)), across(logs)
    alone = [t for t in range(ROUNDS) if t not in heard]
    trained = [sum("rows" in line for line in log) for log in logs]
    print(f"two hosts, link cut for {CUT} s: did not hear each other in {len(alone)} of {ROUNDS} rounds "
          f"({alone[0] if alone else '-'} to {alone[-1] if alone else '-'}); "
          f"rounds trained by each process: {trained}; largest difference from the simulator: {gap:.1e}")  # fmt: skip
    good = alone and heard and heard[-1] > alone[0] and ROUNDS - 1 in heard and gap < CLOSE
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
