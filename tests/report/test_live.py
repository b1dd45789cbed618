"""The live page of a run shows it as it trains, and does not affect the training."""

from dataclasses import replace
from threading import Event, Thread

import pytest
import torch
from report.watching import LONG, SECONDS, get, is_gone, wait_for, watched

from cascadice import files
from cascadice.engine.simulation import DivergedError
from cascadice.report import live
from cascadice.report.page import collect, page
from cascadice.runs import journal, store
from cascadice.runs import train as runs
from cascadice.runs.question import Question

pytestmark = pytest.mark.usefixtures("quick_updates")


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


def test_the_page_updates_in_a_browser_without_reloading(monkeypatch, tmp_path, chromium):
    monkeypatch.setattr(live, "LINGER", SECONDS)
    with watched(monkeypatch, tmp_path / "run") as run:
        run.reach(4)
        chromium.open(run.address)
        chromium.js("window.loaded = 'once'")
        chromium.click('#graph [data-node="1"] .body')
        chromium.js("document.querySelector('#ranking [data-row=\"3\"]').focus()")
        before = chromium.text("#findings")
        points = chromium.js("document.getElementById('loss').data[0].x.length")
        run.reach(12)
        chromium.wait(f"document.getElementById('loss').data[0].x.length > {points}")
        assert chromium.text("#findings") != before
        assert chromium.text("#live").startswith("live: ")
        assert chromium.text("#live").endswith(" of 16 rounds")
        assert chromium.text("#panel-text").startswith("Participant 1: its updates are received by ")
        assert chromium.js("document.activeElement.dataset.row") == "3"
        assert chromium.js("document.getElementById('missing').hidden && document.getElementById('live-note').hidden")
        run.allowed = 10**9
        chromium.wait("document.getElementById('live').dataset.state === 'ended'")
        assert chromium.text("#live-note").startswith("The run has ended: finished. This page is saved as ")
        run.thread.join(SECONDS)
        assert is_gone(run.address)
        assert chromium.js("loaded") == "once"
        assert chromium.errors == []
        assert all(url.startswith((run.address, "data:", "blob:")) for url in chromium.requests)


def test_the_page_says_when_the_run_does_not_respond(tmp_path, chromium):
    files.write_json(tmp_path / "config.json", {})
    with live.serving(tmp_path, 1) as address:
        chromium.open(address)
        chromium.js("window.fetch = () => Promise.reject(new Error('gone'))")
        chromium.wait("document.getElementById('live').dataset.state === 'lost'")
        assert chromium.text("#live-note").startswith("The run is not responding.")
        assert chromium.errors == []
