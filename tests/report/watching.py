"""Runs that train only as far as a test allows, with their live page, and how to ask for it."""

import json
import time
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from threading import Event, Thread
from urllib.parse import urlsplit

from report.pages import CONFIG

from cascadice.report import live
from cascadice.runs import train as runs

SECONDS = 20  # before a test gives up
LONG = replace(CONFIG, rounds=16, record="none")


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
