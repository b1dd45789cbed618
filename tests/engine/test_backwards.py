"""A run read backwards is the run read forwards, from a few checkpoints."""

import pytest
import torch
from engine.cases import make
from torch.utils._pytree import tree_flatten

from cascadice.engine import simulate
from cascadice.engine.backwards import backwards, bytes_kept, bytes_of, segment

ROUNDS = 10


@pytest.mark.parametrize("length", [1, 3, 4, 10, 99])
def test_backwards_is_the_run_bit_for_bit(length):
    network = make(optimizer="momentum", lr=0.05)
    forwards = list(simulate(network, ROUNDS))
    found = list(backwards(network, ROUNDS, length=length))
    assert [round_.t for round_ in found] == list(range(ROUNDS))[::-1]
    for round_, expected in zip(found[::-1], forwards, strict=True):
        for mine, theirs in zip(tree_flatten(round_[1:4])[0], tree_flatten(expected[1:4])[0], strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("length", [1, 3, 4, 10])
def test_the_run_is_played_twice_but_for_its_last_segment(length):
    network, played = make(), []
    list(backwards(network, ROUNDS, length=length, played=lambda: played.append(1)))
    last = (ROUNDS - 1) % length + 1
    assert len(played) == 2 * ROUNDS - last


@pytest.mark.parametrize("rounds", [2, 16, 17, 100, 1000])
def test_the_square_root_keeps_least_where_not_all_rounds_fit(rounds):
    network = make()
    assert segment(network, rounds) == rounds
    length, one = segment(network, rounds, memory=0), bytes_of(network.initial)
    assert (length - 1) ** 2 < rounds <= length**2
    assert bytes_kept(network, rounds, length) <= 3 * length * one
    assert bytes_kept(network, rounds, rounds) > 2 * rounds * one


def test_checkpoints_that_are_there_are_not_made_again():
    network, saved, played = make(), {}, []
    sweep = backwards(network, ROUNDS, length=3, saved=saved)
    assert next(sweep).t == ROUNDS - 1
    assert sorted(saved) == [3, 6]
    rest = backwards(network, 9, length=3, saved=saved, played=lambda: played.append(1))
    assert [round_.t for round_ in rest] == list(range(9))[::-1]
    assert len(played) == 9
