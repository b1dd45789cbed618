"""Recorded sweeps overwrite what they gave before, and read where tensors were: nobody may notice. Without a GPU."""

from dataclasses import replace

import pytest
import torch
from influence.cases import CLOSE, small
from torch.utils._pytree import tree_flatten, tree_map

from cascadice import influence
from cascadice.engine import execution, graphs, simulate


class Replayed:
    """A graph without a GPU: does the work again, into the memory of its first results."""

    def __init__(self, work, found):
        self.work, self.found = work, found

    def replay(self):
        for old, new in zip(tree_flatten(self.found)[0], tree_flatten(self.work())[0], strict=True):
            old.copy_(new)


def record(work, pool=None):
    found = tree_map(lambda tensor: torch.full_like(tensor, torch.nan), work())  # recording computes nothing
    return Replayed(work, found), found


@pytest.fixture
def recording(monkeypatch):
    """Sweeps are recorded as on CUDA; gives how many graphs there are."""
    made = []
    monkeypatch.setattr(graphs, "record", lambda *a: made.append(record(*a)) or made[-1])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    monkeypatch.setattr(execution, "_on_cuda", lambda learner: True)
    return made


def found(network, rounds=14, hops=2):
    yardstick = influence.judge(network)
    live = simulate(network, rounds, window=hops, taped=True)
    ways = {"kinds": ["first-order", "shares"], "samples": True}
    scored = list(influence.watch(network, live, yardstick, hops=hops, **ways))
    swept = list(influence.full_horizon(network, reversed(list(simulate(network, rounds))), yardstick))
    return [
        *(value for one in scored for value in (*one.samples.values(), *one.participants.values())),
        *(value for one in swept for value in (one.samples, one.participants)),
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_recorded_sweeps_change_nothing(optimizer, recording):
    network = small(optimizer=optimizer, lr=0.1)
    expected = found(network)
    assert not recording
    for here, there in zip(found(replace(network, strategy="compile")), expected, strict=True):
        torch.testing.assert_close(here, there, **CLOSE)
    assert recording


def test_tensors_that_come_again_are_read_where_they_are(recording):
    run = graphs.recorded(lambda pair: pair[0] + pair[1])
    here = (torch.ones(3), torch.ones(3))
    for turn in range(4):
        here[0].fill_(turn)
        assert run(here).tolist() == [turn + 1.0] * 3
    assert len(recording) == 2  # one to be copied to, one that reads in place
    for turn in range(30):
        there = (torch.full((3,), float(turn)), torch.ones(3))
        assert run(there).tolist() == [turn + 1.0] * 3
    assert len(recording) <= 1 + graphs.MOST
