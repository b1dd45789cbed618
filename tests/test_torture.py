"""A slice of `make torture`: some attacks of every kind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.__main__ import KINDS
from torture.outcomes import Attempt, Outcome, Tally

MINUTES = "2"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="attacks fork and wait as Linux does")
def test_a_slice_of_the_attacks_is_held() -> None:
    # in a process of its own: attacks leave out pictures, and fork
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "torture", "--minutes", MINUTES, "--seed", "1", "--jobs", "1"]
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"\n{kind} " in done.stdout for kind in KINDS)


def test_the_table_counts_what_succeeded() -> None:
    tally = Tally()
    tally.add("kills", Attempt("a", Outcome.HELD))
    tally.add("kills", Attempt("b", Outcome.LOST, "gone"))
    tally.skipped["full disks"] = "only root may mount small disks"
    assert "kills                        2             0             0             1" in str(tally)
    assert "skipped: only root may mount small disks" in str(tally)
    assert [attempt.what for _, attempt in tally.failures] == ["b"]
