"""A short slice of `make chaos`: every kind of fault once, on four real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.verify import left_out
from chaos.worker import whole

TESTS = Path(__file__).parent
ROUNDS = 60


def ran(module, *arguments):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)


def test_faults_of_every_kind_cost_no_survivor_a_round():
    ended = ran("chaos", "--faults", "21", "--at-least", "10", "--longest", "110", "--launched", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every round of every process is the simulator's; no survivor lost a round" in ended.stdout


def test_the_network_is_the_same_in_every_run():
    one, other = (whole.__wrapped__("ring").initial.theta for _ in range(2))
    assert one.equal(other)


@pytest.mark.slow
def test_a_process_that_torchrun_started_is_killed_and_every_folder_is_the_simulators():
    ended = ran("chaos", "--faults", "1", "--at-least", "0", "--launched", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"killed under torchrun \(process\) +1 +0 .* 1/1", ended.stdout)


@pytest.mark.slow
def test_two_hosts_find_each_other_after_their_link_was_cut():
    ended = ran("chaos.hosts")
    if "skipped" in ended.stdout:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr


def logs(left_out, happened=()):
    """What four processes wrote down that left some rounds out, as (process, round), and what happened to them."""
    found = [[{"t": t, "rows": []} for t in range(ROUNDS) if (rank, t) not in left_out] for rank in range(4)]
    for rank, line in happened:
        found[rank].append(line)
    return found


KILLED = {"t": 20, "fault": "killed at rest"}
AWAY = {(rank, t) for rank in (1, 3) for t in range(21, 30)}
CAUGHT_UP = {(2, 33), (2, 34)}


@pytest.mark.parametrize(
    ("graph", "absent", "happened", "found"),
    [
        ("all", {(2, 33)}, [], ("lost", [(2, 33)])),
        ("all", {(2, 33)}, [(2, {"t": 32, "held": 0.5})], ("own", [(2, 33)])),
        ("ring", AWAY | CAUGHT_UP, [(1, KILLED), (3, KILLED)], ("cut_off", sorted(CAUGHT_UP))),
        ("all", AWAY | CAUGHT_UP, [(1, KILLED), (3, KILLED)], ("lost", sorted(CAUGHT_UP))),
        ("ring", {(2, 33)}, [(1, KILLED)], ("lost", [(2, 33)])),  # the other way round the ring was whole
    ],
)
def test_only_who_was_cut_off_from_the_others_may_leave_rounds_out(graph, absent, happened, found):
    why, expected = found
    gone = left_out(logs(absent, happened), ROUNDS, graph)
    assert sorted(getattr(gone, why)) == expected
    assert why == "lost" or not gone.lost
