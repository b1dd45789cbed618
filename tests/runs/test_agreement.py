"""Processes say the same before they do anything together, and what they say is not trusted."""

import platform
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runs.worlds import CONFIG, together

import cascadice
from cascadice import files
from cascadice.runs import processes, train
from cascadice.runs.ask import Question, ask
from cascadice.runs.binding import check_process
from cascadice.runs.processes import joined


def test_processes_that_are_asked_different_questions_say_so(tmp_path):
    _, errors = together(2, lambda world: ask(tmp_path, Question(hops=1 + world.rank), quiet=True, world=world))
    assert ["all processes must agree; the question is" in str(error) for error in errors] == [True, True]


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
    assert {str(error) for error in errors} == {"process 1 told 22 bytes; at most 10 were expected."}


def test_a_folder_with_other_participants_is_refused(tmp_path):
    files.write_json(tmp_path / "manifest.json", {"process": {"rank": 0, "of": 2, "members": [0, 1, 2]}})
    world = SimpleNamespace(rank=0, size=2, alone=False)
    check_process(tmp_path, SimpleNamespace(members=(0, 1, 2)), world)
    with pytest.raises(ValueError, match=r"holds participants \[0, 1, 2\]; this process has \[0, 1\]"):
        check_process(tmp_path, SimpleNamespace(members=(0, 1)), world)
