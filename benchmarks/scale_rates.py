"""An exchange between two hosts with a slow cable, predicted and measured.

The hosts are network namespaces, joined by a veth pair whose ends send no faster than LINKS say (tc, token bucket).
There is no added latency, which needs a kernel module that is often missing. Linux only; no root is needed.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from scale import LATENCY, LINKS, Cost, amount, message, seconds, show
from scale_links import connected, exchanges

PARAMETERS = {"10 Mbit/s": (10_000, 100_000), "100 Mbit/s": (100_000, 1_000_000), "1 Gbit/s": (1_000_000,)}
CASES = [(link, parameters) for link, sizes in PARAMETERS.items() for parameters in sizes]
REPEATS = 5


def hosts() -> subprocess.Popen[bytes]:
    """A process in a second namespace, with eth0 here and eth0 there joined."""
    other = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    here = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{other.pid}/ns/net").readlink() == here:
        time.sleep(0.01)
    there = f"nsenter --target {other.pid} --net "
    for line in (
        f"ip link add name eth0 type veth peer name eth0 netns {other.pid}",
        *(f"{where}ip address add 10.9.0.{k}/24 dev eth0" for k, where in enumerate(("", there), 1)),
        *(f"{where}ip link set {name} up" for where in ("", there) for name in ("lo", "eth0")),
    ):
        subprocess.run(line.split(), check=True)
    return other


def limit(other: int, bandwidth: float) -> None:
    """Let both ends send no more bits a second than this."""
    burst = max(16_000, bandwidth / 2000)
    for where in ("", f"nsenter --target {other} --net "):
        line = f"{where}tc qdisc replace dev eth0 root tbf rate {bandwidth:.0f}bit burst {burst:.0f} latency 200ms"
        subprocess.run(line.split(), check=True)


def spent(store: str, rank: int, link: str, parameters: int) -> float:
    """The median time of an exchange on the clock."""
    group = connected(store, f"{link}, {parameters}", rank)
    return float(exchanges(rank, group, parameters, REPEATS)[:, 1].median())


def main() -> None:
    """Print a table of predicted and measured seconds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--store"]:
        for case in CASES:
            spent(sys.argv[2], 1, *case)
        return
    if sys.argv[1:2] != ["--apart"]:
        os.execvp("unshare", ["unshare", "--map-root-user", "--net", sys.executable, __file__, "--apart"])
    rows, other = [["link", "parameters", "bytes", "predicted", "measured"]], hosts()
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/store"
        command = ["nsenter", "--target", str(other.pid), "--net", sys.executable, __file__, "--store", place]
        with subprocess.Popen(command):
            for link, parameters in CASES:
                limit(other.pid, LINKS[link])
                predicted = seconds(1, parameters, LINKS[link], Cost()) - LATENCY
                measured = spent(place, 0, link, parameters)
                size = amount(message(parameters))
                rows.append([link, f"{parameters:,}", size, f"{predicted:.3f} s", f"{measured:.3f} s"])
    other.kill()
    show("An exchange between two hosts, without latency", rows)


if __name__ == "__main__":
    main()
