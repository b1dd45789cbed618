"""Hostile requests to a live page, and floods of slow ones, while a run trains; the run must not notice."""

import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import SplitResult, urlsplit

from torture.children import Child, command, start, wait
from torture.outcomes import Attempt, Outcome
from torture.stage import SMALL, Stage, digest

ROUNDS = 150
LIVE = re.compile(r"live page: (http://\S+)")
SLOW = 300  # connections in a flood
PATIENCE = 8.0

# What is sent; PATH is the secret path of the page, HOST its host and port.
REQUESTS = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "nulls": bytes(4000),
    "no token": b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "wrong token": b"GET /xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "other host": b"GET PATH HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET PATH HTTP/1.1\r\n\r\n",
    "up and out": b"GET PATH../../../../etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "encoded up": b"GET PATH%2e%2e/%2e%2e/config.json HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "post": b"POST PATH HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999999999\r\n\r\nx",
    "negative length": b"POST PATH HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n",
    "trace": b"TRACE PATH HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "options": b"OPTIONS * HTTP/1.1\r\nHost: HOST\r\nOrigin: http://evil.example\r\n\r\n",
    "long path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "many headers": b"GET PATH HTTP/1.1\r\nHost: HOST\r\n" + b"X-Y: z\r\n" * 5000 + b"\r\n",
    "long header": b"GET PATH HTTP/1.1\r\nHost: HOST\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
    "old protocol": b"GET PATH\r\n",
    "absolute": b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "split": b"GET PATH HTTP/1.1\r\nHost: HOST\r\nX: a\rb\nSet-Cookie: c\r\n\r\n",
    "unfinished": b"GET PATH HTTP/1.1\r\nHost: HO",
    "smuggled": b"GET / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET PATH\r\n\r\n",
    "bad chunk": b"POST PATH HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "nothing": b"",
}
OURS = {"old protocol", "split", "many headers", "long header", "unfinished", "smuggled"}  # which may see the page


def attacks(stage: Stage, seed: int) -> Iterator[list[Attempt]]:
    """Train with a live page, send hostile requests and floods meanwhile, and look at the run afterwards."""
    rng = random.Random(seed)
    with stage.empty() as place:
        ended = wait(start(command(*_line(place))))
        right = digest(place / "run" / "checkpoint.safetensors", place)
        if ended.code != 0:
            raise AssertionError(f"a run must work when nobody attacks it: {ended.said[-1500:]}")
    while True:
        with stage.empty() as place:
            child = start(command(*_line(place), "--live"), memory=None)
            address = _address(child)
            requests = [*_requests(address, rng)] if address else []
            ended = wait(child)
            wrong = ended.code != 0 or digest(place / "run" / "checkpoint.safetensors", place) != right
            said = ended.said[-800:] if wrong else ""
            outcome = Outcome.TRACEBACK if ended.crashed else Outcome.LOST if wrong or not address else Outcome.HELD
            yield [*requests, Attempt(f"a run with {len(requests)} requests and {SLOW} slow ones", outcome, said)]


def _line(place: Path) -> list[str]:
    words = [str(ROUNDS) if before == "--rounds" else word for before, word in zip(["", *SMALL], SMALL, strict=False)]
    return [*words, "--record", "none", "--out", str(place / "run")]


def _address(child: Child) -> str:
    end = monotonic() + 20
    while monotonic() < end:
        if (told := LIVE.search(child.output.read_text(errors="replace"))) is not None:
            return told[1]
        sleep(0.01)
    return ""


def _requests(address: str, rng: random.Random) -> Iterator[Attempt]:
    """Slow connections that stay open, and one of each hostile request among them."""
    url = urlsplit(address)
    slow = [opened for _ in range(SLOW) if (opened := _connect(url.port or 0)) is not None]
    for opened in slow:
        with suppress(OSError):
            opened.send(b"GET / HTTP/1.1\r\nX: ")
    names = rng.sample(list(REQUESTS), len(REQUESTS))
    attempts: list[Attempt] = []
    threads = [threading.Thread(target=_send, args=(name, url, attempts)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for opened in slow:
        opened.close()
    yield from attempts


def _connect(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    except OSError:
        return None


def _send(name: str, url: SplitResult, attempts: list[Attempt]) -> None:
    """Send a request; the answer must be a refusal, or the end of the connection."""
    content = REQUESTS[name].replace(b"PATH", url.path.encode()).replace(b"HOST", url.netloc.encode())
    answer, opened = b"", _connect(url.port or 0)
    with suppress(OSError):
        if opened is not None:
            opened.sendall(content)
            while chunk := opened.recv(1 << 16):
                answer += chunk
    status = answer[9:12].decode(errors="replace")
    leaked = b"participants trained" in answer and name not in OURS
    failed = status.startswith("5") and status not in ("501", "503", "505")
    outcome = Outcome.SILENT if leaked else Outcome.TRACEBACK if failed else Outcome.HELD
    attempts.append(Attempt(f"request: {name}", outcome, repr(answer[:200])))
    if opened is not None:
        opened.close()
