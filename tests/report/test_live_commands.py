"""Live pages from the command line: `run --live`, and `view` of a run that has ended."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from report.watching import get, is_gone

from cascadice.cli import main
from cascadice.commands.view import browse
from cascadice.report import live

pytestmark = pytest.mark.usefixtures("quick_updates")


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
