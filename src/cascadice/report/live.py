"""A run's page while it trains, on this machine only: `with serving(folder, rounds): ...`.

Whoever wants to see it must know its address, which holds a random token; other machines cannot reach it, and pages of
other sites that have the browser ask under a name of theirs (DNS rebinding) are refused by the Host header.
"""

import errno
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

from cascadice import files
from cascadice.report.page import REPORT, collect, page, write
from cascadice.report.page.numbers import Json

EVERY = 2.0  # seconds between updates
SHARE = 0.1  # of the time may go into updates: they share the interpreter with the training
LINGER = 5.0  # seconds for pages that are open to fetch the last update
LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


@contextmanager
def serving(folder: files.Folder, rounds: int, port: int = 0) -> Iterator[str]:
    """Serve the page of the run that is trained within, of so many rounds; its address, which is printed too.

    Port 0 is any that is free. However the run ends, its report is written, and pages that are open are told.
    """
    feed = _Feed(Path(folder), rounds)
    with _listening(port, feed) as server:
        print(f"live at {server.address} (afterwards in {feed.report})", flush=True)
        Thread(target=server.serve_forever, args=(0.05,), name="cascadice-live", daemon=True).start()
        try:
            yield server.address
        except BaseException:
            with suppress(ValueError, OSError, KeyboardInterrupt):  # how the run ended matters more
                feed.end()
            raise
        else:
            feed.end()
        finally:
            server.shutdown()


def pause(cost: float) -> float:
    """How long to wait after an update that took so many seconds."""
    return max(EVERY, cost / SHARE)


@dataclass
class _Feed:
    """What there is to show, gathered when somebody asks and not more often than every few seconds."""

    folder: Path
    rounds: int
    lock: Lock = field(default_factory=Lock)
    data: Json | None = None
    due: float = 0.0
    asked: float = float("-inf")
    ended: bool = False
    last_was_fetched: Event = field(default_factory=Event)

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    def newest(self) -> Json:
        """The data; older than they might be if they were gathered just now."""
        with self.lock:
            start = self.asked = monotonic()
            if self.data is None or (start >= self.due and not self.ended):
                self.data = self._of_now(collect(self.folder))
                self.due = monotonic() + pause(monotonic() - start)
            return self.data

    def _of_now(self, data: Json) -> Json:
        live = {"ended": self.ended, "rounds": self.rounds, "every": EVERY, "report": str(self.report)}
        return {**data, "live": live}

    def end(self) -> None:
        """Write the report; then wait until its data were fetched, if anybody is there to do so."""
        _, data = write(self.folder)
        with self.lock:
            self.ended = True
            self.data = self._of_now(data)
            watched = monotonic() - self.asked < 2 * EVERY + 1
        with suppress(KeyboardInterrupt):
            self.last_was_fetched.wait(LINGER if watched else 0)


class _Server(ThreadingTCPServer):
    """One that says nothing, of requests that went wrong least of all: the terminal belongs to the training."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, feed: _Feed) -> None:
        super().__init__((LOOPBACK, port), _Answer)
        self.feed, self.token = feed, secrets.token_urlsafe(24)
        self.hosts = [f"{name}:{self.server_address[1]}" for name in (LOOPBACK, "localhost")]

    @property
    def address(self) -> str:
        return f"http://{self.hosts[0]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def _listening(port: int, feed: _Feed) -> _Server:
    if not 0 <= port <= HIGHEST_PORT:
        raise ValueError(f"a port must be from 0 (any that is free) to {HIGHEST_PORT}; found {port}.")
    try:
        return _Server(port, feed)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        taken = "in use" if error.errno == errno.EADDRINUSE else "not open to you"
        raise ValueError(f"port {port} is {taken}. Choose another, or leave it out for one that is free.") from None


class _Answer(BaseHTTPRequestHandler):
    """GET, and nothing else: the page, and the newest data for it."""

    server: _Server
    timeout = 10.0
    server_version, sys_version = "cascadice", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN)
        start, _, name = self.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(start.encode(), self.server.token.encode()) or name not in ("", "data"):
            return self._send(HTTPStatus.NOT_FOUND)
        try:
            data = self.server.feed.newest()
        except (ValueError, OSError) as error:
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if name:
            self._send_data(data)
        else:
            self._send(HTTPStatus.OK, page(data), "text/html")
        if data["live"]["ended"]:
            self.server.feed.last_was_fetched.set()
        return None

    def _send_data(self, data: Json) -> None:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        version = f'"{blake2b(text.encode(), digest_size=12).hexdigest()}"'
        if self.headers.get("If-None-Match") == version:
            return self._send(HTTPStatus.NOT_MODIFIED, version=version)
        return self._send(HTTPStatus.OK, text, "application/json", version)

    def _send(self, status: HTTPStatus, text: str = "", kind: str = "text/plain", version: str | None = None) -> None:
        content = text.encode()
        self.send_response(status)
        more = {} if version is None else {"ETag": version}
        told = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**HEADERS, **told, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass
