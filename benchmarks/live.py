"""How much a flooded live page slows the training: python benchmarks/live.py

Each attack is made by a process of its own against `cascadice run --live`, from the first round to the last. The ratio
is the training speed under attack over the speed that the same run has when nobody asks for its page, measured just
before. Where there are several cores, the run and its server have one, and the attacker has another: what it takes
from the run by computing is not the server's doing.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

SECONDS = 5  # of a client's patience
RUN = ["run", "--nodes", "16", "--model-options", "hidden=[64]", "--eval-every", "50", "--quiet", "--live"]


def slow(host: str, port: int, path: str) -> None:
    """1,200 connections that begin a request and never end it."""
    held: list[socket.socket] = []
    while True:
        held = [*held[-1199:], socket.create_connection((host, port), SECONDS)]
        held[-1].sendall(b"GET / HTTP/1.1\r\n")


def data(host: str, port: int, path: str) -> None:
    """Requests for the newest data, one after the other."""
    while True:
        _get(host, port, path + "data")


def page(host: str, port: int, path: str) -> None:
    """Requests for the whole page, one after the other."""
    while True:
        _get(host, port, path)


def nonsense(host: str, port: int, path: str) -> None:
    """Requests that know no address."""
    while True:
        _get(host, port, "/" + "x" * 4000)


ATTACKS: dict[str, Callable[[str, int, str], None]] = {each.__name__: each for each in (slow, data, page, nonsense)}


def _get(host: str, port: int, path: str) -> None:
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        while connection.recv(1 << 20):
            pass


def attack(name: str, address: str) -> None:
    """Make an attack until the page is gone or this process is ended; refused connections are tried again."""
    parts = urlsplit(address)
    while True:
        try:
            ATTACKS[name](parts.hostname or "", parts.port or 0, parts.path)
        except OSError:
            time.sleep(0.01)


def train(name: str | None, rounds: int) -> float:
    """Rounds a second of a run that is attacked in this way, or left alone."""
    own, *others = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        command = ["taskset", "-c", str(own), sys.executable, "-m", "cascadice", *RUN, "--rounds", str(rounds)]
        with subprocess.Popen([*command, "--out", folder], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            found = re.search(r"http://\S+", run.stdout.readline())
            assert found is not None, "the run printed no address"
            flood = [sys.executable, __file__, "--attack", str(name), found[0]]
            flood = ["taskset", "-c", str((others or [own])[0]), *flood]
            client = subprocess.Popen(flood) if name else None
            try:
                assert run.wait() == 0, f"the run failed under {name}"
            finally:
                if client is not None:
                    client.kill()
                    client.wait()
        return rounds / float(json.loads((Path(folder) / "manifest.json").read_text())["seconds"])


def main() -> None:
    """Print a table: the median ratio of each attack over a few repetitions, and all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", nargs=2, metavar=("NAME", "ADDRESS"), help="make one attack, and nothing else")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=ATTACKS)
    args = parser.parse_args()
    if args.attack:
        return attack(*args.attack)
    for name, make in ATTACKS.items() if args.only is None else [(args.only, ATTACKS[args.only])]:
        ratios = []
        for _ in range(args.repeat):
            alone = train(None, args.rounds)
            ratios.append(train(name, args.rounds) / alone)
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name:10} {statistics.median(ratios):5.2f}  ({each})  {(make.__doc__ or '').rstrip('.')}", flush=True)
    return None


if __name__ == "__main__":
    main()
