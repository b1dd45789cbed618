"""Every study has its command, and a page that `cascadice report` makes of its files."""

import runpy
import subprocess
import sys
from importlib import import_module

import pytest

import cascadice_experiments
from cascadice.cli import main
from cascadice.report.page import collect_results
from cascadice_experiments import study

OF_RETRAINING = ("adam_epsilon", "cnn_learning_rate", "laws", "missing", "pairs", "repeatability", "roughness")
COMMANDS = ("alignment", "anomalies", "collaboration", "incentives", "initialisation", "unlearning")


# as each study writes them, cut short
RESULTS = {
    "anomalies": [
        {
            "name": "flip-128-0.1", "once": False, "accuracy": {"mean": 0.321, "sd": 0.0102, "most": 0.33},
            "auroc": {"detector": {"mean": 1.0, "sd": 0.0}, "distance": {"mean": 0.98765, "sd": 0.011}}, "delay": 3.0,
        },
        {"name": "honest-128-0.1", "once": False, "accuracy": {"mean": 0.322, "sd": 0.01}},
    ],
    "collaboration": [{"attack": "nobody", "nodes": 12, "seeds": [0, 1], "accuracy": {"krum": [0.25, 0.35]}}],
    "incentives": [
        {
            "part": "Shapley values", "nodes": 4, "roles": [["plain"]], "truth": [[0.1]], "found": {"horizon": [[0.2]]},
            "rows": {"horizon": {"spearman": {"mean": 0.9, "std": 0.1}}, "samples": {"spearman": {"mean": 0.1}}},
            "paid": {"horizon": {"plain": {"mean": 0.25, "std": 0.0}}}, "test_accuracy": {"mean": 0.542, "std": 0.06},
        },
    ],
    "unlearning": [{"level": "gossip", "seeds": 2, "distance": 0.887, "distance_deviation": 0.032, "lr": 0.1}],
}  # fmt: skip
TABLES = {
    "anomalies": {
        "name": "flip-128-0.1", "once": "no", "accuracy": "0.321 ± 0.01", "auroc: detector": "1",
        "auroc: distance": "0.9877 ± 0.011", "delay": "3",
    },
    "collaboration": {"attack": "nobody", "nodes": "12", "accuracy: krum": "0.3 ± 0.071"},
    "incentives": {
        "part": "Shapley values", "nodes": "4", "test accuracy": "0.542 ± 0.06", "of": "horizon",
        "spearman": "0.9 ± 0.1", "paid: plain": "0.25",
    },
    "unlearning": {"level": "gossip", "seeds": "2", "distance": "0.887 ± 0.032", "lr": "0.1"},
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_of_a_study_shows_its_table_figure_and_points(name, tmp_path, capsys):
    points, result = [{"setting": "flip", "delay": 3}], {"results": RESULTS[name]}
    study.write(tmp_path, name, "cpu", result, points, lambda path: path.write_text("<svg></svg>"))
    (found,) = collect_results(tmp_path)["results"]
    assert dict(zip(found["columns"], found["rows"][0], strict=True)) == TABLES[name]
    assert found["title"] == import_module(f"cascadice_experiments.{name}").__doc__.partition("\n")[0]
    assert found["command"] == f"python -m cascadice_experiments.{name}"
    assert found["made"].startswith("0 s on cpu (")
    assert found["points"]["words"] == {"setting": ["flip"]}
    assert found["picture"].startswith("data:image/")
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "rows; mean ± standard deviation where" in said
    assert f"wrote {tmp_path / 'report.html'}" in said


def test_rows_need_not_have_all_columns(tmp_path):
    study.write(tmp_path, "anomalies", "cpu", {"results": RESULTS["anomalies"]}, [], lambda path: path.touch())
    assert collect_results(tmp_path)["results"][0]["rows"][1] == ["honest-128-0.1", "no", "0.322 ± 0.01", "", "", ""]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # other tests import it, too
@pytest.mark.parametrize("name", COMMANDS)
def test_every_study_is_a_command(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"cascadice_experiments.{name}", run_name="__main__")
    assert not stopped.value.code
    assert "--data-root DIR" in capsys.readouterr().out
    assert f"python -m cascadice_experiments.{name}" in cascadice_experiments.__doc__


@pytest.mark.parametrize("name", [*COMMANDS, "retraining", *(f"retraining.{name}" for name in OF_RETRAINING)])
def test_help_states_the_default_of_every_flag(name):
    try:
        flags = import_module(f"cascadice_experiments.{name}.__main__").FLAGS
    except ModuleNotFoundError:
        flags = import_module(f"cascadice_experiments.{name}").FLAGS
    parser = study.parser(name, flags)
    assert "[None]" not in parser.format_help()
    for flag in parser._actions:
        has_default = flag.option_strings and flag.nargs != 0 and flag.default not in (None, float("inf"))
        assert not has_default or "[%(default)s]" in flag.help, flag.option_strings


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
