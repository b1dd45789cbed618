"""`cascadice reward` and `cascadice choose --by contribution` go on where they were stopped."""

import json
from contextlib import contextmanager

import pytest

from cascadice.cli import main
from cascadice.files import write_json
from cascadice.runs import sweeps

RUN = ["run", "--nodes", "3", "--model-options", "hidden=[4]", "--rounds", "4", "--record", "all", "--quiet"]
COMMANDS = {"reward": ["--budget", "9", "--samples"], "choose": ["--by", "contribution"]}
PLAYED_AND_SCORED = 3 * (4 + 4)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        assert main([*RUN, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def call(recorded, tmp_path, monkeypatch):
    """Call a command on that run; after so many rounds somebody presses Ctrl-C."""
    monkeypatch.setattr("cascadice.pictures.charts.plot", lambda charts, path, title: write_json(path, {}))

    def run(command, *arguments, stop=0, place="out"):
        ledger = ["--ledger", str(tmp_path / place / "ledger")] if command == "reward" else []
        monkeypatch.setattr(sweeps, "counting", shown := counting(stop))
        code = main([command, str(recorded), *COMMANDS[command], "--out", str(tmp_path / place), *ledger, *arguments])
        return code, shown

    return run


def counting(stop):
    """A progress display that is told of every round."""

    @contextmanager
    def shown(total, console, doing):
        shown.total = total

        def one_more(done):
            shown.count += 1
            if shown.count == stop:
                raise KeyboardInterrupt

        yield one_more

    shown.count = 0
    return shown


def results(folder):
    (path,) = folder.glob("*.json")
    return {name: value for name, value in json.loads(path.read_text()).items() if name not in ("ledger", "findings")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stopped_command_goes_on_where_it_was(call, command, tmp_path, capsys):
    code, whole = call(command, place="whole")
    assert (code, whole.count) == (0, PLAYED_AND_SCORED)
    code, _ = call(command, stop=15)
    assert code == 130
    assert "stopped. What was computed so far is kept; the same command continues." in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.json"))
    code, rest = call(command)
    assert (code, rest.count) == (0, rest.total)
    assert rest.count <= PLAYED_AND_SCORED - 15 + 4  # the run at one weight is played once more
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert not (tmp_path / "out" / "unfinished").exists()


def test_sweeps_of_other_settings_are_not_used(call, tmp_path, capsys):
    assert call("reward", stop=15)[0] == 130
    code, again = call("reward", "--eval-samples", "30")
    assert (code, again.count) == (0, PLAYED_AND_SCORED)
    assert "unfinished held sweeps of another run or of other settings: they are computed again" in (
        capsys.readouterr().out
    )
    assert call("reward", "--eval-samples", "30", place="whole")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_what_happens_to_be_called_unfinished_is_left_alone(call, tmp_path):
    (tmp_path / "out" / "unfinished").mkdir(parents=True)
    (tmp_path / "out" / "unfinished" / "thesis.tex").touch()
    assert call("reward", "--kind", "horizon")[0] == 0
    assert (tmp_path / "out" / "unfinished" / "thesis.tex").exists()
