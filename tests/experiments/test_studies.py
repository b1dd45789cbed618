"""Every study has its command, and the page of a study asks the question that the study asks."""

import runpy
import subprocess
import sys
from importlib import import_module

import pytest

import cascadice_experiments
from cascadice.report.page.studies import STUDIES

COMMANDS = ("alignment", "anomalies", "collaboration", "incentives", "initialisation", "unlearning")


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_asks_the_question_of_the_study(name):
    study = import_module(f"cascadice_experiments.{name}")
    assert study.__doc__.partition("\n")[0] == STUDIES[name]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests import it, too
@pytest.mark.parametrize("name", COMMANDS)
def test_every_study_is_a_command(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"cascadice_experiments.{name}", run_name="__main__")
    assert not stopped.value.code
    assert "--data-root DIR" in capsys.readouterr().out
    assert f"python -m cascadice_experiments.{name}" in cascadice_experiments.__doc__


def test_a_study_whose_reader_leaves_ends_quietly():
    """As `head` does; so much is printed that the pipe cannot hold it."""
    code = (
        "import sys; from argparse import Namespace; from cascadice_experiments import study; "
        "sys.exit(study.run('long', lambda args: print('line\\n' * 100_000) or {}, Namespace(json=False)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)
    process.stderr.close()
