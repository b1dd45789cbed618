"""Commands about a recorded run whose power fails: at every moment, and whatever was not flushed is lost or kept.

Each state can be read, and shows what was there before, what the command gives, or that something is missing. The same
command, with --overwrite where it asks for it, then gives what it gives undisturbed.
"""

import json
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from runs.power_loss import crashes, read, recording, unflushed, write
from torture.stage import DURATION, NoFigure, digest, without_times

from cascadice.cli import main
from cascadice.data import catalogue
from cascadice.files import checksums, locks
from cascadice.report.page import collect
from cascadice.runs.config import build
from cascadice.runs.recipes import demo
from cascadice.runs.train import run

SMALL = replace(
    demo(), nodes=2, per_node=8, batch_size=4, model_options=("hidden=[2]",), rounds=3, epochs=None, eval_every=3,
    record="all", checkpoint_every=3,
)  # fmt: skip
LEFT = {f"run/{locks.LOCK}": b"", "run/.tmp-7-0a1b-reward.json": b"ha"}  # by whoever dies
INFLUENCE = "influence run --kind first-order --hops 1 --eval-samples 20"
REWARD = "reward run --budget 10 --kind shares --hops 1 --eval-samples 20"
FORGET = "forget run --participant 1 --level replay"


class Scenario(NamedTuple):
    """Commands that have been given, the one that the power fails in, and where its results are."""

    before: tuple[str, ...]
    command: str
    results: tuple[str, ...]


SCENARIOS = {
    "influence": Scenario((), INFLUENCE, ("run/influence",)),
    "influence, elsewhere": Scenario((), f"{INFLUENCE} --out out", ("out",)),
    "other influence": Scenario((INFLUENCE,), f"{INFLUENCE} --hops 2 --overwrite", ("run/influence",)),
    "more influence": Scenario((f"{INFLUENCE} --every 2",), INFLUENCE, ("run/influence",)),
    "reward": Scenario((), REWARD, ("run/reward", "run/ledger")),
    "reward for the whole run": Scenario((), "reward run --budget 10 --eval-samples 20", ("run/reward", "run/ledger")),
    "reward, other terms": Scenario((REWARD,), f"{REWARD} --budget 20 --overwrite", ("run/reward", "run/ledger")),
    "reward, sealed, elsewhere": Scenario((), f"{REWARD} --seal key --ledger ledger", ("run/reward", "ledger")),
    "forget": Scenario((), FORGET, ("run/forget",)),
    "forget another": Scenario((FORGET,), "forget run --participant 0 --overwrite", ("run/forget",)),
    "report": Scenario((), "report run", ("run/report.html",)),
    "report again": Scenario(("report run", INFLUENCE), "report run", ("run/report.html",)),
}


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Without figures, without waiting for the disk, and with data and network made once."""
    monkeypatch.setattr("matplotlib.figure.Figure", NoFigure)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", str)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(catalogue, "digits", _digits)
    monkeypatch.setattr("cascadice.runs.recording.build", _built)


_digits = cache(catalogue.digits)
_built = cache(build)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with a recorded run and a key."""
    place = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        run(SMALL, place / "run", quiet=True)
    (place / "key").write_text("0123456789abcdef0123456789abcdef")
    return place


def command(line, *more):
    return main([*line.split(), *more, "--quiet"])


def shown():
    """What the page of the run shows of its results, and what it says about those that are missing or not finished."""
    data = without_times(collect("run"))
    missing = [*data["notes"], *(text for text in data["findings"] if "repeat the command to finish" in text)]
    results = {name: data[name] for name in ("final", "influence", "samples", "sections", "table")}
    return DURATION.sub(b"", json.dumps(results, sort_keys=True).encode()), missing


def crash(scenario, recorded, tmp_path, monkeypatch):
    """What crashes may leave, what the page may show (nothing, what was there before, the results), and the results."""
    place = tmp_path / "undisturbed"
    shutil.copytree(recorded, place)
    monkeypatch.chdir(place)
    pages = [shown()[0]]
    assert [command(line) for line in scenario.before] == [0] * len(scenario.before)
    before = read(place)
    pages.append(shown()[0])
    with recording(place) as changes:
        assert command(scenario.command) == 0
    # a command that says it is done has nothing to lose but the line that confirms the last checksum
    assert {Path(name).name for name in unflushed(changes)} <= {checksums.LIST}
    pages.append(shown()[0])
    return list(crashes(before, changes)), pages, [digest(place / name, place) for name in scenario.results]


def check(scenario, states, pages, right, tmp_path, monkeypatch):
    """Every state can be read and shows nothing wrong; the command can be repeated or overwritten, with one result."""
    for number, (what, state) in enumerate(states):
        place = tmp_path / f"crashed-{number}"
        write(place, {**state, **LEFT})
        monkeypatch.chdir(place)
        page, missing = shown()
        assert page in pages or missing, what
        if command(scenario.command):
            assert command(scenario.command, "--overwrite") == 0, what
        assert [digest(place / name, place) for name in scenario.results] == right, what
        assert shown()[0] == pages[-1], what
        assert command("check run") == 0, what


@pytest.mark.parametrize("name", ["other influence", "reward", "forget another", "report again"])
def test_the_power_may_fail_once(name, recorded, tmp_path, monkeypatch):
    states, *right = crash(SCENARIOS[name], recorded, tmp_path, monkeypatch)
    check(SCENARIOS[name], [states[len(states) // 2]], *right, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_the_power_may_fail_at_any_moment(scenario, recorded, tmp_path, monkeypatch):
    check(scenario, *crash(scenario, recorded, tmp_path, monkeypatch), tmp_path, monkeypatch)
