"""Recorded sweeps overwrite what they gave before, and read where tensors were: nobody may notice. Without a GPU."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from influence.cases import CLOSE, small
from torch.utils._pytree import tree_flatten, tree_map

from cascadice import influence, topology
from cascadice.engine import Behaviour, simulate
from cascadice.engine.fast import captured_rounds
from cascadice.engine.fast import cuda_graphs as graphs
from cascadice.engine.fast import rows as execution


class Replayed:
    """A graph without a GPU: does the work again, into the memory of its first results."""

    def __init__(self, work, found):
        self.work, self.found = work, found

    def replay(self):
        for old, new in zip(tree_flatten(self.found)[0], tree_flatten(self.work())[0], strict=True):
            if isinstance(old, torch.Tensor):
                old.copy_(new)


def record(work, pool=None):
    found = tree_map(_blank, _inside(work)())  # capturing computes nothing
    return Replayed(_inside(work), found), found


def _blank(leaf):
    return torch.full_like(leaf, torch.nan) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _inside(work):
    def run():
        outer = graphs._capturing.set(True)
        try:
            return work()
        finally:
            graphs._capturing.reset(outer)

    return run


@pytest.fixture
def recording(monkeypatch):
    """Sweeps are recorded as on CUDA; gives how many graphs there are."""
    made = []
    for module in (graphs, captured_rounds):
        monkeypatch.setattr(module, "capture", lambda *a: made.append(record(*a)) or made[-1])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    monkeypatch.setattr(execution, "_on_cuda", lambda learner: True)
    monkeypatch.setattr(captured_rounds, "should_capture", lambda network: network.strategy == "compile")
    return made


def found(network, rounds=9, hops=2):
    yardstick = influence.evaluate_on(network)
    live = simulate(network, rounds, window=hops, taped=True)
    ways = {"kinds": ["first-order", "shares"], "samples": True}
    scored = list(influence.score_rounds(network, live, yardstick, hops=hops, **ways))
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
    run = graphs.captured_call(lambda pair: pair[0] + pair[1])
    here = (torch.ones(3), torch.ones(3))
    for turn in range(4):
        here[0].fill_(turn)
        assert run(here).tolist() == [turn + 1.0] * 3
    assert len(recording) == 2  # one to be copied to, one that reads in place
    for turn in range(30):
        there = (torch.full((3,), float(turn)), torch.ones(3))
        assert run(there).tolist() == [turn + 1.0] * 3
    assert len(recording) <= 1 + graphs.MAX_GRAPHS


def test_what_is_recorded_inside_another_recording_is_part_of_it(recording):
    inner = graphs.captured_call(lambda x: 2 * x)
    outer = graphs.captured_call(lambda x: inner(x) + 1, in_place=False)
    for turn in range(5):
        assert outer(torch.full((2,), float(turn))).tolist() == [2 * turn + 1.0] * 2
    assert len(recording) == 1


def test_a_horizon_is_one_graph_whatever_the_rates_and_the_matrices(recording):
    """Learning rates and W change from round to round; participants may stay away."""
    schedule = topology.one_peer_exponential(4)
    away = Behaviour("free-rider", (1,), range(2, 4))
    network = small(lr=lambda t: 0.1 / (1 + t), mixing=schedule, behaviours=[away])
    rounds, yardstick = list(simulate(network, 6)), influence.evaluate_on(network)
    expected = list(influence.full_horizon(network, reversed(rounds), yardstick))
    again = replace(network, strategy="compile")
    recording.clear()
    for here, there in zip(influence.full_horizon(again, reversed(rounds), yardstick), expected, strict=True):
        torch.testing.assert_close((here.participants, here.samples), (there.participants, there.samples), **CLOSE)
    assert len(recording) == 1 + 2  # the slopes; rounds in which all are honest, and those in which one is not


def in_place(work, pool=None):
    """As on CUDA: what a graph gives is where `work` wrote it, in the ring of buffers."""
    found = work()

    class Graph:
        def replay(self):
            for old, new in zip(tree_flatten(found)[0], tree_flatten(work())[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    return Graph(), found


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rounds_that_are_kept_need_three_graphs_however_many_they_are(optimizer, recording, monkeypatch):
    """The first round reads the initial parameters, later ones the two places of the ring in turn."""
    network = small(optimizer=optimizer, lr=0.05)
    expected = list(simulate(network, 2 * captured_rounds.MAX_GRAPHS))
    made = []
    monkeypatch.setattr(captured_rounds, "capture", lambda *a: made.append(in_place(*a)) or made[-1])
    rounds = list(simulate(replace(network, strategy="compile"), 2 * captured_rounds.MAX_GRAPHS))
    assert len(made) == 3
    for here, there in zip(rounds, expected, strict=True):
        for name in ("before", "half", "after", "loss"):
            torch.testing.assert_close(getattr(here, name), getattr(there, name), **CLOSE)
    assert all(later.before is earlier.after for earlier, later in pairwise(rounds))
