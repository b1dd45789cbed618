"""Memory is forecast before it is taken; `benchmarks/memory.py` compares forecasts with what Linux measures."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cascadice import models, optimizers
from cascadice.cli import main
from cascadice.engine.step_memory import bytes_of_step
from cascadice.influence import retraining
from cascadice.runs import forecast, memory
from cascadice.runs.config import Config, build
from cascadice.runs.question import Question

CPU = torch.device("cpu")
TINY = ["--nodes", "3", "--model-options", "hidden=[4]", "--rounds", "2", "--quiet"]
SMALL = Config(nodes=4, model_options=("hidden=[8]",), rounds=4, epochs=None)


def total(parts):
    return sum(part.bytes for part in parts)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--local-steps", "1000000000000"], "the batches of 1,000,000,000,000 local steps take"),
        (["--model-options", "hidden=[100000,100000]"], "the parameters of 16 participants, 10,007,600,010 each, take"),
        (
            ["--nodes", "100000", "--topology", "complete", "--model-options", "hidden=[1]"],
            "this graph of 100000 participants would take",
        ),
        (["--nodes", "100000", "--partition", "with-replacement", "--per-node", "32"], "the parameters of 100,000"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch, flags, words):
    monkeypatch.setenv(memory.VARIABLE, "30")
    assert main(["run", "--rounds", "2", *flags, "--quiet", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "GB are free. Use " in said
    assert said.endswith("or, to try anyway, set CASCADICE_MEMORY=inf.\n")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cascadice.runs.journal.plot", lambda journal: None)
        assert main(["run", *TINY, "--record", "all", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["influence", "--kind", "truth"], "this question would take about"),
        (["influence", "--kind", "whole-run"], "whole-run influence would take about"),
        (["validate", "--keep", "0.5", "--of", "samples"], "validation would take about"),
        (["run", "--out", "again"], "this run would take about"),
    ],
)
def test_other_commands_are_checked_too(recorded, capsys, monkeypatch, tmp_path, command, words):
    monkeypatch.chdir(tmp_path)
    enough = iter([float("inf")] * 2)  # for the network and its graph
    monkeypatch.setattr(memory, "free", lambda device: next(enough, 0.0))
    assert main([command[0], str(recorded), *command[1:], "--quiet"]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_whoever_insists_may_try(tmp_path, monkeypatch):
    monkeypatch.setattr("cascadice.runs.journal.plot", lambda journal: None)
    monkeypatch.setenv(memory.VARIABLE, "0.00001")
    assert main(["run", *TINY, "--out", str(tmp_path / "run")]) == 2
    monkeypatch.setenv(memory.VARIABLE, "inf")
    assert main(["run", *TINY, "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("given", ["lots", "nan", "-1", "-inf"])
def test_a_limit_that_is_no_number(monkeypatch, given):
    monkeypatch.setenv(memory.VARIABLE, given)
    with pytest.raises(ValueError, match=rf"must be a number of gigabytes, at least 0, or inf; found '{given}'"):
        memory.free(CPU)


def test_free_is_the_least_of_what_machine_groups_and_limits_leave(monkeypatch, tmp_path):
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.free(CPU) == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert memory.free(CPU) == 5000 * 1024
    for name, text in {"max": "4000000", "current": "1500000", "stat": "anon 7\ninactive_file 500000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.free(CPU) == 3_000_000
    (tmp_path / "memory.max").write_text("max")
    assert memory.free(CPU) == 5000 * 1024
    monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (10**12, 10**12))
    (tmp_path / "meminfo").unlink()
    assert 0 < memory.free(CPU) < 10**12


def test_parameters_are_counted_without_making_them():
    for name, options in (("mlp", {"hidden": (5, 6)}), ("cnn", {}), ("resnet18", {"width": 4})):
        made = models.build(name, (1, 8, 8), 10, **options)
        assert models.count_parameters(name, (1, 8, 8), 10, **options) == sum(p.numel() for p in made.parameters())
    with pytest.raises(ValueError, match=r"unknown option of mlp 'hiden'. Did you mean 'hidden'"):
        models.count_parameters("mlp", (4,), 2, hiden=3)
    with pytest.raises(ValueError, match=r"mlp would be larger than any memory: .*\. Choose smaller options"):
        models.count_parameters("mlp", (4,), 2, hidden=(10**12, 10**12))


@pytest.mark.parametrize(("name", "numbers"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_optimizer_state_is_counted(name, numbers):
    assert forecast.state_of(optimizers.build(name)) == numbers


def test_forecasts_grow_with_what_is_asked(monkeypatch):
    network = build(SMALL)
    larger = build(replace(SMALL, nodes=8))
    run = total(forecast.of_training(network, 4))
    assert total(forecast.of_training(larger, 4)) > 1.5 * run
    assert total(forecast.of_training(network, 4, window=3)) > run
    assert total(forecast.of_training(network, 10**6)) > 10**9  # metrics of that many rounds
    asked = [total(forecast.of_influence(network, Question((kind,), hops=2))) for kind in ("first-order", "truth")]
    assert min(asked) > network.initial.theta.nbytes
    fewer = total(forecast.of_influence(network, Question(("truth",), hops=2, eval_samples=1)))
    assert fewer < asked[1]
    swept = [
        total(forecast.of_whole_run(network, 4, Question(("whole-run-shares",), samples=samples)))
        for samples in (False, True)
    ]
    assert swept[0] < swept[1]
    few, many = (total(forecast.of_retraining(network, 4, 10, networks)) for networks in (2, 48))
    assert many > 10 * few  # all of them are trained side by side
    monkeypatch.setattr(retraining, "MEMORY", 1)  # one at a time
    assert forecast.of_retraining(network, 4, 10, 48) == forecast.of_retraining(network, 4, 10, 1)


def test_all_parts_count_and_the_largest_is_named(monkeypatch):
    monkeypatch.setenv(memory.VARIABLE, "1")
    parts = [memory.Need("rounds", 6 * 10**8, "Use fewer"), memory.Need("work", 5 * 10**8, "Use less")]
    memory.check("it", parts[:1], CPU)
    words = r"it would take about 1\.1 GB of memory, of which rounds take 0\.6 GB; 1 GB are free\. Use fewer; or"
    with pytest.raises(ValueError, match=words):
        memory.check("it", parts, CPU)


def test_forecasts_have_the_size_of_what_is_surely_there():
    """Each part between what it holds at the least, by hand, and a few times that."""
    network = build(replace(SMALL, optimizer="adam", record="all"))
    nodes, parameters, samples = 4, 64 * 8 + 8 + 8 * 10 + 10, len(network.data.test)
    theta, everybody = 4 * nodes * parameters, 12 * nodes * parameters  # parameters, and with Adam's moments
    rounds, step = forecast.of_training(network, 4, window=3)[0], bytes_of_step(network)
    drawn, links = forecast.of_network(nodes, parameters, 2, 4, 5, 16)[1], forecast.of_graph("ring", 100, {})[0]
    carried = forecast.of_network(nodes, parameters, 2, 4, 5, 16)[0]
    kept, sweep, scores = forecast.of_whole_run(network, 4, Question(("whole-run-shares",)))
    recorded = forecast.of_question(network, Question(("truth",), hops=2))[0]
    least = [
        (rounds, 5 * theta), (memory.Need("a step", step, ""), 4 * 3 * parameters), (carried, everybody),
        (drawn, 8 * nodes * 5 * 16), (links, 2 * 100 * 100), (kept, 8 * theta), (sweep, 4 * samples * 10),
        (scores, 8 * 3 * 4 * nodes), (recorded, 4 * theta),
    ]  # fmt: skip
    assert [(part.name, part.bytes) for part, size in least if not size <= part.bytes <= 100 * size] == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_a_forecast_is_near_what_is_taken():
    bench = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    command, one = [sys.executable, str(bench), "--one", "mlp, small"], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=one)
    expected, taken = json.loads(done.stdout.splitlines()[-1])
    assert 0.7 < expected / taken < 1.5
