"""The server of a live page: only whoever has the address sees it, and nothing that reaches it harms the run."""

import asyncio
import json
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from report.watching import LONG, SECONDS, get, wait_for, watched

from cascadice import files
from cascadice.report import live, server
from cascadice.runs import journal
from cascadice.runs import train as runs

PAUSE = journal.pause_after

pytestmark = pytest.mark.usefixtures("quick_updates")


def test_only_the_address_opens_it(monkeypatch, tmp_path):
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(2)
        status, headers, text = run.get()
        assert status == 200
        assert "connect-src 'self'" in text
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        root, token = run.address.rstrip("/").rsplit("/", 1)
        assert len(token) >= 32
        wrong = ("", "/", "/data", f"/{token[:-1]}/data", f"/{token}x/", f"/{token}/config.json", f"/{token}/../data")
        for path in (*wrong, "/%C3%A9", f"/{token}/data/"):
            status, _, text = get(root + path)
            assert (status, text) == (404, ""), path
        assert get(f"{root}/{token}")[0] == 200
        for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", f"evil.example:{urlsplit(root).port}", ""):
            assert run.get(Host=host)[::2] == (403, "")
        assert run.get("data", Host=f"localhost:{urlsplit(root).port}")[0] == 200
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS"):
            assert get(run.address, method)[0] == 501


def test_other_machines_cannot_reach_it(tmp_path):
    with live.serving(tmp_path, 1) as address:
        assert address.startswith("http://127.0.0.1:")
        with socket.socket() as elsewhere, pytest.raises(ConnectionRefusedError):
            # all of 127/8 is this machine, but only one address of it listens
            elsewhere.connect(("127.0.0.2", urlsplit(address).port))
        (tmp_path / "config.json").write_text("{}")


def test_addresses_differ(tmp_path):
    files.write_json(tmp_path / "config.json", {})
    tokens = set()
    for _ in range(3):
        with live.serving(tmp_path, 1) as address:
            tokens.add(urlsplit(address).path)
    assert len(tokens) == 3


def test_unchanged_data_are_not_sent_again(monkeypatch, tmp_path):
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(3)
        status, headers, text = run.get("data")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(text)["nodes"] == 6
        wait_for(lambda: run.get("data", If_None_Match=run.get("data")[1]["ETag"])[0] == 304)
        assert run.get("data", If_None_Match='"older"')[0] == 200


def test_data_are_collected_only_on_request_and_not_too_often(monkeypatch, tmp_path):
    times = []
    monkeypatch.setattr(live, "collect", lambda folder: times.append(time.monotonic()) or {"n": len(times)})
    monkeypatch.setattr(live, "write", lambda folder: (folder, {}))
    monkeypatch.setattr(journal, "UPDATE_SECONDS", 0.3)
    monkeypatch.setattr(journal, "pause_after", PAUSE)
    with live.serving(tmp_path, 1) as address:
        time.sleep(0.1)
        assert times == []
        start, seen = time.monotonic(), set()
        while 3 not in seen and time.monotonic() < start + SECONDS:
            seen.add(json.loads(get(address + "data")[2])["n"])
    assert seen == {1, 2, 3}
    assert all(b - a >= 0.3 for a, b in pairwise(times))


def test_two_threads_send_whole_messages(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        feed = live._Feed(tmp_path, 1, ours)
        content = b"x" * 3_000_000
        threads = [Thread(target=feed.send, args=({"size": len(content), "by": by}, content)) for by in range(2)]
        for thread in threads:
            thread.start()
        reader = theirs.makefile("rb")
        for _ in threads:
            assert json.loads(reader.readline())["size"] == len(reader.read(len(content)))
        for thread in threads:
            thread.join()


def test_slow_updates_come_less_often():
    assert PAUSE(0.001) == journal.UPDATE_SECONDS
    assert PAUSE(2.0) == pytest.approx(20.0)


def test_a_run_that_cannot_be_read_gives_an_error_response_only(tmp_path, capfd):
    with live.serving(tmp_path, 1) as address:
        status, _, text = get(address + "data")
        assert status == 503
        assert "holds no run" in text
        with socket.create_connection(("127.0.0.1", urlsplit(address).port)) as rude:
            rude.sendall(b"nonsense\r\n\r\n")
        files.write_json(tmp_path / "config.json", {})
        assert get(address + "data")[0] == 200
    assert capfd.readouterr().err == ""


def half_open(address):
    slow = socket.create_connection((urlsplit(address).hostname, urlsplit(address).port), timeout=SECONDS)
    slow.sendall(b"GET / HTTP/1.1\r\n")
    return slow


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_flood_of_slow_connections_reaches_neither_the_run_nor_other_readers(tmp_path):
    files.write_json(tmp_path / "config.json", {})
    before = descriptors()
    with live.serving(tmp_path, 1) as address, ExitStack() as held:
        opened = descriptors() - before
        slow = [held.enter_context(half_open(address)) for _ in range(3 * server.MOST)]
        assert get(address + "data")[0] == 200
        assert descriptors() - before == opened + len(slow)  # those are this test's own
        with pytest.raises(ConnectionResetError):  # the oldest had to go
            slow[0].recv(1)


def test_a_server_that_is_killed_leaves_the_run_alone(monkeypatch, tmp_path):
    started, popen = [], live.subprocess.Popen
    monkeypatch.setattr(live.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    monkeypatch.setattr(live, "LINGER", SECONDS)
    config = replace(LONG, rounds=3)

    @contextmanager
    def killed(*args):
        with live.serving(*args) as address:
            assert get(address + "nothing")[0] == 404
            ours, theirs = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, started[0].pid))
            assert theirs == min(19, ours + server.NICENESS)
            started[0].kill()
            started[0].wait()
            yield

    start = time.monotonic()
    assert runs.run(config, tmp_path / "run", quiet=True, live=killed).rounds == 3
    assert time.monotonic() - start < SECONDS  # nobody is waited for
    assert (tmp_path / "run" / "report.html").exists()


def test_an_unexpected_error_on_the_page_is_not_one_of_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "collect", lambda folder: {}["classes"])
    files.write_json(tmp_path / "config.json", {})
    with live.serving(tmp_path, 1) as address:
        assert get(address + "data")[::2] == (503, "'classes'")


def test_a_request_must_arrive_whole_soon_and_be_short(monkeypatch):
    async def ask(text):
        door = server.Door(None, "token", ["here"])
        async with await asyncio.start_server(door.connected, "127.0.0.1", 0, limit=server.LARGEST) as listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(text)
            answer = await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
            return answer, door.open

    with monkeypatch.context() as hasty:
        hasty.setattr(server, "SECONDS", 0.05)
        assert asyncio.run(ask(b"GET / HTTP/1.1\r\nHost: he")) == (b"", {})
    assert asyncio.run(ask(b"x" * (server.LARGEST + 10)))[0] == b""
    assert asyncio.run(ask(b"nonsense\r\n\r\n"))[0].startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_the_server_does_not_wait_if_no_page_is_open(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    files.write_json(tmp_path / "run" / "config.json", {})
    with live.serving(tmp_path / "run", 1):
        start = time.monotonic()
    assert time.monotonic() - start < live.LINGER
