"""CIFAR-10 and CIFAR-100, from the official Python archives or an npz pack."""

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascadice.data.samples import DataSet, Samples, labels_of, names_of
from cascadice.data.source_files import Root, expect, locate, open_npz, reading


class Form(NamedTuple):
    """The names of a data set's official files and their fields, the normalisation, and the published md5 checksums."""

    train: Sequence[str]
    test: str
    meta: str
    labels: str
    names: str
    mean: Tensor
    std: Tensor
    checksums: Mapping[str, str]


TEN = Form(
    train=[f"data_batch_{number}" for number in range(1, 6)], test="test_batch", meta="batches.meta",
    labels="labels", names="label_names",
    mean=torch.tensor([0.4914, 0.4822, 0.4465], dtype=torch.float32),
    std=torch.tensor([0.2470, 0.2435, 0.2616], dtype=torch.float32),
    checksums={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
)  # fmt: skip
HUNDRED = Form(
    train=["train"], test="test", meta="meta", labels="fine_labels", names="fine_label_names",
    mean=torch.tensor([0.5071, 0.4865, 0.4409], dtype=torch.float32),
    std=torch.tensor([0.2673, 0.2564, 0.2762], dtype=torch.float32),
    checksums={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)  # fmt: skip


def cifar10(root: Root = None) -> DataSet:
    """CIFAR-10: 50,000 + 10,000 images of 3×32×32 in ten classes (Krizhevsky 2009).

    Args:
        root: The folder to search first; then $CASCADICE_DATA, then the cache.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If its files are not found.
        ValueError: If a file is damaged.

    Example:
        >>> cifar10("data").train.x.shape  # doctest: +SKIP
        torch.Size([50000, 3, 32, 32])
    """
    (path,) = locate("CIFAR-10", "cifar10", [["cifar-10-batches-py"], ["cifar10[!0]*npz"]], root)
    return (read_official if path.is_dir() else read_pack)("cifar10", path, TEN)


def cifar100(root: Root = None, coarse: bool = False) -> DataSet:
    """CIFAR-100: 50,000 + 10,000 images of 3×32×32 in a hundred classes (Krizhevsky 2009).

    Args:
        root: The folder to search first; then $CASCADICE_DATA, then the cache.
        coarse: Whether to use the twenty coarse classes instead.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If its files are not found.
        ValueError: If a file is damaged.

    Example:
        >>> len(cifar100("data", coarse=True).classes)  # doctest: +SKIP
        20
    """
    (path,) = locate("CIFAR-100", "cifar100", [["cifar-100-python"], ["cifar100*.npz"]], root)
    form = HUNDRED._replace(labels="coarse_labels", names="coarse_label_names") if coarse else HUNDRED
    return (read_official if path.is_dir() else read_pack)("cifar100-coarse" if coarse else "cifar100", path, form)


def read_official(name: str, folder: Path, form: Form) -> DataSet:
    """Read the unpacked official archive; a file is only unpickled if its md5 is the published one."""
    meta = folder / form.meta
    content = read_pickle(meta, form.checksums[form.meta])
    with reading(meta):
        classes = tuple(map(str, content[form.names]))

    def samples(files: Sequence[str]) -> Samples:
        batches = [_read_batch(folder / file, form, len(classes)) for file in files]
        x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        return Samples(x, y, form.mean, form.std)

    return DataSet(name, samples(form.train), samples([form.test]), classes)


def _read_batch(path: Path, form: Form, classes: int) -> tuple[Tensor, Tensor]:
    content = read_pickle(path, form.checksums[path.name])
    with reading(path):
        pixels, labels = content["data"], labels_of(np.asarray(content[form.labels]), classes, "labels")
        expect("pixels of type and shape", ("uint8", (len(labels), 3072)), (str(pixels.dtype), pixels.shape))
        return torch.from_numpy(pixels).reshape(-1, 3, 32, 32), labels


def read_pack(name: str, path: Path, form: Form) -> DataSet:
    """Read one npz file with x_train, y_train, x_test, y_test (uint8 NHWC, int64) and the names of the classes."""
    names, end = ("coarse_classes", "_coarse") if form.labels == "coarse_labels" else ("classes", "")
    fields = {f"x_{part}": f"y_{part}{end}" for part in ("train", "test")}
    with open_npz(path, names, *fields, *fields.values()) as arrays:
        classes = names_of(arrays(names), names)
        parts = []
        for images, labels in fields.items():
            x, y = arrays(images), labels_of(arrays(labels), len(classes), labels)
            expect(f"{images} of type and shape", ("uint8", (len(y), 32, 32, 3)), (str(x.dtype), x.shape))
            parts.append(Samples(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), y, form.mean, form.std))
    return DataSet(name, parts[0], parts[1], classes)


# Pickled arrays refer to this function; its module depends on the NumPy version that wrote them.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds NumPy arrays and plain containers, and refuses any other callable in the file."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which image data never needs")
        return _HARMLESS[module_name, global_name]


def read_pickle(path: Path, md5: str) -> Any:
    """Unpickle arrays and plain containers from `path`, if its md5 is the published one."""
    with reading(path):
        content = path.read_bytes()
        expect(f"md5 (of {len(content)} bytes)", md5, hashlib.md5(content, usedforsecurity=False).hexdigest())
        return _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
