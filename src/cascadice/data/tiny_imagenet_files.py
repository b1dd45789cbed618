"""Tiny ImageNet, from the official folder of JPEG files or from an npz pack of them."""

import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cascadice.data.samples import DataSet, Samples, labels_of, names_of
from cascadice.data.source_files import Root, expect, locate, open_npz, reading

MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float32)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float32)
SIDE = 64
T = TypeVar("T")


def tiny_imagenet(root: Root = None) -> DataSet:
    """Tiny ImageNet: 100,000 + 10,000 images of 3×64×64 in 200 classes, named by their wnids (Le & Yang 2015).

    The official validation images, whose labels are public, are the test set. Cost: 1.4 GB of memory.

    Args:
        root: The folder to search first; then $CASCADICE_DATA, then the cache.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If its files are not found.
        ValueError: If a file is damaged.

    Example:
        >>> len(tiny_imagenet("data").classes)  # doctest: +SKIP
        200
    """
    (path,) = locate("Tiny ImageNet", "tiny-imagenet", [["tiny-imagenet-200"], ["tiny*.npz"]], root)
    return read_folder(path) if path.is_dir() else read_pack(path)


def read_folder(folder: Path) -> DataSet:
    """Read the unpacked official archive: wnids.txt, train/WNID/images/*, val/images/*, val/val_annotations.txt."""
    listing = folder / "wnids.txt"
    with reading(listing):
        wnids = listing.read_text().split()
        if not wnids:
            raise ValueError("expected one wnid a line, found none")
        expect("wnids that all differ, that is", len(set(wnids)), len(wnids))
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train: list[tuple[Path, int]] = []
    for wnid, label in number.items():
        images = folder / "train" / wnid / "images"
        if not (paths := sorted(images.glob("*.JPEG"))):
            raise FileNotFoundError(f"{images} must hold JPEG files; found none. Unpack tiny-imagenet-200.zip again.")
        train += [(path, label) for path in paths]
    annotations = folder / "val" / "val_annotations.txt"
    with reading(annotations):
        rows = [line.split("\t")[:2] for line in annotations.read_text().splitlines()]
        test = [(folder / "val" / "images" / name, number[wnid]) for name, wnid in rows]
        present = sorted((folder / "val" / "images").glob("*.JPEG"))
        expect("a line for each image in val/images, that is", len(present), len({path for path, _ in test}))
        expect("a line for each image once, that is", len(present), len(test))
    return DataSet("tiny-imagenet", _decode_files(train), _decode_files(test), tuple(wnids))


def _decode_files(labelled: Sequence[tuple[Path, int]]) -> Samples:
    def decode_file(path: Path) -> Tensor:
        with reading(path):
            return _decode(path.read_bytes())

    x = _decode_all(decode_file, [path for path, _ in labelled])
    return Samples(x, torch.tensor([label for _, label in labelled]), MEAN, STD)


def read_pack(path: Path) -> DataSet:
    """Read one npz file with concatenated JPEG files in `blob`, their `offsets`, `label`, `is_val` and `wnids`."""
    with open_npz(path, "blob", "offsets", "wnids", "label", "is_val") as arrays:
        blob, offsets, wnids = arrays("blob"), arrays("offsets"), names_of(arrays("wnids"), "wnids")
        labels = labels_of(arrays("label"), len(wnids), "label")
        expect("offsets for as many images as labels, that is", (len(labels) + 1,), offsets.shape)
        held_out = torch.from_numpy(_held_out(arrays("is_val"), len(labels)))
        expect("a blob of bytes", ("uint8", (int(offsets[-1]),)), (str(blob.dtype), blob.shape))
        if offsets.dtype.kind not in "iu" or offsets[0] != 0 or (offsets[1:] <= offsets[:-1]).any():
            raise ValueError(f"offsets must be integers that begin at 0 and grow; found {offsets.dtype}")

        def decode_one(i: int) -> Tensor:
            return _decode(blob[offsets[i] : offsets[i + 1]].tobytes())

        x = _decode_all(decode_one, range(len(labels)))
    train, test = (Samples(x[chosen], labels[chosen], MEAN, STD) for chosen in (~held_out, held_out))
    return DataSet("tiny-imagenet", train, test, wnids)


def _held_out(flags: NDArray[Any], images: int) -> NDArray[np.bool_]:
    """Which images are test images, from one flag per image; both kinds must occur."""
    expect("is_val to have the shape", (images,), flags.shape)
    if flags.dtype.kind not in "biu" or not np.isin(flags, (0, 1)).all() or len(np.unique(flags)) != 2:
        raise ValueError(f"is_val must be 0 or 1 for each image, and both must occur; found {flags.dtype}")
    return flags.astype(bool)


def _decode_all(decode: Callable[[T], Tensor], sources: Sequence[T]) -> Tensor:
    """Decode on all cores (Pillow releases the GIL), directly into one tensor."""
    images = torch.empty(len(sources), 3, SIDE, SIDE, dtype=torch.uint8)
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.filterwarnings("ignore", ".*decompression bomb")  # `_decode` refuses images of another size
        for i, image in enumerate(pool.map(decode, sources)):
            images[i] = image
    return images


def _decode(jpeg: bytes) -> Tensor:
    from PIL import Image

    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
        expect("an image of size", (SIDE, SIDE), image.size)
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
