"""A slice of `make torture`: some attacks of every kind."""

import os

import pytest
from torture.__main__ import KINDS, attack
from torture.outcomes import Attempt, Outcome, Tally
from torture.stage import staged

SECONDS = float(os.environ.get("TORTURE_SECONDS", "20"))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="attacks fork and wait as Linux does")
def test_a_slice_of_the_attacks_is_held() -> None:
    with staged() as stage:
        tally = attack(stage, list(KINDS), SECONDS, seed=int(os.environ.get("TORTURE_SEED", "1")))
    assert tally.failures == []
    assert set(tally.counts) | set(tally.skipped) == set(KINDS)


def test_the_table_counts_what_succeeded() -> None:
    tally = Tally()
    tally.add("kills", Attempt("a", Outcome.HELD))
    tally.add("kills", Attempt("b", Outcome.LOST, "gone"))
    tally.skipped["full disks"] = "only root may mount small disks"
    assert "kills                        2             0             0             1" in str(tally)
    assert "skipped: only root may mount small disks" in str(tally)
    assert [attempt.what for _, attempt in tally.failures] == ["b"]
