import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import cascadice
from cascadice import data
from cascadice.data import DataSet, Samples, from_tensors, from_torch


def images(n: int = 7) -> Samples:
    x = torch.arange(n * 3 * 2 * 2).remainder(256).to(torch.uint8).reshape(n, 3, 2, 2)
    return Samples(x, torch.arange(n), torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 3), max_size=3), st.data())
def test_take_normalises_what_a_loop_would(shape: list[int], more: st.DataObject) -> None:
    stored = images()
    flat = more.draw(st.lists(st.integers(0, 6), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    index = torch.tensor(flat).reshape(shape)
    x, y = stored.take(index)
    assert x.shape == (*shape, 3, 2, 2)
    assert x.dtype == torch.float32
    assert torch.equal(y, index)
    for got, i in zip(x.reshape(-1, 3, 2, 2), flat, strict=True):
        for c in range(3):
            slow = (stored.x[i, c].double() / 255 - stored.mean[c].double()) / stored.std[c].double()
            assert_close(got[c].double(), slow, rtol=1e-5, atol=1e-6)


def test_take_without_constants_scales_to_one() -> None:
    x, _ = Samples(torch.tensor([[[0, 255]]], dtype=torch.uint8), torch.zeros(1)).take(torch.tensor([0]))
    assert_close(x, torch.tensor([[[0.0, 1.0]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_take_leaves_floats_and_tokens_alone(dtype: torch.dtype) -> None:
    stored = torch.arange(12).reshape(4, 3).to(dtype)
    x, y = Samples(stored, stored + 1).take(torch.tensor([[2, 0]]))
    assert x.dtype == dtype
    assert torch.equal(x, stored[[2, 0]][None])
    assert torch.equal(y, stored[[2, 0]][None] + 1)


def test_subset_and_to_keep_the_normalisation() -> None:
    stored = images()
    chosen = torch.tensor([5, 1])
    assert_close(stored.subset(chosen).to("cpu").take(torch.tensor([0, 1])), stored.take(chosen))
    assert len(stored.subset(chosen)) == 2
    assert stored.shape == (3, 2, 2)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_take_on_cuda_is_take_on_cpu() -> None:
    index = torch.tensor([[3, 1], [6, 0]])
    x, y = images().to("cuda").take(index)
    assert x.is_cuda
    assert_close((x.cpu(), y.cpu()), images().take(index))


def test_samples_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="one row per sample; x has 2, y has 3"):
        Samples(torch.zeros(2, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="give both or neither"):
        Samples(torch.zeros(2, 1), torch.zeros(2), mean=torch.zeros(1))
    with pytest.raises(ValueError, match=r"for uint8 images; x is torch\.float32"):
        Samples(torch.zeros(2, 1), torch.zeros(2), torch.zeros(1), torch.ones(1))


def test_from_tensors_counts_classes_and_accepts_arrays() -> None:
    made = from_tensors(np.zeros((3, 2), np.float32), np.array([0, 2, 1], np.int32), torch.ones(1, 2), [3])
    assert made.classes == ("0", "1", "2", "3")
    assert made.train.y.dtype == torch.int64
    assert from_tensors([[1.0]], [2.5], [[1.0]], [3.5]).classes == ()
    assert from_tensors([[1.0]], [0], [[1.0]], [1], classes=("cat", "dog")).classes == ("cat", "dog")
    assert isinstance(made.to("cpu"), DataSet)


def test_from_tensors_names_the_first_bad_label() -> None:
    with pytest.raises(ValueError, match=r"y must lie in 0\.\.2 \(3 classes\); y\[1\] is 7"):
        from_tensors(torch.zeros(3, 1), [0, 7, 9], torch.zeros(1, 1), [0], classes=3)
    with pytest.raises(ValueError, match=r"y_test\[0, 1\] is -1"):
        from_tensors([[0, 1]], [[1, 1]], [[0, 1]], [[0, -1]], classes=2)
    with pytest.raises(ValueError, match=r"y\[0\] is -1"):
        from_tensors([[0.0]], [-1], [[0.0]], [-1])
    with pytest.raises(TypeError, match=r"y must be integers, one of 2 classes; found torch\.float32"):
        from_tensors([[0.0]], [0.5], [[0.0]], [0], classes=2)


def test_from_tensors_refuses_empty_and_unequal() -> None:
    with pytest.raises(ValueError, match=r"x_test must hold at least one sample; its shape is \(0, 1\)"):
        from_tensors(torch.zeros(1, 1), [0], torch.zeros(0, 1), torch.zeros(0))
    with pytest.raises(ValueError, match=r"one shape; found \(2,\) and \(3,\)"):
        from_tensors(torch.zeros(1, 2), [0], torch.zeros(1, 3), [0])
    with pytest.raises(ValueError, match="one row per sample"):
        from_tensors(torch.zeros(2, 2), [0], torch.zeros(1, 2), [0])


class Pictures(torch.utils.data.Dataset[tuple[object, int]]):
    """A map-style Dataset that, like many, never raises IndexError."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[object, int]:
        from PIL import Image

        return Image.new("RGB", (4, 2), (10 * i, 20, 30)).convert(self.mode), i


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 3)])
def test_from_torch_reads_pictures(mode: str, channels: int) -> None:
    made = from_torch(Pictures(mode), Pictures(mode), name="mine", mean=[0.5] * channels, std=[0.5] * channels)
    assert made.train.x.shape == (3, channels, 2, 4)
    assert made.train.x.dtype == torch.uint8
    assert made.classes == ("0", "1", "2")
    if channels == 3:
        assert made.train.x[2, :, 0, 0].tolist() == [20, 20, 30]


def test_from_torch_reads_tensors_and_iterables() -> None:
    pairs = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0.5, 1.5, 2.5]))
    made = from_torch(pairs, iter([(torch.zeros(2), 1.0)]))
    assert torch.equal(made.train.x, pairs.tensors[0])
    assert torch.equal(made.train.y, pairs.tensors[1])
    assert len(made.test) == 1


def test_from_torch_refuses_what_is_not_pairs() -> None:
    with pytest.raises(TypeError, match=r"yield \(input, target\) pairs; item 0 is Tensor"):
        from_torch([torch.zeros(2)], [torch.zeros(2)])
    with pytest.raises(ValueError, match=r"item 1 is \(3,\), item 0 is \(2,\)\. Add a resizing transform"):
        from_torch([(torch.zeros(2), 0), (torch.zeros(3), 0)], [])
    with pytest.raises(ValueError, match="train must hold at least one sample; it is empty"):
        from_torch([], [])


def pairs(n: int = 6) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % 3)


def test_data_of_every_kind_are_resolved() -> None:
    made = from_torch(pairs(), pairs(4))
    assert data.resolve(made) is made
    for pair in ((pairs(), pairs(4)), (made.train, made.test)):
        resolved = data.resolve(pair)
        assert_close((resolved.train.x, resolved.train.y), (made.train.x, made.train.y))
        assert_close((resolved.test.x, resolved.test.y), (made.test.x, made.test.y))
        assert resolved.classes == ("0", "1", "2")


@pytest.mark.parametrize("given", [pairs(), from_torch(pairs(), pairs()).train], ids=["Dataset", "Samples"])
def test_data_without_a_test_set_are_evaluated_on_the_training_set_with_a_warning(given: object) -> None:
    with pytest.warns(UserWarning, match=r"evaluated on the training samples. Give a pair \(train, test\)"):
        resolved = data.resolve(given)
    assert torch.equal(resolved.train.x, pairs().tensors[0])
    assert torch.equal(resolved.test.x, pairs().tensors[0])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (torch.zeros(3, 2), "Tensor"),
        ((torch.zeros(3, 2), torch.zeros(3)), "a pair of Tensor and Tensor"),
        ((pairs(), torch.zeros(3)), "a pair of TensorDataset and Tensor"),
        (torch.utils.data.DataLoader(pairs()), "DataLoader"),
        ("digits", "str"),
    ],
)
def test_what_is_no_data_set_is_refused(given: object, found: str) -> None:
    with pytest.raises(
        TypeError, match=rf"data must be a DataSet, .*; found {found}. Use data.from_tensors\(x, y, x_t"
    ):
        data.resolve(given)


def test_samples_are_checked_as_tensors_are() -> None:
    negative = Samples(torch.zeros(2, 1), torch.tensor([0, -1]))
    with pytest.raises(ValueError, match=r"y\[1\] is -1"):
        data.resolve((negative, negative))


def test_digits_are_balanced_standardised_and_split_once() -> None:
    digits = data.digits()
    assert (len(digits.train), len(digits.test)) == (1442, 355)
    assert digits.train.shape == (1, 8, 8)
    shares = digits.test.y.bincount() / (digits.test.y.bincount() + digits.train.y.bincount())
    assert_close(shares, torch.full((10,), 0.2), atol=0.005, rtol=0)
    both = torch.cat([digits.train.x, digits.test.x])
    assert_close(both.mean().item(), 0.0, atol=1e-3, rtol=0)
    assert_close(both.std().item(), 1.0, atol=1e-3, rtol=0)
    assert torch.equal(data.digits().test.x, digits.test.x)


def test_pydoc_targets_are_the_next_characters() -> None:
    text = data.pydoc(context=16)
    assert text.train.x.shape[1] == 16
    assert torch.equal(text.train.x[:, 1:], text.train.y[:, :-1])
    assert torch.equal(text.train.x[1:, 0], text.train.y[:-1, -1])
    assert max(text.train.x.max(), text.test.y.max()) < len(text.classes) == 96
    assert "".join(text.classes[token] for token in text.train.x[:200].flatten()).count("assert") > 3
    assert 0.09 < len(text.test) / (len(text.train) + len(text.test)) < 0.11


def test_pydoc_refuses_impossible_contexts() -> None:
    with pytest.raises(ValueError, match="at least 1 character; found 0"):
        data.pydoc(context=0)
    with pytest.raises(ValueError, match="shorter than the held-out text"):
        data.pydoc(context=10**6)


def test_features_must_be_finite():
    x = torch.ones(4, 3)
    x[2, 1] = torch.nan
    with pytest.raises(ValueError, match="x must be finite; sample 2 has NaN or infinite entries"):
        from_tensors(x, torch.zeros(4, dtype=torch.int64), torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_integers_that_torch_cannot_index_become_int64(dtype: torch.dtype) -> None:
    y = torch.tensor([0, 2, 1]).to(dtype)
    made = from_tensors(torch.zeros(3, 2), y, torch.zeros(3, 2), y)
    assert made.classes == ("0", "1", "2")
    assert data.resolve((made.train, Samples(made.test.x, y))).test.y.tolist() == [0, 2, 1]
    assert Samples(y[:, None], y).take(torch.tensor([1]))[0].tolist() == [[2]]


def test_targets_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"test targets must have one shape; found \(\) and \(1,\)"):
        from_tensors(torch.zeros(2, 2), [0, 1], torch.zeros(2, 2), [[0], [1]])
    with pytest.raises(ValueError, match=r"targets of train must have one shape; item 1 is \(2,\), item 0 is \(\)"):
        from_torch([(torch.zeros(2), 0), (torch.zeros(2), [0, 1])], [])


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_a_std_that_makes_no_numbers_is_refused(std: float) -> None:
    x = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="std must be positive and finite"):
        from_tensors(x, [0, 1], x, [0, 1], mean=[0.5], std=[std])


def test_a_column_of_labels_scores_as_a_row_of_them() -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    scores, model = [], torch.nn.Linear(4, 2)
    for labels in (y, y[:, None]):
        net = cascadice.network(model, from_tensors(x, labels, x, labels), mixing="ring", nodes=3, batch_size=4, lr=0.5)
        *_, last = cascadice.simulate(net, 20)
        scores.append(cascadice.evaluate(net, last.after))
    assert_close(scores[0], scores[1])
    assert float(scores[1].accuracy.min()) > 0.9
