"""Files made to mislead a reader, or to hang or crash it."""

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.small_files import write_mnist, write_pack, write_tiny, write_tiny_pack

from cascadice import data


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CASCADICE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64, np.int8, ">i4"])
@pytest.mark.parametrize("column", [False, True])
def test_labels_of_every_width_are_read_and_a_column_is_one_label_a_sample(
    tmp_path: Path, kind: Any, column: bool
) -> None:
    labels = np.array([3, 9, 0, 1, 9], kind)
    write_pack(tmp_path / "cifar10.npz", 10, y_train=labels[:, None] if column else labels)
    assert data.cifar10(tmp_path).train.y.tolist() == [3, 9, 0, 1, 9]
    write_tiny_pack(tmp_path / "tiny_pack.npz", label=np.array([0, 1, 1], kind))
    assert data.tiny_imagenet(tmp_path).test.y.tolist() == [1]


@pytest.mark.parametrize(
    "labels", [np.zeros(5), np.zeros(5, bool), np.zeros((5, 2), int), np.zeros(0, int), np.array(3)]
)
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    write_pack(tmp_path / "cifar10.npz", 10, y_train=labels)
    with pytest.raises(ValueError, match=r"damaged: y_train must be integers, one per sample and at least one; found "):
        data.cifar10(tmp_path)


def test_labels_beyond_int64_are_refused(tmp_path: Path) -> None:
    write_pack(tmp_path / "cifar10.npz", 10, y_train=np.array([0, 2**63 + 1, 0, 0, 0], np.uint64))
    with pytest.raises(ValueError, match=r"y_train must lie in 0\.\.9"):
        data.cifar10(tmp_path)


def test_test_images_may_be_told_by_zeros_and_ones(tmp_path: Path) -> None:
    write_tiny_pack(tmp_path / "tiny_pack.npz", is_val=np.array([0, 1, 0]))
    found = data.tiny_imagenet(tmp_path)
    assert (found.train.y.tolist(), found.test.y.tolist()) == ([0, 1], [1])


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"is_val": np.array([0, 2, 1])}, "is_val must be 0 or 1 for each image"),
        ({"is_val": np.array([0.0, 1.0, 0.0])}, "is_val must be 0 or 1 for each image"),
        ({"is_val": np.zeros(3, bool)}, "is_val must be 0 or 1 for each image"),
        ({"is_val": np.array([[False, True, False]])}, r"is_val to have the shape \(3,\), found \(1, 3\)"),
        ({"is_val": np.array([True, False])}, r"is_val to have the shape \(3,\), found \(2,\)"),
        ({"label": np.array([0, 1.7, 1])}, "label must be integers"),
        ({"wnids": np.array(["n1", "n1"])}, "wnids must be a row of distinct names"),
        ({"wnids": np.array([["n1", "n2"]])}, "wnids must be a row of distinct names"),
    ],
)
def test_fields_of_a_pack_mean_one_thing_or_are_refused(
    tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    write_tiny_pack(tmp_path / "tiny_pack.npz", **changed)
    with pytest.raises(ValueError, match=f"tiny_pack.npz is damaged: .*{complaint}"):
        data.tiny_imagenet(tmp_path)


def test_offsets_must_grow_from_nought(tmp_path: Path) -> None:
    write_tiny_pack(tmp_path / "tiny_pack.npz")
    with np.load(tmp_path / "tiny_pack.npz") as arrays:
        offsets = arrays["offsets"]
    for wrong in (offsets[[0, 2, 1, 3]], offsets + np.array([1, 0, 0, 0])):
        write_tiny_pack(tmp_path / "tiny_pack.npz", offsets=wrong)
        with pytest.raises(ValueError, match="offsets must be integers that begin at 0 and grow"):
            data.tiny_imagenet(tmp_path)


def test_names_of_bytes_are_text(tmp_path: Path) -> None:
    write_tiny_pack(tmp_path / "tiny_pack.npz", wnids=np.array([b"n02", b"n01"]))
    assert data.tiny_imagenet(tmp_path).classes == ("n02", "n01")


def test_a_shape_that_was_made_smaller_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cifar10.npz"
    write_pack(path, 10, y_train=np.arange(5), x_train=np.zeros((5, 32, 32, 3), np.uint8))
    # the zip's checksum is over the whole member, and a reader that stops where the array ends never compares it
    path.write_bytes(path.read_bytes().replace(b"(5, 32, 32, 3)", b"(4, 32, 32, 3)").replace(b"(5,),", b"(4,),"))
    with pytest.raises(ValueError, match=r"cifar10\.npz is damaged: "):
        data.cifar10(tmp_path)


def _encrypted(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = -1
        while (start := content.find(header, start + 1)) >= 0:
            content[start + flags] |= 1
    path.write_bytes(bytes(content))


def _nested(path: Path) -> None:
    header = b"{'descr': " + b"(" * 3000 + b")" * 3000 + b", 'fortran_order': False, 'shape': (1,)}\n"
    with zipfile.ZipFile(path, "w") as zipped:
        for name in ("classes", "x_train", "x_test", "y_train", "y_test"):
            zipped.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


def _never_ending(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("attack", "complaint"),
    [(_encrypted, "is damaged: .*encrypted"), (_nested, "is damaged: "), (_never_ending, "must be a file")],
)
def test_hostile_packs_are_named(tmp_path: Path, attack: Callable[[Path], None], complaint: str) -> None:
    write_pack(tmp_path / "cifar10.npz", 10)
    attack(tmp_path / "cifar10.npz")
    with pytest.raises(ValueError, match=rf"cifar10\.npz {complaint}"):
        data.cifar10(tmp_path)


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "cifar10.npz").symlink_to("cifar10.npz")
    with pytest.raises(OSError, match=r"symbolic links.*cifar10\.npz"):
        data.cifar10(tmp_path)
    (tmp_path / "mnist").symlink_to("mnist")
    with pytest.raises(FileNotFoundError, match="MNIST was not found"):
        data.mnist(tmp_path)


@pytest.mark.parametrize(("side", "complaint"), [(0xFFFF, ".*decompression bomb"), (10_000, ".*image of size .*10000")])
def test_a_jpeg_of_many_pixels_is_named_once(tmp_path: Path, side: int, complaint: str) -> None:
    """Pillow refuses the first and warns of the second, which is an error in tests."""
    folder = write_tiny(tmp_path / "tiny-imagenet-200")
    picture = folder / "train" / "n01" / "images" / "n01_1.JPEG"
    content = bytearray(picture.read_bytes())
    start = content.find(b"\xff\xc0")
    content[start + 5 : start + 9] = side.to_bytes(2) * 2  # height and width
    picture.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=rf"n01_1\.JPEG is damaged: {complaint}"):
        data.tiny_imagenet(tmp_path)


def test_a_huge_idx_header_takes_no_memory(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, *[0xFFFFFFFF] * 3))
    with pytest.raises(ValueError, match="is damaged: expected at most 2147483648 bytes, found the shape"):
        data.mnist(tmp_path)


def test_a_shortened_list_of_test_images_is_noticed(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny-imagenet-200")
    annotations = folder / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    for content, found in (("", 0), (whole + whole, 2)):
        annotations.write_text(content)
        with pytest.raises(ValueError, match=f"is damaged: expected a line for each image .* is 1, found {found}"):
            data.tiny_imagenet(tmp_path)


def test_what_does_not_fit_into_memory_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pack(tmp_path / "cifar10.npz", 10)

    def full(*args: Any, **more: Any) -> None:
        raise MemoryError("8 EiB")

    monkeypatch.setattr(np.lib.format, "read_array", full)
    with pytest.raises(MemoryError, match=r"cifar10\.npz holds more than fits into memory: 8 EiB"):
        data.cifar10(tmp_path)
