"""Every reader on small files in the official formats, whole and damaged, and on the real files where they are."""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.small_files import (
    FASHION,
    MNIST,
    idx_bytes,
    jpeg,
    python2_pickle,
    with_checksums,
    write_cifar,
    write_mnist,
    write_pack,
    write_tiny,
    write_tiny_pack,
)

from cascadice import data
from cascadice.data import cifar_files, mnist_files, source_files, tiny_imagenet_files

REAL = Path(os.environ.get("CASCADICE_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CASCADICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# ---------------------------------------------------------------- MNIST


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw", "mnist/MNIST/raw"])
def test_mnist_is_read_from_every_official_layout(tmp_path: Path, folder: str, suffix: str) -> None:
    arrays = write_mnist(tmp_path / "root" / folder, suffix)
    mnist = data.mnist(tmp_path / "root")
    assert mnist.train.x.shape == (6, 1, 28, 28)
    assert np.array_equal(mnist.train.x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert mnist.test.y.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert mnist.test.y.dtype == torch.int64
    assert len(mnist.classes) == 10


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda content: content[:-5], r"expected as many bytes .* that is 4704, found 4699"),
        (lambda content: content + b"more", r"expected as many bytes .* that is 4704, found 4705"),
        (lambda content: b"<html>", r"expected the magic number 00000803, found 3c68746d"),
        (lambda content: content[:9], r"expected a header of bytes 16, found 9"),
        (lambda content: b"", r"expected the magic number 00000803, found ''"),
    ],
)
def test_damaged_idx_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], complaint: str) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"train-images-idx3-ubyte is damaged: {complaint}.*Delete it and download"):
        data.mnist(tmp_path)


def test_truncated_or_garbled_gz_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", ".gz")
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[:-12], b"not gzip", whole[:15] + b"\xff\xff\xff" + whole[18:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is damaged: .+\. Delete it"):
            data.mnist(tmp_path)


def test_mnist_labels_must_fit_images_and_classes(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(np.zeros(5)))
    with pytest.raises(ValueError, match=r"labels-idx1-ubyte is damaged: expected one label .* that is 6, found 5"):
        data.mnist(tmp_path)
    path.write_bytes(idx_bytes(np.array([1, 2, 3, 17, 5, 6])))
    with pytest.raises(ValueError, match=r"is damaged: labels must lie in 0\.\.9 \(10 classes\); labels\[3\] is 17"):
        data.mnist(tmp_path)


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_mnist_is_read_and_not_the_fashion_mnist_beside_it(tmp_path: Path, folder: str) -> None:
    write_mnist(tmp_path / "root", labels=FASHION)
    write_mnist(tmp_path / "root" / folder)
    assert data.mnist(tmp_path / "root").train.y.tolist() == MNIST["train"]


def test_fashion_mnist_in_a_bare_folder_is_not_taken_for_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "raw", labels=FASHION)
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/raw has such files, but .* into {tmp_path}/raw/mnist\."):
        data.mnist(tmp_path / "raw")
    monkeypatch.setenv("CASCADICE_DATA", str(tmp_path / "other"))
    write_mnist(tmp_path / "other")
    assert data.mnist(tmp_path / "raw").test.y.tolist() == MNIST["t10k"]


# ---------------------------------------------------------------- CIFAR


def test_official_cifar10_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, contents = write_cifar(tmp_path / "cifar10" / "cifar-10-batches-py", cifar_files.TEN)
    monkeypatch.setattr(cifar_files, "TEN", form)
    found = data.cifar10(tmp_path)
    assert found.classes[:2] == ("c0", "c1")
    assert (len(found.train), len(found.test)) == (20, 4)
    second = contents["data_batch_2"]
    assert found.train.y[4:8].tolist() == second["labels"]
    assert np.array_equal(found.train.x[5].numpy(), second["data"][1].reshape(3, 32, 32))
    x, _ = found.train.take(torch.tensor([5]))
    slow = (second["data"][1].reshape(3, 1024)[2, 7] / 255 - 0.4465) / 0.2616
    assert x[0, 2, 0, 7].item() == pytest.approx(slow, abs=1e-5)


@pytest.mark.parametrize("coarse", [False, True])
def test_official_cifar100_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coarse: bool) -> None:
    form, contents = write_cifar(tmp_path / "cifar-100-python", cifar_files.HUNDRED)
    monkeypatch.setattr(cifar_files, "HUNDRED", form)
    found = data.cifar100(tmp_path, coarse=coarse)
    assert found.train.y.tolist() == contents["train"]["coarse_labels" if coarse else "fine_labels"]
    assert found.classes[-1] == ("g19" if coarse else "f99")


def test_pickles_of_newer_numpy_are_read_too(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": array}, protocol=3))
    assert np.array_equal(cifar_files.read_pickle(path, hashlib.md5(path.read_bytes()).hexdigest())["data"], array)


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/cascadice-was-here",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("evil", [Malice(), {"data": Malice()}, {"data": eval}, {"data": np.frombuffer}])
def test_a_malicious_pickle_is_refused_even_with_the_right_checksum(tmp_path: Path, evil: Any, protocol: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(evil, protocol))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=r"data_batch_1 is damaged: it asks for \S+, which image data never needs"):
        cifar_files.read_pickle(path, md5)
    assert not Path("/tmp/cascadice-was-here").exists()


def test_nothing_is_unpickled_with_the_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, _ = write_cifar(tmp_path / "cifar-10-batches-py", cifar_files.TEN)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setattr(cifar_files, "TEN", form)
    expected = rf"data_batch_3 is damaged: expected md5 \(of {path.stat().st_size} bytes\) \w+, found \w+\. Delete"
    with pytest.raises(ValueError, match=expected):
        data.cifar10(tmp_path)


def test_official_files_with_impossible_contents_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    form, contents = write_cifar(folder, cifar_files.TEN)
    batch = contents["test_batch"]
    cases = [
        (batch | {"labels": [0, 1, 2, 10]}, r"labels\[3\] is 10"),
        (batch | {"data": batch["data"][:3]}, r"expected pixels .*\(4, 3072\).*found .*\(3, 3072\)"),
        ({"labels": [1]}, "'data'"),
        ([1, 2], "indices"),
    ]
    for content, complaint in cases:
        (folder / "test_batch").write_bytes(python2_pickle(content))
        with pytest.raises(ValueError, match=f"test_batch is damaged: .*{complaint}"):
            cifar_files.read_official("cifar10", folder, with_checksums(folder, form))
    (folder / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="test_batch"):
        cifar_files.read_official("cifar10", folder, form)


def test_cifar_packs_are_read(tmp_path: Path) -> None:
    ten = write_pack(tmp_path / "cifar10" / "cifar10_subset.npz", 10)
    found = data.cifar10(tmp_path)
    assert np.array_equal(found.train.x.numpy(), ten["x_train"].transpose(0, 3, 1, 2))
    assert found.train.x.is_contiguous()
    hundred = write_pack(tmp_path / "cifar100_subset.npz", 100)
    assert data.cifar100(tmp_path).test.y.tolist() == hundred["y_test"].tolist()
    grouped = data.cifar100(tmp_path, coarse=True)
    assert grouped.test.y.tolist() == hundred["y_test_coarse"].tolist()
    assert len(grouped.classes) == 20
    assert data.cifar10(tmp_path).name == "cifar10"


def test_a_pack_of_cifar100_is_not_taken_for_cifar10(tmp_path: Path) -> None:
    write_pack(tmp_path / "cifar100_subset.npz", 100)
    write_pack(tmp_path / "cifar100.npz", 100)
    with pytest.raises(FileNotFoundError, match="CIFAR-10 was not found"):
        data.cifar10(tmp_path)
    write_pack(tmp_path / "cifar10.npz", 10)
    assert len(data.cifar10(tmp_path).classes) == 10


def test_damaged_packs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cifar10_subset.npz"
    write_pack(path, 10)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not a zip", whole[:3000] + bytes(300) + whole[3300:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cifar10_subset\.npz is damaged: .+\. Delete it"):
            data.cifar10(tmp_path)
    write_pack(path, 10, y_test=np.array([3, 11]))
    with pytest.raises(ValueError, match=r"is damaged: y_test must lie in 0\.\.9 \(10 classes\); y_test\[1\] is 11"):
        data.cifar10(tmp_path)
    write_pack(path, 10, x_test=np.zeros((2, 3, 32, 32), np.uint8))
    with pytest.raises(
        ValueError, match=r"expected x_test of type and shape .*\(2, 32, 32, 3\).*found .*\(2, 3, 32, 32\)"
    ):
        data.cifar10(tmp_path)
    write_pack(path, 10, y_train=np.array([Malice()] * 5, dtype=object))
    with pytest.raises(ValueError, match="is damaged: Object arrays cannot be loaded"):
        data.cifar10(tmp_path)


def test_a_pack_without_an_array_is_not_called_damaged(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", x_train=np.zeros((1, 32, 32, 3), np.uint8), y_train=np.zeros(1, np.int64))
    lacks = r"cifar10\.npz must hold the arrays classes, .*; it lacks classes, x_test, y_test\. Make the file again"
    with pytest.raises(ValueError, match=lacks):
        data.cifar10(tmp_path)


# ---------------------------------------------------------------- Tiny ImageNet


def test_tiny_imagenet_folder_is_read(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny-imagenet" / "tiny-imagenet-200")
    found = data.tiny_imagenet(tmp_path)
    assert found.classes == ("n02", "n01")
    assert found.train.x.shape == (4, 3, 64, 64)
    assert found.train.y.tolist() == [0, 0, 1, 1]
    reds = found.train.x[:, 0].float().mean((1, 2))
    assert torch.allclose(reds, torch.tensor([0.0, 40, 100, 140]), atol=3)
    assert found.test.y.tolist() == [1]
    assert torch.equal(found.test.x[0, 0], found.test.x[0, 2])


def test_damaged_tiny_imagenet_folder_is_named(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny-imagenet-200")
    picture = folder / "train" / "n01" / "images" / "n01_1.JPEG"
    whole = picture.read_bytes()
    for content, complaint in [
        (whole[:300], ".+"),
        (b"GIF89a", ".+"),
        (jpeg(0, side=32), r"expected .*\(64, 64\), found \(32, 32\)"),
    ]:
        picture.write_bytes(content)
        with pytest.raises(ValueError, match=rf"n01_1\.JPEG is damaged: {complaint}\. Delete it"):
            data.tiny_imagenet(tmp_path)
    picture.write_bytes(whole)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\t0\n")
    with pytest.raises(ValueError, match=r"val_annotations\.txt is damaged: 'n99'"):
        data.tiny_imagenet(tmp_path)
    (folder / "wnids.txt").write_text("")
    with pytest.raises(ValueError, match=r"wnids\.txt is damaged: expected one wnid a line, found none"):
        data.tiny_imagenet(tmp_path)
    (folder / "wnids.txt").write_text("n02 n77")
    with pytest.raises(FileNotFoundError, match="n77/images must hold JPEG files; found none"):
        data.tiny_imagenet(tmp_path)


def test_tiny_imagenet_pack_is_read(tmp_path: Path) -> None:
    write_tiny_pack(tmp_path / "tiny_pack.npz")
    found = data.tiny_imagenet(tmp_path)
    assert found.train.y.tolist() == [0, 1]
    assert torch.allclose(found.train.x[:, 0].float().mean((1, 2)), torch.tensor([0.0, 160]), atol=3)
    assert found.test.y.tolist() == [1]


def test_damaged_tiny_imagenet_pack_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny_pack.npz"
    cases = [
        ({"label": np.array([0, 1, 2], np.uint8)}, r"label\[2\] is 2"),
        ({"label": np.array([0, 1], np.uint8)}, r"that is \(3,\), found \(4,\)"),
        ({"blob": np.zeros(10, np.uint8)}, r"expected a blob of bytes .*, found .*\(10,\)"),
    ]
    for changed, complaint in cases:
        write_tiny_pack(path, **changed)
        with pytest.raises(ValueError, match=rf"tiny_pack\.npz is damaged: .*{complaint}"):
            tiny_imagenet_files.read_pack(path)
    write_tiny_pack(path)
    with np.load(path) as arrays:
        blob = arrays["blob"].copy()
    blob[:40] = 0
    write_tiny_pack(path, blob=blob)
    with pytest.raises(ValueError, match=r"tiny_pack\.npz is damaged: cannot identify image file"):
        tiny_imagenet_files.read_pack(path)


# ---------------------------------------------------------------- looking for files


def test_root_comes_before_environment_before_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {place: write_mnist(tmp_path / place / "mnist") for place in ("root", "environment", "cache/cascadice")}
    first = {place: arrays["train-images-idx3-ubyte"][0].tolist() for place, arrays in written.items()}
    monkeypatch.setenv("CASCADICE_DATA", str(tmp_path / "environment"))
    assert data.load("mnist", tmp_path / "root").train.x[0, 0].tolist() == first["root"]
    assert data.load("mnist", tmp_path / "nowhere").train.x[0, 0].tolist() == first["environment"]
    assert data.load("mnist").train.x[0, 0].tolist() == first["environment"]
    monkeypatch.delenv("CASCADICE_DATA")
    assert data.load("mnist").train.x[0, 0].tolist() == first["cache/cascadice"]


def test_the_home_folder_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert source_files.search_path("~/mine") == [Path.home() / "mine", Path.home() / ".cache" / "cascadice"]


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "tiny-imagenet"])
def test_absent_data_names_every_place_and_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASCADICE_DATA", str(tmp_path / "environment"))
    with pytest.raises(FileNotFoundError) as caught:
        data.load(name, tmp_path / "root")
    message = str(caught.value)
    for place in ("root", "environment", "cache/cascadice"):
        assert f"{tmp_path / place}, {tmp_path / place / name}" in message
    assert "--download" in message
    assert "CASCADICE_DATA" in message
    assert "\n" not in message


def test_an_incomplete_folder_does_not_count_as_found(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / mnist_files.FILES[3]).unlink()
    with pytest.raises(FileNotFoundError, match="MNIST was not found"):
        data.mnist(tmp_path)


def test_unknown_names_and_bundled_data() -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'cifar1O'\. Did you mean 'cifar10'"):
        data.load("cifar1O")
    assert data.load("digits").name == "digits"
    assert data.load("pydoc").name == "pydoc"
    assert all(source.description for source in data.DATASETS.values())


# ---------------------------------------------------------------- the real files


@pytest.mark.parametrize(
    ("name", "shape", "classes", "mean"),
    [("mnist", (1, 28, 28), 10, 0.0), ("cifar10", (3, 32, 32), 10, 0.0), ("cifar100", (3, 32, 32), 100, 0.0)],
)
def test_real_files_are_read_and_come_out_standardised(
    name: str, shape: tuple[int, ...], classes: int, mean: float
) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"no {name} in {REAL}; set CASCADICE_DATA to run this")
    found = data.load(name, REAL)
    assert found.train.shape == shape
    assert len(found.classes) == classes == len(found.train.y.unique())
    x, _ = found.train.take(torch.arange(2000))
    assert abs(x.mean().item() - mean) < 0.05
    assert abs(x.std().item() - 1) < 0.06


def test_real_tiny_imagenet_decodes() -> None:
    packs = sorted((REAL / "tiny-imagenet").glob("tiny*.npz"))
    if not packs:
        pytest.skip(f"no tiny-imagenet pack in {REAL}; set CASCADICE_DATA to run this")
    with np.load(packs[0]) as arrays:  # all of it takes many seconds; the first JPEGs show that the form is right
        blob, offsets = arrays["blob"], arrays["offsets"]
    for i in range(50):
        assert tiny_imagenet_files._decode(blob[offsets[i] : offsets[i + 1]].tobytes()).shape == (3, 64, 64)
