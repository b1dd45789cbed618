"""The server of a live page: a process of its own, so that it can neither stop training nor slow it down.

`live` starts this file as a script, with a listening socket and, as standard input, a socket to the training process.
It imports the standard library only, and runs at low priority.

    to the training process    one byte: d, send newer data; s, send the page around it; f, the final data was fetched
    from the training process  a line of JSON, then as many bytes as its `size` says; the first line holds the address

It ends when that socket is closed, so it never outlives the training process. At most MOST connections are open: for
each one more, the oldest is closed. A request has SECONDS to arrive and LARGEST bytes; an answer has SLOWEST seconds.
"""

import asyncio
import json
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic
from typing import Any, NamedTuple

MOST = 64
SECONDS = 5.0
SLOWEST = 60.0
LARGEST = 16_384
CHUNK = 65_536
NICENESS = 19  # a flood of requests takes what the training leaves
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Connection": "close",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Message(NamedTuple):
    """Something that the training process has sent, and until when it need not be asked again."""

    about: Mapping[str, Any]
    content: bytes
    until: float


class Answer(NamedTuple):
    """What a request is answered with."""

    status: HTTPStatus
    content: bytes = b""
    kind: str = "text/plain"
    version: str = ""
    final: bool = False


class Inbox:
    """What the training process has sent; it is asked for more when somebody looks, and not too often."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.parts: dict[str, Message] = {}
        self.waiting: dict[str, asyncio.Future[Message]] = {}
        self.looked = float("-inf")

    async def newest(self, name: str) -> Message:
        """The part of this name, as fresh as it must be."""
        known = self.parts.get(name)
        if known and (known.about.get("ended") or monotonic() < known.until):
            return known
        if name not in self.waiting:
            self.waiting[name] = asyncio.get_running_loop().create_future()
            self.writer.write(name.encode())
        return await asyncio.shield(self.waiting[name])

    async def receive(self) -> None:
        """Take in what the training process sends, until it goes."""
        while line := await self.reader.readline():
            about = json.loads(line)
            content = await self.reader.readexactly(about["size"])
            part = self.parts[about["name"]] = Message(about, content, monotonic() + about["fresh"])
            if (asked := self.waiting.pop(about["name"], None)) is not None:
                asked.set_result(part)
            if about.get("ended") and monotonic() - self.looked > about["wait"]:
                self.writer.write(b"f")  # nobody is looking


class Door:
    """Answers requests that know the secret address."""

    def __init__(self, feed: Inbox, token: str, hosts: list[str]) -> None:
        self.feed, self.token, self.hosts = feed, token, hosts
        self.open: dict[asyncio.StreamWriter, None] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which is one request."""
        if len(self.open) >= MOST:
            oldest = next(iter(self.open))
            del self.open[oldest]
            oldest.transport.abort()
        self.open[writer] = None
        try:
            async with asyncio.timeout(SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
            answer = await self.answer(request)
            async with asyncio.timeout(SLOWEST):
                await _send(writer, answer)
            writer.close()
            if answer.final:
                self.feed.writer.write(b"f")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self.open.pop(writer, None)

    async def answer(self, request: bytes) -> Answer:
        """The page at the secret address, its newest data at `data` below it, and nothing else."""
        first, *lines = request.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(words := first.split(" ")) != 3:
            return Answer(HTTPStatus.BAD_REQUEST)
        if words[0] != "GET":
            return Answer(HTTPStatus.NOT_IMPLEMENTED)
        if headers.get("host") not in self.hosts:
            return Answer(HTTPStatus.FORBIDDEN)
        start, _, name = words[1].removeprefix("/").partition("/")
        if not secrets.compare_digest(start.encode(), self.token.encode()) or name not in ("", "data"):
            return Answer(HTTPStatus.NOT_FOUND)
        self.feed.looked = monotonic()
        return await self._page(headers) if name else await self._page(None)

    async def _page(self, headers: Mapping[str, str] | None) -> Answer:
        """The data, if the headers of a request for them are given; else the page that holds them."""
        data = await self.feed.newest("d")
        status, version, ended = HTTPStatus(data.about["status"]), data.about["version"], data.about["ended"]
        if status != HTTPStatus.OK:
            return Answer(status, data.content)
        if headers is None:
            around = await self.feed.newest("s")
            cut = around.about["cut"]
            whole = around.content[:cut] + data.content + around.content[cut:]
            return Answer(status, whole, "text/html", final=ended)
        if headers.get("if-none-match") == version:
            return Answer(HTTPStatus.NOT_MODIFIED, version=version, final=ended)
        return Answer(status, data.content, "application/json", version, ended)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    about = {"Content-Type": f"{answer.kind}; charset=utf-8", "Content-Length": str(len(answer.content))}
    lines = HEADERS | about | ({"ETag": answer.version} if answer.version else {})
    head = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", *(f"{name}: {lines[name]}" for name in lines)]
    writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until all has gone
    writer.write("\r\n".join([*head, "", ""]).encode())
    for start in range(0, len(answer.content), CHUNK):
        writer.write(answer.content[start : start + CHUNK])
        await writer.drain()
    await writer.drain()


async def serve(listening: socket.socket, control: socket.socket) -> None:
    """Serve until the training process closes its end."""
    reader, writer = await asyncio.open_connection(sock=control, limit=LARGEST)
    about = json.loads(await reader.readline())
    feed = Inbox(reader, writer)
    door = Door(feed, about["token"], about["hosts"])
    async with await asyncio.start_server(door.connected, sock=listening, limit=LARGEST):
        await feed.receive()
    writer.close()


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=0)))
