"""Processes say the same before they do anything together, and what they say is not trusted."""

import platform
import shutil
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runs.distributed.worlds import CONFIG, fit_for_threads, one_by_one, together, trained

import cascadice
from cascadice import data, files
from cascadice.cli import main
from cascadice.report.page import collect
from cascadice.runs import train
from cascadice.runs.ask import ask
from cascadice.runs.distributed import processes
from cascadice.runs.distributed.processes import World, joined
from cascadice.runs.distributed.shared_facts import facts_of_network
from cascadice.runs.distributed.together import check_network
from cascadice.runs.folder import check_process, read_manifest
from cascadice.runs.question import Question

assert fit_for_threads  # a fixture
RANKS = ("rank-000", "rank-001")
SMALL = replace(CONFIG, nodes=2, rounds=1, per_node=8)


def test_processes_that_are_asked_different_questions_say_so(tmp_path):
    _, errors = together(2, lambda world: ask(tmp_path, Question(hops=1 + world.rank), quiet=True, world=world))
    said = "all processes must agree; the question's hops is 2 in process 1, 1 in process 0. Start them all alike."
    assert [str(error) for error in errors] == [said, said]


def test_processes_that_are_given_different_commands_say_so(tmp_path):
    def work(world):
        if world.rank:
            ask(tmp_path, Question(), quiet=True, world=world)
        else:
            train.run(SMALL, tmp_path, quiet=True, world=world)

    _, errors = together(2, work)
    said = (
        "all processes must agree; the command is 'influence' in process 1, 'run' in process 0. Start them all alike."
    )
    assert [str(error) for error in errors] == [said, said]


def test_what_only_one_process_says_is_a_difference_too():
    _, errors = together(2, lambda world: world.agree({"hops": 2} if world.rank else {}))
    assert {str(error) for error in errors} == {
        "all processes must agree; hops is 2 in process 1, None in process 0. Start them all alike."
    }


def test_mixing_matrices_are_compared_by_what_they_hold(tmp_path):
    for rank in range(2):
        np.savetxt(tmp_path / f"W{rank}.csv", np.eye(5) if rank else np.full((5, 5), 0.2), delimiter=",")

    def work(world):
        config = replace(CONFIG, nodes=None, mixing=str(tmp_path / f"W{world.rank}.csv"))
        train.run(config, tmp_path / "run", quiet=True, world=world)

    _, errors = together(2, work)
    assert ["all processes must agree; the mixing matrix is" in str(error) for error in errors] == [True, True]
    assert not (tmp_path / "run").exists()


def test_versions_are_compared_before_anything_is_done(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    told = []
    world = SimpleNamespace(rank=0, agree=told.append, leave=lambda: None)
    monkeypatch.setattr(processes, "_joined", lambda *given: world)
    with joined() as found:
        assert found is world
        names = ("cascadice", "torch", "Python")
        versions = (cascadice.__version__, torch.__version__, platform.python_version())
        assert told == [{f"the version of {name}": version for name, version in zip(names, versions, strict=True)}]


def test_a_fact_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(processes, "LARGEST", 10)
    _, errors = together(2, lambda world: world.tell("x" * 20 * world.rank))
    assert {str(error) for error in errors} == {"process 1 sent 22 bytes; at most 10 were expected."}


def test_a_folder_with_other_participants_is_refused(tmp_path):
    files.write_json(tmp_path / "manifest.json", {"process": {"rank": 0, "of": 2, "members": [0, 1, 2]}})
    world = SimpleNamespace(rank=0, size=2, alone=False)
    check_process(tmp_path, SimpleNamespace(members=(0, 1, 2)), world)
    with pytest.raises(ValueError, match=r"holds participants \[0, 1, 2\]; this process has \[0, 1\]"):
        check_process(tmp_path, SimpleNamespace(members=(0, 1)), world)


@pytest.mark.usefixtures("fit_for_threads")
def test_folders_of_different_runs_are_not_taken_for_one(tmp_path, capsys):
    trained(tmp_path / "run", SMALL)
    trained(tmp_path / "other", replace(SMALL, seed=1))
    mixed = tmp_path / "mixed"
    for run, rank in (("run", "rank-000"), ("other", "rank-001")):
        shutil.copytree(tmp_path / run / rank, mixed / rank)
    wrong = "all processes must have folders of one run; seed is 1 in rank-001, 0 in rank-000. Put back"
    _, errors = together(2, lambda world: ask(mixed, Question(), quiet=True, world=world))
    assert [str(error)[: len(wrong)] for error in errors] == [wrong, wrong]
    assert main(["check", str(mixed), "--quiet"]) == 1
    assert f"wrong: {wrong}" in " ".join(capsys.readouterr().err.split())
    assert any(note.startswith(wrong) for note in collect(mixed)["notes"])
    assert not collect(tmp_path / "other")["notes"]


@pytest.mark.usefixtures("fit_for_threads")
def test_two_runs_of_the_same_settings_are_told_apart(tmp_path, capsys):
    """They may have departed from their plan in different ways."""
    for name in ("run", "other"):
        trained(tmp_path / name, SMALL)
    ids = [read_manifest(tmp_path / run / rank)["run_id"] for run, rank in product(("run", "other"), RANKS)]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    mixed = tmp_path / "mixed"
    for run, rank in zip(("run", "other"), RANKS, strict=True):
        shutil.copytree(tmp_path / run / rank, mixed / rank)
    wrong = f"all processes must have folders of one run; run_id is '{ids[2]}' in rank-001, '{ids[0]}' in rank-000."
    _, errors = together(2, lambda world: ask(mixed, Question(), quiet=True, world=world))
    assert [str(error).startswith(wrong) for error in errors] == [True, True]
    with pytest.raises(ValueError, match=f"run_id is '{ids[2]}' in rank-001"):
        trained(mixed, replace(SMALL, rounds=2), resume=True)
    assert main(["check", str(mixed), "--quiet"]) == 1
    assert wrong in " ".join(capsys.readouterr().err.split())
    assert any(note.startswith(wrong) for note in collect(mixed)["notes"])


@pytest.mark.usefixtures("fit_for_threads")
def test_runs_of_versions_without_an_id_are_read_and_get_one_when_resumed(tmp_path):
    trained(tmp_path, SMALL)
    for rank in RANKS:
        manifest = read_manifest(tmp_path / rank)
        del manifest["run_id"]
        files.write_json(tmp_path / rank / "manifest.json", manifest)
    _, errors = together(2, lambda world: ask(tmp_path, Question(), quiet=True, world=world))
    assert errors == [None, None]
    assert not collect(tmp_path)["notes"]
    trained(tmp_path, replace(SMALL, rounds=2), resume=True)
    one, other = (read_manifest(tmp_path / rank)["run_id"] for rank in RANKS)
    assert one == other


def with_other_labels():
    digits = data.digits()
    return replace(digits, train=replace(digits.train, y=digits.train.y.flip(0)))


def with_other_parameters(network):
    return replace(network, initial=network.initial._replace(theta=network.initial.theta * 1.01))


class Hidden(torch.nn.Module):
    """A model whose activation is not printed."""

    def __init__(self, activation):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 8), torch.nn.Linear(8, 10)
        self._activation = activation

    def forward(self, x):
        return self.second(self._activation(self.first(x.flatten(1))))


@pytest.mark.usefixtures("fit_for_threads")
def test_a_process_with_another_activation_is_refused():
    def errors_of(*activations):
        def check(world):
            modules = [Hidden(activations[world.rank]) for _ in range(2)]
            network = one_by_one(SMALL, processes=2, rank=world.rank)
            learner = replace(network.learner, training=modules[0], evaluating=modules[1].eval())
            check_network(world, replace(network, learner=learner), "data", shared=True)

        return together(2, check)[1]

    assert errors_of(torch.tanh, torch.tanh) == [None, None]
    assert {str(error) for error in errors_of(torch.tanh, torch.relu)} == {
        "all processes must have the same model; for the same parameters and inputs, its outputs in process 1 differ "
        "from those in process 0. Start all of them with the same code."
    }


@pytest.mark.usefixtures("fit_for_threads")
@pytest.mark.parametrize(
    ("changed", "settings", "why"),
    [
        (None, {"data": f"{__name__}:with_other_labels"}, "all processes must agree; the digest of the data is"),
        (
            with_other_parameters,
            {},
            "must start with the same parameters, because --init is shared; those of process 1 differ",
        ),
        (None, {"model_options": ("hidden=[9]",)}, r"the shape of .*weight is [9, 64] in process 1, [8, 64] in"),
        (None, {"model_options": ("hidden=[8]", "activation=tanh")}, "printed model is '(2): Tanh()' in process 1"),
    ],
)
def test_processes_with_other_data_or_models_do_not_train_together(tmp_path, monkeypatch, changed, settings, why):
    """As with `--data package.module:make`, which may make something else on another machine."""

    def built(config, rank, **more):
        network = one_by_one(replace(config, **settings) if rank else config, rank=rank, **more)
        return changed(network) if changed and rank else network

    monkeypatch.setattr(train, "build", built)
    _, errors = together(2, lambda world: train.run(SMALL, tmp_path, quiet=True, world=world))
    for error in errors:
        assert all(part in str(error) for part in why.split(".*"))
    assert not list(tmp_path.glob("*/config.json"))


def test_where_a_model_lies_in_memory_is_no_difference():
    def named(address):
        model = torch.nn.Linear(1, 1)
        model.extra_repr = lambda: f"<function f at {address}>"
        return facts_of_network(SimpleNamespace(learner=SimpleNamespace(training=model)), "")

    assert named("0x7f01") == named("0x7f02") != named("g")


def test_other_numbers_of_participants_are_said_to_differ(tmp_path):
    """Also where one of the numbers is too small for so many processes."""
    _, errors = together(
        2, lambda world: train.run(replace(SMALL, nodes=2 - world.rank), tmp_path, quiet=True, world=world)
    )
    assert ["all processes must agree; nodes is 1 in process 1, 2 in" in str(error) for error in errors] == [True] * 2


def test_what_a_process_told_before_it_failed_is_still_heard():
    """However quickly it fails: here, between two questions to the store."""
    told = {"told/0/0": b"0"}

    def answers(keys):
        known = all(key in told for key in keys)
        if keys != ["told/0/0"]:
            told.update({"told/0/1": b"1", "failed/1": b"in a hurry"})
        return known

    store = SimpleNamespace(check=answers, get=told.get, set=told.__setitem__)
    assert World(0, 2, None, store).tell(0) == [0, 1]
