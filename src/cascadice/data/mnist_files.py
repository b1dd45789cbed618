"""MNIST, from the four original idx files, compressed or not."""

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cascadice.data.samples import DataSet, Samples, labels_of
from cascadice.data.source_files import Root, expect, locate, reading

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LAYOUTS = [[f"{folder}{name}{suffix}" for name in FILES] for folder in ("", "MNIST/raw/") for suffix in (".gz", "")]
LARGEST = 1 << 31  # bytes, so that a damaged header cannot fill the memory
FIRST_LABELS = [5, 0, 4, 1, 9, 2], [7, 2, 1, 0, 4, 1]  # of training and test images
MEAN, STD = torch.tensor([0.1307], dtype=torch.float32), torch.tensor([0.3081], dtype=torch.float32)


def mnist(root: Root = None) -> DataSet:
    """MNIST: 60,000 + 10,000 images of 1×28×28 handwritten digits (LeCun et al. 1998).

    Fashion-MNIST, whose files have the same names, is not mistaken for MNIST.

    Args:
        root: The folder to search first (it holds `mnist/`, `MNIST/raw/` or the files); then $CASCADICE_DATA, then the
            cache.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If its files are not found.
        ValueError: If a file is damaged.

    Example:
        >>> mnist("data").train.x.shape  # doctest: +SKIP
        torch.Size([60000, 1, 28, 28])
    """
    train_x, train_y, test_x, test_y = locate("MNIST", "mnist", LAYOUTS, root, _is_mnist)
    return DataSet("mnist", _samples(train_x, train_y), _samples(test_x, test_y), tuple("0123456789"))


def _is_mnist(paths: list[Path]) -> bool:
    """Whether the folder is named MNIST or the first labels are MNIST's: other data sets use the same file names."""
    if paths[0].parent.parent.name == "MNIST":
        return True
    beginnings = [read_idx(path, dimensions=1)[:6].tolist() for path in paths[1::2]]
    return all(labels == first[: len(labels)] for labels, first in zip(beginnings, FIRST_LABELS, strict=True))


def _samples(images: Path, labels: Path) -> Samples:
    x = read_idx(images, dimensions=3)[:, None]
    numbers = read_idx(labels, dimensions=1).numpy()
    with reading(labels):
        y = labels_of(numbers, 10, "labels")
        expect("one label for each of the images, that is", len(x), len(y))
    return Samples(x, y, MEAN, STD)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """An idx file of unsigned bytes: magic 0, 0, 8, dimensions; big-endian sizes; then the bytes."""
    with reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        expect("the magic number", f"{0x0800 + dimensions:08x}", file.read(4).hex())
        header = file.read(4 * dimensions)
        expect("a header of bytes", 4 + 4 * dimensions, 4 + len(header))
        shape = np.frombuffer(header, ">u4").tolist()
        if math.prod(shape) > LARGEST:
            raise ValueError(f"expected at most {LARGEST} bytes, found the shape {shape}")
        content = file.read(math.prod(shape) + 1)  # no more, however much is compressed into the file
        expect("as many bytes as the shape says, that is", math.prod(shape), len(content))
        return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())
