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


def walked(parts: list[Tensor], batch: list[int], steps: list[int], seed: int, t: int) -> Tensor:
    """The slow twin: walk from round 0."""
    rows = torch.full((len(parts), max(steps), max(batch)), -1)
    for node, own in enumerate(parts):
        taken: list[Tensor] = []
        epoch = 0
        while len(taken) < (t + 1) * steps[node]:
            order = own[torch.randperm(len(own), generator=seeds.generator(seed, "batches", node, epoch))]
            taken += [order[i : i + batch[node]] for i in range(0, len(own) - batch[node] + 1, batch[node])]
            epoch += 1
        rows[node, : steps[node], : batch[node]] = torch.stack(taken[t * steps[node] : (t + 1) * steps[node]])
    return rows


@each(sizes, st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_any_round_in_any_order_is_the_walked_one(lengths: list[int], batch: int, steps: int, asked: list[int]) -> None:
    parts = parts_of(lengths)
    drawn = batches.epochs(parts, batch, steps=steps, seed=5)
    for t in asked:
        assert torch.equal(drawn(t), walked(parts, [batch] * len(parts), [steps] * len(parts), 5, t))


@each(st.data(), sizes, st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_participants_with_their_own_sizes_and_steps_walk_as_they_would_alone(
    more: st.DataObject, lengths: list[int], asked: list[int]
) -> None:
    parts = parts_of(lengths)
    batch, steps = ([more.draw(st.integers(1, most)) for _ in parts] for most in (4, 5))
    drawn = batches.epochs(parts, batch, steps=steps, seed=5)
    for t in asked:
        assert torch.equal(drawn(t), walked(parts, batch, steps, 5, t))
        assert batches.sizes(drawn(t)) == list(zip(steps, batch, strict=True))
        assert batches.check_round(drawn(t), sum(lengths), t).dtype == torch.int64


def test_of_some_participants_only_their_own_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = partition.iid(60, 5)
    whole = batches.epochs(parts, [4, 3, 2, 5, 4], steps=[1, 2, 1, 2, 1], seed=3)
    rows, derive, drawn = torch.tensor([1, 4]), seeds.derive, list[int]()
    expected = [whole(t)[rows] for t in range(9)]

    def watched(seed: int, what: str, node: int, epoch: int) -> int:
        drawn.append(node)
        return derive(seed, what, node, epoch)

    monkeypatch.setattr(seeds, "derive", watched)
    some = batches.of_some(whole, rows)
    assert all(some(t).equal(batch) for t, batch in enumerate(expected))
    assert set(drawn) == {1, 4}
    assert all(batches.of_some(some, torch.tensor([1]))(t).equal(batch[1:]) for t, batch in enumerate(expected))


def test_one_number_is_that_number_for_everyone() -> None:
    parts = parts_of([9, 14, 30])
    same = batches.epochs(parts, [4, 4, 4], steps=torch.tensor([2, 2, 2]).tolist(), seed=1)
    assert torch.equal(batches.epochs(parts, 4, steps=2, seed=1)(11), same(11))


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
    assert batches.rounds_per_epoch(parts, [1, 10, 10], steps=[3, 1, 1]) == 3  # 10 + 2 + 3 batches, 5 a round


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
    with pytest.raises(ValueError, match=r"given for rounds 0\.\.1; round 2 was requested"):
        drawn(2)
    with pytest.raises(ValueError, match=r"below 23, .* Round 1, participant 2, step 1, position 1 has 23"):
        batches.given(index, n_samples=23)
    with pytest.raises(ValueError, match=r"at least 0; -1 may .* Round 0, participant 0, step 0, position 0 has -5"):
        batches.given(index - 5)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ([[-1, 2], [3, 4]], "step 0, position 0 has -1"),
        ([[1, 2], [-1, 4]], "step 1, position 1 has 4"),
        ([[1, 2], [-2, 4]], "step 1, position 0 has -2"),
        ([[1, 2], [9, 4]], "step 1, position 0 has 9"),
    ],
)
def test_padding_only_follows_what_is_there(block: list[list[int]], found: str) -> None:
    for fine in ([[1, 2], [3, 4]], [[1, 2], [-1, -1]], [[1, -1], [2, -1]], [[1, -1], [-1, -1]]):
        batches.given(torch.tensor([[fine]]), n_samples=9)
    with pytest.raises(ValueError, match=f"-1 may only follow .* Round 7, participant 1, {found}"):
        batches.check_round(torch.tensor([[[1, 2], [3, 4]], block]), 9, 7)
    with pytest.raises(ValueError, match=r"must be \[participants, steps, batch\]; found \[2, 2\]"):
        batches.check_round(torch.zeros(2, 2).long(), 9, 0)


def test_batches_of_one_participant_may_differ_in_size_and_be_missing() -> None:
    block = torch.tensor([[[1, 2], [3, -1]], [[4, -1], [5, 6]], [[-1, -1], [-1, -1]]])
    assert batches.check_round(block, 9, 0) is block
    for k, hole in ((0, [[1, 2], [-1, 3]]), (1, [[-1, -1], [5, 6]])):
        wrong = block.clone()
        wrong[k] = torch.tensor(hole)
        with pytest.raises(ValueError, match=f"participant {k}, step"):
            batches.check_round(wrong, 9, 0)


def test_a_list_of_indices_is_padded_to_one_block(unchecked: None) -> None:
    rows = [torch.tensor([[1, 2], [3, 4]]), [[5, 6], torch.tensor([7])], (8,), [], torch.arange(0)]
    gone = [[-1, -1], [-1, -1]]
    expected = [[[1, 2], [3, 4]], [[5, 6], [7, -1]], [[8, -1], [-1, -1]], gone, gone]
    assert batches.padded(rows).tolist() == expected
    for wrong in (3, [0.5], [[[1]]], ["a"]):
        with pytest.raises(TypeError, match="or a list of indices for each of them; participant 1 has"):
            batches.padded([[1], wrong])
    with pytest.raises(TypeError, match=r"must be indices \[participants, steps, batch\].*; found NoneType"):
        batches.padded(None)  # type: ignore[arg-type]


def test_rounds_are_even_if_everybody_keeps_its_steps_and_batch_size() -> None:
    even = torch.arange(24).view(2, 2, 2, 3)
    even[:, 1, 1] = -1
    even[:, 1, 0, 2] = -1
    assert batches.is_even(even)
    for place in ((1, 0, 1, 2), (slice(None), 0, 0, 2), (1, 1, 0)):
        uneven = even.clone()
        uneven[place] = -1
        assert not batches.is_even(uneven)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_indices_of_any_whole_type_are_samples(dtype, unchecked):
    index = torch.tensor([[[[0, 1]], [[2, 197]]]])
    assert torch.equal(batches.given(index.to(dtype), n_samples=400)(0), index[0])


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.zeros(1, 2, 1, 3), TypeError, "whole numbers, the indices of samples; found torch.float32"),
        (torch.zeros(1, 2, 1, 0, dtype=torch.int64), ValueError, r"\[participants, steps, batch\]; found \[2, 1, 0\]"),
    ],
)
def test_batches_without_indices_are_refused(index, error, message, unchecked):
    with pytest.raises(error, match=message):
        batches.given(index, n_samples=4)
