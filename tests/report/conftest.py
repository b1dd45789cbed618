"""Runs that pages are made of: trained once, and copied where a test changes them; a browser; quick live pages."""

import os
import shutil
from pathlib import Path

import pytest
from report import browser
from report.pages import ask_everything, train, write_everything

from cascadice.report import live
from cascadice.report.page import write
from cascadice.runs import journal


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("page") / "run")


@pytest.fixture(scope="session")
def asked(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked") / "run"
    shutil.copytree(trained, folder)
    ask_everything(folder)
    return folder


@pytest.fixture
def bare(trained, tmp_path):
    """A run without influence, which a test may change."""
    return shutil.copytree(trained, tmp_path / "bare")


@pytest.fixture
def run(asked, tmp_path):
    """A run with all kinds of influence, which a test may change."""
    return shutil.copytree(asked, tmp_path / "run")


@pytest.fixture(scope="session")
def shown(trained, asked, tmp_path_factory):
    """A run with everything a page can show: `report.html`, and `bare.html` without influence. Tests only read it."""
    folder = shutil.copytree(asked, tmp_path_factory.mktemp("shown") / "run")
    write(shutil.copytree(trained, folder.parent / "bare" / "run"))[0].rename(folder / "bare.html")
    write_everything(folder)
    write(folder)
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if browser.find() is None:
        pytest.skip(f"needs a browser: none of {', '.join(browser.NAMES)} is here (apt install chromium)")
    with browser.browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(chromium, shown):
    """The page, opened afresh; whatever a test does with it must leave no error behind."""
    chromium.open(shown / "report.html")
    yield chromium
    assert chromium.errors == []


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory):
    """The folder for screenshots."""
    place = Path(os.environ.get("CASCADICE_ARTEFACTS") or tmp_path_factory.mktemp("artefacts"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def quick_updates(monkeypatch, one_thread):
    """Live pages are updated as often as somebody asks, and close soon."""
    monkeypatch.setattr(journal, "UPDATE_SECONDS", 0.2)
    monkeypatch.setattr(live, "LINGER", 0.1)
    monkeypatch.setattr(journal, "pause_after", lambda seconds: 0.0)
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda _: None)
