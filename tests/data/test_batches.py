import pickle
import time

import pytest
import torch
from hypothesis import given as each
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from cascadice import seeds
from cascadice.data import batches, partition

sizes = st.lists(st.integers(4, 30), min_size=1, max_size=6)


def parts_of(lengths: list[int]) -> list[Tensor]:
    return list(torch.randperm(sum(lengths), generator=seeds.generator(0, "test")).split(lengths))  # type: ignore[no-untyped-call]


def walked(parts: list[Tensor], batch: int, steps: int, seed: int, t: int) -> Tensor:
    """The slow twin: walk from round 0."""
    rows = []
    for node, own in enumerate(parts):
        taken: list[Tensor] = []
        epoch = 0
        while len(taken) < (t + 1) * steps:
            order = own[torch.randperm(len(own), generator=seeds.generator(seed, "batches", node, epoch))]
            taken += [order[i : i + batch] for i in range(0, len(own) - batch + 1, batch)]
            epoch += 1
        rows.append(torch.stack(taken[t * steps : (t + 1) * steps]))
    return torch.stack(rows)


@each(sizes, st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_any_round_in_any_order_is_the_walked_one(lengths: list[int], batch: int, steps: int, asked: list[int]) -> None:
    parts = parts_of(lengths)
    drawn = batches.epochs(parts, batch, steps=steps, seed=5)
    for t in asked:
        assert torch.equal(drawn(t), walked(parts, batch, steps, 5, t))


def test_an_epoch_visits_every_sample_once_and_the_next_in_another_order() -> None:
    parts = partition.iid(120, 3)
    drawn = batches.epochs(parts, 10)
    assert batches.rounds_per_epoch(parts, 10) == 4
    first, second = (torch.cat([drawn(t) for t in range(start, start + 4)], dim=2)[:, 0] for start in (0, 4))
    for node in range(3):
        assert sorted(first[node].tolist()) == sorted(second[node].tolist()) == sorted(parts[node].tolist())
    assert not torch.equal(first, second)


def test_what_was_returned_is_not_overwritten_later() -> None:
    drawn = batches.epochs(partition.iid(40, 2), 10)
    kept = drawn(0)
    copy = kept.clone()
    for t in range(1, 9):
        drawn(t)
    assert torch.equal(kept, copy)


def test_batches_survive_pickling() -> None:
    drawn = batches.epochs(partition.iid(40, 2), 10)
    assert torch.equal(pickle.loads(pickle.dumps(drawn))(7), drawn(7))  # noqa: S301


def test_rounds_per_epoch_with_unequal_participants_counts_the_work_of_all() -> None:
    parts = parts_of([10, 20, 31])
    assert batches.rounds_per_epoch(parts, 10) == 2
    assert batches.rounds_per_epoch(parts, 10, steps=4) == 1


def test_walking_in_order_is_cheap() -> None:
    drawn = batches.epochs(partition.iid(32 * 512, 32), 32)
    drawn(0)
    fastest = min(_timed(drawn, t) for t in range(1, 16))
    assert fastest < 1e-3  # about 50 µs on a quiet machine; drawing 32 permutations afresh takes longer than this


def _timed(drawn: batches.Batches, t: int) -> float:
    start = time.perf_counter()
    drawn(t)
    return time.perf_counter() - start


def test_given_batches_are_handed_out_and_end() -> None:
    index = torch.arange(24).reshape(2, 3, 2, 2)
    drawn = batches.given(index, n_samples=24)
    assert torch.equal(drawn(1), index[1])
    with pytest.raises(ValueError, match=r"given for rounds 0\.\.1; round 2 was asked for"):
        drawn(2)
    with pytest.raises(ValueError, match="at least 0 and below 23; round 1, participant 2, step 1, place 1 has 23"):
        batches.given(index, n_samples=23)
    with pytest.raises(ValueError, match="at least 0; round 0, participant 0, step 0, place 0 has -5"):
        batches.given(index - 5)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="participant 1 holds 4 samples, batch_size is 5"):
        batches.epochs(parts_of([9, 4, 3]), 5)
    with pytest.raises(ValueError, match="participant 1 holds 4 samples, batch_size is 5"):
        batches.rounds_per_epoch(parts_of([9, 4, 3]), 5)
    with pytest.raises(ValueError, match="at least 1; found 0 and 1"):
        batches.epochs(parts_of([9]), 0)
    with pytest.raises(ValueError, match="the partition is empty"):
        batches.epochs([], 1)
    with pytest.raises(ValueError, match="numbered from 0; found -1"):
        batches.epochs(parts_of([9]), 3)(-1)
