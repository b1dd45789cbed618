import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from cascadice.data.corruption import CORRUPTIONS, Corruption, corrupt, parse
from cascadice.faults import check_participants


def batch(rows: int = 4, steps: int = 2, size: int = 50, classes: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, steps, size, 3, generator=draw, dtype=torch.float64)
    return x, torch.randint(classes, (rows, steps, size), generator=draw)


def test_nothing_to_do_returns_the_same_objects() -> None:
    x, y = batch()
    for corruptions in ([], [Corruption("noise", (9,))], [Corruption("flip-labels", (1,), range(5, 9))]):
        same_x, same_y = corrupt(corruptions, x, y, 4, range(4), 0, 5)
        assert same_x is x
        assert same_y is y


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_only_the_named_rows_change_and_inputs_never(kind: str) -> None:
    x, y = batch()
    before = x.clone(), y.clone()
    bad_x, bad_y = corrupt([Corruption(kind, (1, 3))], x, y, 0, range(4), 0, 5)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    changed = [not (torch.equal(a, b) and torch.equal(c, d)) for a, b, c, d in zip(x, bad_x, y, bad_y, strict=True)]
    assert changed == [False, True, False, True]
    assert (bad_x is x) == (kind != "noise")
    assert (bad_y is y) == (kind == "noise")
    assert bad_x.dtype == x.dtype
    assert bad_y.dtype == y.dtype


@pytest.mark.parametrize("kind", CORRUPTIONS)
@settings(deadline=None, max_examples=30)
@given(present=st.lists(st.integers(0, 3), unique=True, min_size=1), t=st.integers(0, 3))
def test_a_participant_is_corrupted_alike_wherever_it_is_computed(kind: str, present: list[int], t: int) -> None:
    corruptions = [Corruption(kind, (0, 2)), Corruption("noise", (2, 3), range(1, 3), 4.0)]
    x, y = batch()
    whole = corrupt(corruptions, x, y, t, range(4), 7, 5)
    some = corrupt(corruptions, x[present], y[present], t, present, 7, 5)
    assert_close(some, (whole[0][present], whole[1][present]), rtol=0, atol=0)


def test_rounds_and_seeds_draw_differently() -> None:
    x, y = batch()
    drawn = [
        corrupt([Corruption("noise", (0,))], x, y, t, range(4), seed, 5)[0] for t, seed in [(0, 0), (1, 0), (0, 1)]
    ]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_mirroring_puts_classes_in_the_opposite_order() -> None:
    x, y = batch(classes=5)
    _, bad = corrupt([Corruption("mirror-labels", (0,))], x, y, 0, range(4), 0, 5)
    assert torch.equal(bad[0], 4 - y[0])


def test_mirroring_needs_classes() -> None:
    x, y = batch()
    with pytest.raises(ValueError, match="mirror-labels needs integer labels of at least 2 classes"):
        corrupt([Corruption("mirror-labels", (0,))], x, y.double(), 0, range(4), 0, 5)


def test_permuting_keeps_each_batch_of_labels_together() -> None:
    x, y = batch()
    _, bad = corrupt([Corruption("permute-labels", (0,))], x, y, 0, range(4), 0, 5)
    for step in range(2):
        assert torch.equal(bad[0, step].sort()[0], y[0, step].sort()[0])
        assert not torch.equal(bad[0, step], y[0, step])


def test_permuting_moves_whole_targets() -> None:
    y = torch.arange(24).reshape(1, 1, 6, 4)
    _, bad = corrupt([Corruption("permute-labels", (0,))], y, y, 0, [0], 0, 24)
    assert sorted(bad[0, 0].tolist()) == y[0, 0].tolist() != bad[0, 0].tolist()


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_flipping_goes_evenly_to_the_other_classes(probability: float) -> None:
    n, classes = 20_000, 5
    x, y = torch.zeros(1, 1, n), torch.full((1, 1, n), 3)
    _, bad = corrupt([Corruption("flip-labels", (0,), None, probability)], x, y, 0, [0], 0, classes)
    share = bad.flatten().bincount(minlength=classes) / n
    others = torch.full((classes,), probability / (classes - 1))
    others[3] = 1 - probability
    assert_close(share, others, rtol=0, atol=4 * math.sqrt(0.25 / n))
    if probability == 1:
        assert not (bad == 3).any()


def test_noise_has_the_variance_asked_for() -> None:
    x, y = torch.zeros(1, 2, 5000, 4), torch.zeros(1, 2, 5000, dtype=torch.int64)
    bad, _ = corrupt([Corruption("noise", (0,), None, 100.0)], x, y, 0, [0], 0, 2)
    assert_close(bad.var().item(), 100.0, rtol=0.04, atol=0)
    assert_close(bad.mean().item(), 0.0, rtol=0, atol=0.2)


def test_two_corruptions_of_one_participant_both_apply() -> None:
    x, y = batch()
    both = [Corruption("noise", (1,)), Corruption("flip-labels", (1,))]
    bad_x, bad_y = corrupt(both, x, y, 0, range(4), 0, 5)
    assert not torch.equal(bad_x[1], x[1])
    assert (bad_y[1] != y[1]).all()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("flip-labels:3,5:0.5@10-20", Corruption("flip-labels", (3, 5), range(10, 21), 0.5)),
        ("noise:0:100", Corruption("noise", (0,), None, 100.0)),
        ("permute-labels:2", Corruption("permute-labels", (2,))),
        ("permute-labels:2@7", Corruption("permute-labels", (2,), range(7, 8))),
        ("noise:1:1e-3@5-", Corruption("noise", (1,), range(5, sys.maxsize), 0.001)),
    ],
)
def test_parse_reads_the_command_line_form(text: str, meant: Corruption) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flip-labels", r"must be written kind:nodes\[:strength\]\[@from-to\].*found 'flip-labels'"),
        ("noise:a", "must be written kind:nodes"),
        ("noise:1@x", "must be written kind:nodes"),
        ("noise:1@3-4-5", "must be written kind:nodes"),
        ("flip-label:1", "unknown corruption 'flip-label'. Did you mean 'flip-labels'"),
        ("flip-labels:1:2", r"strength of flip-labels is a probability, in 0\.\.1; found 2.0"),
        ("noise:1:-1", "is a variance, at least 0 and finite; found -1.0"),
        ("noise:1:nan", "at least 0 and finite; found nan"),
        ("noise:1:loud", "strength must be a number; found 'loud'"),
        ("permute-labels:1:0.5", "permute-labels takes no strength; found 0.5"),
        ("noise:1@9-3", "from a smaller to a larger number; found 9-3"),
    ],
)
def test_parse_says_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text)


def test_bad_input_is_named() -> None:
    x, y = batch()
    with pytest.raises(ValueError, match=r"must name participants, numbered from 0; found \(-1,\)"):
        Corruption("noise", (-1,))
    with pytest.raises(ValueError, match=r"must name participants.*found \(\)"):
        Corruption("noise", ())
    with pytest.raises(ValueError, match=r"names participant 16; there are 16, numbered 0\.\.15"):
        check_participants([Corruption("noise", (3, 16))], 16)
    check_participants([Corruption("noise", (3, 15))], 16)
    with pytest.raises(ValueError, match=r"\[participants, steps, batch, \.\.\.\]; found 3 participants"):
        corrupt([Corruption("noise", (0,))], x, y, 0, [0, 1, 2], 0, 5)
    with pytest.raises(ValueError, match=r"noise needs real-valued features; x is torch\.int64"):
        corrupt([Corruption("noise", (0,))], y, y, 0, range(4), 0, 5)
    with pytest.raises(ValueError, match="flip-labels needs integer labels of at least 2 classes"):
        corrupt([Corruption("flip-labels", (0,))], x, y, 0, range(4), 0, 1)
