"""The page of a run while it trains, served on this machine only: `with serving(folder, rounds): ...`.

The address holds a random token, so other users cannot guess it, and other machines cannot reach the server. Requests
under another host name (DNS rebinding by other sites) are refused by their Host header.
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
from cascadice.applications.plain import Json
from cascadice.report.page import REPORT, collect, page, write
from cascadice.runs import journal

LINGER = 5.0  # seconds that open pages have to fetch the last update
LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@contextmanager
def serving(folder: files.Folder, rounds: int, port: int = 0) -> Iterator[str]:
    """Serve the page of a run while the `with` block trains it; print and yield the address.

    However the block ends, the run's report.html is written and open pages are told.

    Args:
        rounds: How many rounds the run will have, for the page to show progress.
        port: The port to listen on; 0 chooses a free one.

    Example:
        >>> with serving("runs/demo", rounds=320):  # doctest: +SKIP
        ...     train()
    """
    feed = _Feed(Path(folder), rounds)
    with _Server(port, feed) as server:
        print(f"live page: {server.address} (kept afterwards in {feed.report})", flush=True)
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


@dataclass
class _Feed:
    """The page's data, collected when a page asks, and not more often than every few seconds."""

    folder: Path
    rounds: int
    lock: Lock = field(default_factory=Lock)
    data: Json | None = None
    due: float = 0.0
    asked: float = float("-inf")
    ended: bool = False
    final_fetched: Event = field(default_factory=Event)

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    def newest(self) -> Json:
        """The newest data; those collected last if it is too early to collect again."""
        with self.lock:
            start = self.asked = monotonic()
            if self.data is None or (start >= self.due and not self.ended):
                self.data = self._with_status(collect(self.folder))
                self.due = monotonic() + journal.pause_after(monotonic() - start)
            return self.data

    def _with_status(self, data: Json) -> Json:
        live = {"ended": self.ended, "rounds": self.rounds, "every": journal.UPDATE_SECONDS, "report": str(self.report)}
        return {**data, "live": live}

    def end(self) -> None:
        """Write the report; then, if a page is open, wait until it has fetched the final data."""
        _, data = write(self.folder)
        with self.lock:
            self.ended = True
            self.data = self._with_status(data)
            page_open = monotonic() - self.asked < 2 * journal.UPDATE_SECONDS + 1
        with suppress(KeyboardInterrupt):
            self.final_fetched.wait(LINGER if page_open else 0)


class _Server(ThreadingTCPServer):
    """A server that prints nothing, not even errors of requests: the terminal belongs to the training."""

    allow_reuse_address = daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, feed: _Feed) -> None:
        if not 0 <= port <= HIGHEST_PORT:
            raise ValueError(f"port must be from 0 (any free port) to {HIGHEST_PORT}; found {port}.")
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            reasons = {errno.EADDRINUSE: "in use", errno.EACCES: "not allowed for this user"}
            if error.errno not in reasons:
                raise
            wrong = f"port {port} is {reasons[error.errno]}"
            raise ValueError(f"{wrong}. Choose another, or leave it out to use a free one.") from None
        self.feed, self.token = feed, secrets.token_urlsafe(24)
        self.hosts = [f"{name}:{self.server_address[1]}" for name in (LOOPBACK, "localhost")]
        self.address = f"http://{self.hosts[0]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests for the page and for its newest data, and nothing else."""

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
            self.server.feed.final_fetched.set()
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
        about = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**HEADERS, **about, **({"ETag": version} if version else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass
