"""The alignment experiment: its figures mean what they say, and path integrals follow the truth best."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from influence.cases import small, window

from cascadice.influence import evaluate_on
from cascadice_experiments import data_sets
from cascadice_experiments.alignment import __main__ as command
from cascadice_experiments.alignment.measure import ESTIMATORS, influences
from cascadice_experiments.alignment.settings import SETTINGS, Setting, config_of

FIRST, ONE, TWO = "first order", "path-integrated, 1 point", "path-integrated, 2 points"


@pytest.fixture
def digits(monkeypatch, one_thread):
    monkeypatch.setattr(data_sets, "find", lambda root: ("digits", None))


@pytest.fixture
def cifar(monkeypatch):
    """As if CIFAR-10 were there, for what does not read it."""
    monkeypatch.setattr(data_sets, "find", lambda root: ("cifar10", None))


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_on_digits(digits, capsys):
    assert command.main(["--nodes", "8", "--hops", "2", "--every", "15", "--epochs", "3", "--json"]) == 0
    (found,) = last_line(capsys)["results"]
    assert (found["points"], found["rounds"]) == (16, 33)
    assert 0.3 < found["test_accuracy"] < 1
    one_hop, two_hops = found["results"]
    assert (one_hop["hops"], two_hops["hops"]) == (1, 2)
    for result in (one_hop, two_hops):
        assert result[TWO]["relative_rmse"] < result[FIRST]["relative_rmse"] / 5
        assert result[TWO]["pearson"] > 0.99


def test_several_settings_are_a_table_and_one_object(digits, capsys):
    changed = ["--hops", "1", "--every", "8", "--epochs", "0.5", "--nodes", "4", "--json"]
    assert command.main(["mlp-16-gelu", "mlp-16-relu", *changed]) == 0
    said = capsys.readouterr().out.splitlines()
    measured = json.loads(said[-1])["results"]
    assert [(found["activation"], found["nodes"]) for found in measured] == [("gelu", 4), ("relu", 4)]
    for found, line in zip(measured, said[-3:-1], strict=True):
        assert line.split()[:2] == [found["model"], found["activation"]]
        (result,) = found["results"]
        figures = [f"{result[name][what]:.4f}" for name in (FIRST, ONE, TWO) for what in ("pearson", "relative_rmse")]
        assert [word for word in line.split()[4:] if word != "/"][:6] == figures


def test_all_is_all(cifar, monkeypatch, capsys):
    measured = []
    monkeypatch.setattr(command, "_lines", lambda found: [])
    monkeypatch.setattr(command, "measure", lambda setting, *where: measured.append(setting))
    assert command.main(["--all", "--device", "cuda"]) == 0
    assert measured == [replace(setting, device="cuda") for setting in SETTINGS.values()]
    runs = {(s.model, s.batch_size, s.epochs, s.activation) for s in measured}
    trained = [("mlp", 128, 5.0), ("mlp", 16, 5.0), ("cnn", 128, 30.0)]
    assert runs == {(*run, activation) for run in trained for activation in ("relu", "gelu")}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_named_settings_are_measured_at_enough_points(setting):
    config = config_of(setting, "cifar10", None)
    assert config.per_node == 512
    rounds = setting.epochs * config.per_node // config.batch_size
    assert setting.nodes * (rounds // setting.every) >= 80
    assert setting.hops == 4
    assert (config.lr, config.init, config.topology) == (0.1, "shared", "exponential")
    pool = (f"pool={setting.pool}",) if setting.model == "cnn" else ()
    assert config.model_options == (f"activation={setting.activation}", *pool)


def test_a_device_is_used():
    assert config_of(Setting(device="cuda"), "cifar10", None).device == "cuda"


def test_fewer_hops_are_measured_on_the_way():
    network = small()
    rounds, evaluation = window(network, 3), evaluate_on(network)
    found = influences(network, rounds, evaluation)
    for name, estimate in ESTIMATORS.items():
        for hops in (1, 2, 3):
            wanted = estimate(network, rounds[:hops], evaluation).total
            torch.testing.assert_close(found[name][hops - 1], wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hops", "0"], "hops must be at least 1; found 0"),
        (["--every", "0"], "every must be at least 1; found 0"),
        (["--every", "26"], "the first scored round would be round 26; the run has 25"),
        (["--hops", "9", "--every", "8", "--epochs", "3"], "the first scored round would be round 16; the run has 15"),
        (["mlp-16-geluu"], "unknown setting 'mlp-16-geluu'. Did you mean 'mlp-16-gelu'?"),
        (["--activation", "rleu"], "unknown activation 'rleu'. Did you mean 'relu'?"),
    ],
)
def test_mistakes(digits, capsys, arguments, said):
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_needs_no_plots_and_no_scikit_learn():
    missing = ("sklearn", "matplotlib", "pandas", "PIL", "rich", "pyarrow")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import cascadice_experiments.alignment.__main__"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
