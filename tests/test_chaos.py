"""A short slice of `make chaos`: every kind of fault once, on four real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def ran(module, *arguments):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_faults_of_every_kind_cost_no_survivor_a_round():
    ended = ran("chaos", "--faults", "21", "--at-least", "10", "--longest", "60")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every round of every process is the simulator's; no survivor lost a round" in ended.stdout


@pytest.mark.slow
def test_two_hosts_find_each_other_after_their_link_was_cut():
    ended = ran("chaos.hosts")
    if "skipped" in ended.stdout:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr
