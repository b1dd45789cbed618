"""The live page of a run: only whoever has the address sees it, and the training is not affected."""

import asyncio
import json
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest
import torch
from report import browser
from report.pages import CONFIG

from cascadice import files
from cascadice.cli import main
from cascadice.commands.view import browse
from cascadice.engine.simulation import DivergedError
from cascadice.report import live, server
from cascadice.report.page import collect, page
from cascadice.runs import journal, store
from cascadice.runs import train as runs
from cascadice.runs.ask import Question

SECONDS = 20  # before a test gives up
PAUSE = journal.pause_after
LONG = replace(CONFIG, rounds=16, record="none")


@pytest.fixture(autouse=True)
def _quick(monkeypatch, one_thread):
    monkeypatch.setattr(journal, "UPDATE_SECONDS", 0.2)
    monkeypatch.setattr(live, "LINGER", 0.1)
    monkeypatch.setattr(journal, "pause_after", lambda seconds: 0.0)
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda _: None)


class Watched:
    """A run in a thread that trains only as far as it is allowed."""

    def __init__(self, folder, config=LONG, **more):
        self.folder, self.allowed, self.error = folder, 0, None
        self.address, self.ready = "", Event()
        self.thread = Thread(target=self._train, args=(config, more))

    def _train(self, config, more):
        try:
            runs.run(config, self.folder, quiet=True, live=live.serving, **more)
        except BaseException as error:
            self.error = error

    def reach(self, t):
        """Allow the rounds before t, and wait for them."""
        self.allowed = t
        wait_for(lambda: ((self.data() or {"run": {}})["run"].get("rounds") or 0) >= t)

    def get(self, path="", **headers):
        return get(self.address + path, **headers)

    def data(self):
        status, _, text = self.get("data")
        return json.loads(text) if status == 200 else None


def get(address, method="GET", **headers):
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc, timeout=SECONDS)
    try:
        connection.request(method, parts.path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


@contextmanager
def watched(monkeypatch, folder, config=LONG, **more):
    run = Watched(folder, config, **more)
    simulate, serving = runs.simulate, live.serving

    def slowly(*args, **settings):
        for done in simulate(*args, **settings):
            yield done
            wait_for(lambda done=done: run.allowed > done.t + 1)

    @contextmanager
    def served(*args):
        with serving(*args) as run.address:
            run.ready.set()
            yield run.address

    monkeypatch.setattr(runs, "simulate", slowly)
    monkeypatch.setattr(live, "serving", served)
    run.thread.start()
    assert run.ready.wait(SECONDS)
    try:
        yield run
    finally:
        run.allowed = 10**9
        run.thread.join(SECONDS)
        assert not run.thread.is_alive()


def is_gone(address):
    try:
        get(address)
    except ConnectionRefusedError:
        return True
    return False


def test_data_change_during_training_and_the_server_stops_with_the_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(4)
        early = run.data()
        run.reach(9)
        late = run.data()
        assert early["run"]["rounds"] < late["run"]["rounds"] < 16
        assert early["run"]["status"] == late["run"]["status"] == "running"
        assert len(early["training"]["loss"]["mean"]) < len(late["training"]["loss"]["mean"])
        assert late["live"]["rounds"] == 16
        assert late["live"]["ended"] is False
        run.allowed = 10**9
        wait_for(lambda: (last := run.data()) and last["live"]["ended"])
        run.thread.join(SECONDS)
        assert is_gone(run.address)
    assert run.error is None
    assert (
        capsys.readouterr().out == f"live page: {run.address} (kept afterwards in {tmp_path / 'run' / 'report.html'})\n"
    )
    assert (tmp_path / "run" / "report.html").read_text() == page(collect(tmp_path / "run"))


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
        while time.monotonic() < start + 0.8:
            seen.add(json.loads(get(address + "data")[2])["n"])
    assert len(times) <= 3
    assert seen == set(range(1, len(times) + 1))
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
    monkeypatch.setattr(server, "SECONDS", 0.05)

    async def ask(text):
        door = server.Door(None, "token", ["here"])
        async with await asyncio.start_server(door.connected, "127.0.0.1", 0, limit=server.LARGEST) as listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(text)
            answer = await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
            return answer, door.open

    assert asyncio.run(ask(b"GET / HTTP/1.1\r\nHost: he")) == (b"", {})
    assert asyncio.run(ask(b"x" * (server.LARGEST + 10)))[0] == b""
    assert asyncio.run(ask(b"nonsense\r\n\r\n"))[0].startswith(b"HTTP/1.1 400 Bad Request\r\n")


def parameters(folder):
    return store.load_checkpoint(folder).participants.theta, store.read_metrics(folder)


def test_a_live_page_does_not_change_a_bit_of_the_run(monkeypatch, tmp_path):
    config = replace(LONG, rounds=12, record="last:3", checkpoint_every=5)
    runs.run(config, tmp_path / "alone", quiet=True)
    stop, asked = Event(), []

    def stare(address):
        while not stop.is_set():
            asked.append(get(address + "data")[0])

    with watched(monkeypatch, tmp_path / "run", config, question=Question(hops=1, every=4, eval_samples=20)) as run:
        eyes = Thread(target=stare, args=(run.address,))
        eyes.start()
        for t in range(2, 12, 3):
            run.reach(t)
        stop.set()
        eyes.join(SECONDS)
    assert run.error is None
    assert asked.count(200) > 5
    (theta, measures), (expected, of_alone) = parameters(tmp_path / "run"), parameters(tmp_path / "alone")
    assert torch.equal(theta, expected)
    assert store.saved_rounds(tmp_path / "run") == [9, 10, 11]
    for a, b in zip(measures, of_alone, strict=True):
        assert torch.equal(a.train_loss, b.train_loss)
        assert torch.equal(a.consensus, b.consensus)
    state = torch.get_rng_state()  # from which dropout draws, as training may
    collect(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)


def test_influence_appears_as_it_is_computed(monkeypatch, tmp_path):
    with watched(monkeypatch, tmp_path / "run", question=Question(hops=1, every=3, eval_samples=20)) as run:
        run.reach(3)
        wait_for(lambda: run.data()["influence"])
        assert run.data()["influence"]["all rounds"] == [0]
        run.reach(6)
        wait_for(lambda: run.data()["influence"]["all rounds"] == [0, 3])


def test_a_resumed_run_drops_what_was_shown_after_its_checkpoint(monkeypatch, tmp_path):
    config = replace(LONG, rounds=12, checkpoint_every=5)
    runs.run(config, tmp_path / "whole", quiet=True)
    with watched(monkeypatch, tmp_path / "run", config) as run:
        run.reach(8)
        monkeypatch.setattr(journal, "save", lambda _: None)
        monkeypatch.setattr(journal, "end", lambda *_: None)  # as if it had been killed
        assert len(store.read_metrics(tmp_path / "run")) >= 8
        assert store.load_checkpoint(tmp_path / "run").t == 5
    monkeypatch.undo()
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda _: None)
    runs.run(config, tmp_path / "run", resume=True, quiet=True)
    assert torch.equal(parameters(tmp_path / "run")[0], parameters(tmp_path / "whole")[0])
    assert [m.t for m in store.read_metrics(tmp_path / "run")] == list(range(12))


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt, "interrupted"), (DivergedError, "diverged")])
def test_however_the_run_ends_its_page_says_so(monkeypatch, tmp_path, stop, status):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    simulate = runs.simulate

    def stopped(*args, **settings):
        for done in simulate(*args, **settings):
            if done.t == 6:
                raise stop(6, 0) if stop is DivergedError else stop
            yield done

    monkeypatch.setattr(runs, "simulate", stopped)
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(3)
        run.allowed = 10**9
        wait_for(lambda: (last := run.data()) and last["live"]["ended"])
    assert isinstance(run.error, stop)
    assert is_gone(run.address)
    assert collect(tmp_path / "run")["run"]["status"] == status
    assert (tmp_path / "run" / "report.html").exists()


def test_the_server_does_not_wait_if_no_page_is_open(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    files.write_json(tmp_path / "run" / "config.json", {})
    with live.serving(tmp_path / "run", 1):
        start = time.monotonic()
    assert time.monotonic() - start < live.LINGER


def test_the_command_prints_the_address_even_if_quiet(tmp_path, capsys):
    settings = ["--rounds", "2", "--nodes", "4", "--model-options", "hidden=[4]"]
    assert main(["run", *settings, "--live", "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("live page: http://127.0.0.1:")
    assert "status" in (tmp_path / "run" / "report.html").read_text()


def test_a_finished_run_is_viewed_until_it_is_stopped(bare, capsys, monkeypatch):
    seen = []

    def opened(address):
        status, _, text = get(address)
        data = json.loads(get(address + "data")[2])
        seen.append((status, data["run"]["status"], data["live"]["training"], data["live"]["ended"]))
        assert "Whose data helped whom has not been computed" in text  # and the command that computes it:
        assert data["commands"][0]["command"].startswith("cascadice influence ")
        (bare / "config.json").rename(bare / "away.json")
        seen.append(get(address + "data")[0])  # it is collected again, and again
        (bare / "away.json").rename(bare / "config.json")
        seen.append(address)
        raise KeyboardInterrupt

    monkeypatch.setattr("cascadice.commands.view.browse", opened)
    assert main(["view", str(bare)]) == 0
    assert seen[:2] == [(200, "finished", False, False), 503]
    assert capsys.readouterr().out == f"page of {bare}: {seen[2]} (Ctrl-C to stop)\n"
    assert is_gone(seen[2])
    assert main(["view", str(bare / "rounds")]) == 2
    assert "rounds" in capsys.readouterr().err


@pytest.mark.parametrize("screen", [":0", ""])
def test_the_browser_is_given_a_file_not_the_secret_address(monkeypatch, screen):
    given = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, screen)
    monkeypatch.setattr("webbrowser.open", lambda uri: given.append(uri) or True)
    assert browse("http://127.0.0.1:8765/secret/") is bool(screen)
    for uri in given:
        path = Path(urlsplit(uri).path)
        assert "secret" not in uri
        assert path.stat().st_mode & 0o077 == 0
        assert "url=http://127.0.0.1:8765/secret/" in path.read_text()
        path.unlink()


def test_at_a_terminal_a_live_page_is_opened_and_stays_under_its_address(tmp_path, monkeypatch, capsys):
    opened, view = [], live.view

    def stay(folder, _, port, token):
        def look(address):
            opened.append((address, json.loads(get(address + "data")[2])["run"]["status"]))
            raise KeyboardInterrupt

        view(folder, look, port, token)

    monkeypatch.setattr(live, "view", stay)
    monkeypatch.setattr("cascadice.commands.view.browse", opened.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    settings = ["--rounds", "2", "--nodes", "4", "--model-options", "hidden=[4]", "--quiet"]
    assert main(["run", *settings, "--live", "--out", str(tmp_path / "run")]) == 0
    assert opened[1] == (opened[0], "finished")
    assert "its page stays open until Ctrl-C" in capsys.readouterr().out
    assert is_gone(opened[0])
    assert main(["run", *settings, "--live", "--no-browser", "--overwrite", "--out", str(tmp_path / "run")]) == 0
    assert len(opened) == 3  # it stayed, and was not opened


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--live", "demo"], "a port must be a whole number; found 'demo'; the recipe comes before it: cascadice run"),
        (["demo", "--live", "65536"], "port must be from 0 (any free port) to 65535; found 65536."),
        (["demo", "--live", "TAKEN"], "is in use. Choose another, or leave it out to use a free one."),
    ],
)
def test_mistakes_are_reported_before_anything_is_lost(tmp_path, capsys, arguments, message):
    (tmp_path / "run").mkdir()
    for name in ("config.json", "manifest.json", "metrics.parquet"):
        (tmp_path / "run" / name).write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        given = [port if part == "TAKEN" else part for part in arguments]
        assert main(["run", *given, "--overwrite", "--quiet", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert (tmp_path / "run" / "metrics.parquet").exists()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if browser.find() is None:
        pytest.skip(f"needs a browser: none of {', '.join(browser.NAMES)} is here (apt install chromium)")
    with browser.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


class Address(str):
    """A browser tab."""

    def as_uri(self):
        return str(self)


def test_the_page_updates_in_a_browser_without_reloading(monkeypatch, tmp_path, tab):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(4)
        tab.open(Address(run.address))
        tab.js("window.loaded = 'once'")
        tab.click('#graph [data-node="1"] .body')
        tab.js("document.querySelector('#ranking [data-row=\"3\"]').focus()")
        before = tab.text("#findings")
        points = tab.js("document.getElementById('loss').data[0].x.length")
        run.reach(12)
        tab.wait(f"document.getElementById('loss').data[0].x.length > {points}")
        assert tab.text("#findings") != before
        assert tab.text("#live").startswith("live: ")
        assert tab.text("#live").endswith(" of 16 rounds")
        assert tab.text("#panel-title") == "Participant 1"
        assert tab.js("document.activeElement.dataset.row") == "3"
        assert tab.js("document.getElementById('missing').hidden && document.getElementById('live-note').hidden")
        run.allowed = 10**9
        tab.wait("document.getElementById('live').dataset.state === 'ended'")
        assert tab.text("#live-note").startswith("The run has ended: finished. This page is saved as ")
        run.thread.join(SECONDS)
        assert is_gone(run.address)
        assert tab.js("loaded") == "once"
        assert tab.errors == []
        assert all(url.startswith((run.address, "data:", "blob:")) for url in tab.requests)


def test_the_page_says_when_the_run_does_not_respond(tmp_path, tab):
    files.write_json(tmp_path / "config.json", {})
    with live.serving(tmp_path, 1) as address:
        tab.open(Address(address))
        tab.js("window.fetch = () => Promise.reject(new Error('gone'))")
        tab.wait("document.getElementById('live').dataset.state === 'lost'")
        assert tab.text("#live-note").startswith("The run is not responding.")
        assert tab.errors == []
