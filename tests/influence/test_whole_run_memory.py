"""How many rounds whole-run influence holds at once, counted; what a process takes depends on the machine."""

import math
import weakref

import pytest
from influence.cases import small

from cascadice.engine import backwards as engine_backwards
from cascadice.influence import evaluate_on
from cascadice.influence.weighted_run import WeightedRun
from cascadice.influence.whole_run import sweep


@pytest.mark.parametrize("rounds", [16, 64, 256])
def test_without_a_recording_it_holds_about_two_roots_of_the_rounds(rounds, monkeypatch):
    """Checkpoints and rounds, each of which has everybody's parameters."""
    segment, simulate = engine_backwards.segment, engine_backwards.simulate
    checkpoints, alive, held = {}, [], []

    def watched(*args, **more):
        for round_ in simulate(*args, **more):
            alive.append(weakref.ref(round_.after.theta))
            yield round_

    def count():
        alive[:] = [ref for ref in alive if ref() is not None]
        held.append(len(checkpoints) + len({id(ref()) for ref in alive}))

    monkeypatch.setattr(engine_backwards, "segment", lambda network, rounds: segment(network, rounds, memory=0))
    monkeypatch.setattr(engine_backwards, "simulate", watched)
    network = small(batch_size=2)
    run = WeightedRun(network, rounds, evaluate_on(network), samples=False, played=count)
    assert len(list(sweep(run, saved=checkpoints))) == rounds
    root = math.isqrt(rounds)
    assert 2 * root - 2 <= max(held) <= 2 * root + 2  # √T − 2 checkpoints, √T rounds, and what is being computed
    assert checkpoints == {}
