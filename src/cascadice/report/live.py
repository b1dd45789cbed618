"""The page of a run, served on this machine only: while it trains (`serving`), or afterwards (`view`).

The address holds a random token, so other users cannot guess it, and other machines cannot reach the server. Requests
for another host name (DNS rebinding) are refused. Another process (`server`) serves connections; this one collects data
when the server asks, and goes on training whatever happens to it.
"""

import errno
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

from cascadice import files
from cascadice.applications.plain import Json
from cascadice.report.page import REPORT, collect, page, write
from cascadice.report.page.writing import json_in_html
from cascadice.runs import journal

LINGER = 5.0  # seconds that open pages have to fetch the last update
LEAVING = 2.0  # seconds that the server has to end by itself
WAITING = 64  # connections that may wait to be accepted
LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
SERVER = Path(__file__).with_name("server.py")


@contextmanager
def serving(
    folder: files.Folder, rounds: int, port: int = 0, token: str | None = None, stays: bool = False
) -> Iterator[str]:
    """Serve the page of a run while the `with` block trains it; print and yield the address.

    However the block ends, report.html is written and open pages get the final data.

    Args:
        rounds: How many rounds the run will have, for the page to show progress.
        port: The port to listen on; 0 chooses a free one.
        token: The secret part of the address; a new one if there is none.
        stays: Whether `view` will serve the page under the same address when the block has ended.

    Yields:
        The address of the page.

    Example:
        >>> with serving("runs/demo", rounds=320):  # doctest: +SKIP
        ...     train()
    """
    with _served(folder, rounds, port, token) as (feed, address):
        print(f"live page: {address} (kept afterwards in {feed.report})", flush=True)
        try:
            yield address
        except BaseException:
            with suppress(ValueError, OSError, KeyboardInterrupt):  # how the run ended matters more
                feed.end()
            raise
        else:
            feed.end(stays)


def view(
    folder: files.Folder, opened: Callable[[str], object] = print, port: int = 0, token: str | None = None
) -> None:
    """Serve the page of a run that has ended, or trains elsewhere, until Ctrl-C; it follows what is added to the run.

    Args:
        folder: The folder of the run; ValueError if it holds none.
        opened: Called with the address once the page can be opened.
        port: The port to listen on; 0 chooses a free one.
        token: The secret part of the address; a new one if there is none.

    Example:
        >>> view("runs/demo", webbrowser.open)  # doctest: +SKIP
    """
    rounds = int(collect(folder)["run"]["rounds"] or 0)
    with suppress(KeyboardInterrupt), _served(folder, rounds, port, token, training=False) as (feed, address):
        opened(address)
        feed.final_fetched.wait()  # until the server has gone, which happens on Ctrl-C only


def _listen(port: int) -> socket.socket:
    if not 0 <= port <= HIGHEST_PORT:
        raise ValueError(f"port must be from 0 (any free port) to {HIGHEST_PORT}; found {port}.")
    try:
        return socket.create_server((LOOPBACK, port), backlog=WAITING)
    except OSError as error:
        reasons = {errno.EADDRINUSE: "in use", errno.EACCES: "not allowed for this user"}
        if error.errno not in reasons:
            raise
        wrong = f"port {port} is {reasons[error.errno]}"
        raise ValueError(f"{wrong}. Choose another, or leave it out to use a free one.") from None


@contextmanager
def _served(
    folder: files.Folder, rounds: int, port: int, token: str | None, training: bool = True
) -> Iterator[tuple["_Feed", str]]:
    """A server process, which prints nothing and ends with the block; gives what feeds it, and its address."""
    ours, theirs = socket.socketpair()
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with ours, theirs, _listen(port) as listening:
        command = [sys.executable, "-I", "-S", str(SERVER), str(listening.fileno())]
        # in a group of its own: Ctrl-C at the terminal is for the training
        given: Any = {"stdin": theirs.fileno(), "pass_fds": [listening.fileno()], "process_group": 0}
        process = subprocess.Popen(command, **given, **silent)
        try:
            feed = _Feed(Path(folder), rounds, ours, training)
            address = feed.open(listening.getsockname()[1], token)
            listening.close()  # the server has its own
            theirs.close()
            yield feed, address
        finally:
            with suppress(OSError):  # closing it would not wake the thread that reads it
                ours.shutdown(socket.SHUT_RDWR)
            try:
                process.wait(LEAVING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class _Feed:
    """The page's data, collected when the server asks, and not more often than every few seconds."""

    folder: Path
    rounds: int
    control: socket.socket
    training: bool = True
    lock: Lock = field(default_factory=Lock)
    sending: Lock = field(default_factory=Lock)
    ended: bool = False
    final_fetched: Event = field(default_factory=Event)

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    def open(self, port: int, token: str | None = None) -> str:
        """Tell the server its address, and begin to answer it."""
        hosts = [f"{name}:{port}" for name in (LOOPBACK, "localhost")]
        token = token or secrets.token_urlsafe(24)  # not an argument of the server: other users can read those
        self.send({"token": token, "hosts": hosts})
        Thread(target=self.answer, name="cascadice-live", daemon=True).start()
        return f"http://{hosts[0]}/{token}/"

    def answer(self) -> None:
        """Send the server what it asks for, until it or the run has ended."""
        try:
            with suppress(OSError):
                while request := self.control.recv(1):
                    if request == b"f":
                        self.final_fetched.set()
                    elif request == b"s":
                        self._send_shell()
                    else:
                        with self.lock:
                            if not self.ended:
                                self._send_data()
        finally:
            self.final_fetched.set()  # the server has gone

    def send(self, about: Json, content: bytes = b"") -> None:
        """Send one message to the server; whole, whichever thread sends."""
        with self.sending:
            self.control.sendall(json.dumps(about).encode() + b"\n" + content)

    def _send_data(self, data: Json | None = None) -> None:
        """Send these or newer data; if there are none, the page shows why, and training goes on."""
        start, status, version = monotonic(), 200, ""
        live = {"ended": self.ended, "training": self.training, "rounds": self.rounds, "report": str(self.report)}
        live["every"] = journal.UPDATE_SECONDS
        try:
            content = json_in_html({**(collect(self.folder) if data is None else data), "live": live}).encode()
            version = f'"{blake2b(content, digest_size=12).hexdigest()}"'
        except Exception as error:
            content, status = (str(error) or type(error).__name__).encode(), 503
        about = {"name": "d", "size": len(content), "status": status, "version": version, "ended": self.ended}
        fresh, wait = journal.pause_after(monotonic() - start), 2 * journal.UPDATE_SECONDS + 1
        self.send({**about, "fresh": fresh, "wait": wait}, content)

    def _send_shell(self) -> None:
        """The page without its data, and where they belong."""
        empty = {"folder": self.folder.name or str(self.folder), "live": secrets.token_hex()}
        before, after = (part.encode() for part in page(empty).split(json_in_html(empty)))
        about = {"name": "s", "size": len(before) + len(after), "cut": len(before), "fresh": float("inf")}
        self.send(about, before + after)

    def end(self, stays: bool = False) -> None:
        """Write the report; then, if a page is open, wait until it has fetched the final data, unless it stays."""
        _, data = write(self.folder)
        if stays:
            return
        with self.lock, suppress(OSError):  # the server may have gone
            self.ended = True
            self._send_data(data)
        with suppress(KeyboardInterrupt):
            self.final_fetched.wait(LINGER)
