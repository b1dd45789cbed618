"""The limits of the live server are those that docs/reliability.md names, and each of them is kept."""

import asyncio
import json
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from cascadice.report import server

DOCUMENTED = Path(__file__).parents[2] / "docs" / "reliability.md"
SECONDS = 20  # before a test gives up


def test_limits_are_those_of_the_documentation():
    text = DOCUMENTED.read_text()
    assert f"| connections at once | {server.MOST}; for each one more, the oldest is closed |" in text
    assert f"must arrive within {server.SECONDS:g} seconds, in {server.LARGEST // 1024} KiB |" in text
    assert f"| an answer | must be read within {server.SLOWEST:g} seconds |" in text


@contextmanager
def connection(server_socket):
    """A connection to a server that listens in this thread."""
    with socket.socket() as ours:
        ours.setblocking(False)
        ours.connect_ex(server_socket.getsockname())
        yield ours


async def everything(ours):
    """What comes until the other side closes."""
    content = b""
    with suppress(ConnectionResetError):
        while part := await asyncio.get_running_loop().sock_recv(ours, 2**20):
            content += part
    return content


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    """It waits in no buffer either: whoever reads later finds a part of it."""
    monkeypatch.setattr(server, "SLOWEST", 0.1)
    large = server.Message({"status": 200, "version": "", "ended": False}, bytes(30_000_000), float("inf"))

    async def newest(name):
        return large

    async def ask():
        door = server.Door(SimpleNamespace(newest=newest, looked=0.0), "token", ["here"])
        async with await asyncio.start_server(door.connected, "127.0.0.1", 0) as listening:
            with connection(listening.sockets[0]) as ours:
                request = b"GET /token/data HTTP/1.1\r\nHost: here\r\n\r\n"
                await asyncio.get_running_loop().sock_sendall(ours, request)
                opened = False
                while door.open or not opened:
                    opened = opened or bool(door.open)
                    await asyncio.sleep(0.001)
                return await everything(ours)

    content = asyncio.run(asyncio.wait_for(ask(), SECONDS))
    assert content == b"" or content.startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(content) < len(large.content)


def test_a_request_that_is_too_long_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 10 * SECONDS)

    async def ask():
        control, theirs = socket.socketpair()
        with control, socket.create_server(("127.0.0.1", 0)) as listening:
            control.sendall(json.dumps({"token": "token", "hosts": []}).encode() + b"\n")
            serving = asyncio.create_task(server.serve(listening, theirs))
            with connection(listening) as ours:
                await asyncio.get_running_loop().sock_sendall(ours, b"x" * (2 * server.LARGEST))
                content = await everything(ours)
            control.shutdown(socket.SHUT_RDWR)
            await serving
            return content

    assert asyncio.run(asyncio.wait_for(ask(), SECONDS)) == b""
