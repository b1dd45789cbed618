"""Small files in the official format of each data set, for the tests of readers and the attacks on them."""

import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.data import cifar_files

DRAW = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


MNIST = {"train": [5, 0, 4, 1, 9, 2], "t10k": [7, 2, 1]}  # how the official labels begin


FASHION = {"train": [9, 0, 0, 3, 0, 2], "t10k": [9, 2, 1]}


def write_mnist(folder: Path, suffix: str = "", labels: dict[str, list[int]] = MNIST) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    arrays = {}
    for name, n in (("train", 6), ("t10k", 3)):
        arrays[f"{name}-images-idx3-ubyte"] = DRAW.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{name}-labels-idx1-ubyte"] = np.array(labels[name][:n], dtype=np.uint8)
    for name, array in arrays.items():
        content = idx_bytes(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    return arrays


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes what Python 2 wrote into the official files: text as byte strings, and NumPy's module of that time."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, value: str | bytes) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = "numpy.core.multiarray" if value.__name__ == "_reconstruct" else "numpy"
        self.write(pickle.GLOBAL + f"{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_text
    dispatch[type] = dispatch[type(np.ndarray.tolist)] = save_global


def python2_pickle(content: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue()


def write_cifar(folder: Path, form: cifar_files.Form, n: int = 4) -> tuple[cifar_files.Form, dict[str, Any]]:
    """Official-looking files, and the form with their checksums."""
    folder.mkdir(parents=True)
    coarse = "coarse_labels" in form.labels or "fine_labels" in form.labels
    contents: dict[str, Any] = {}
    for file in [*form.train, form.test]:
        batch: dict[str, Any] = {"data": DRAW.integers(0, 256, (n, 3072), dtype=np.uint8), "batch_label": "one of them"}
        names = {"fine_labels": 100, "coarse_labels": 20} if coarse else {"labels": 10}
        batch |= {name: DRAW.integers(0, classes, n).tolist() for name, classes in names.items()}
        contents[file] = batch
    if coarse:
        contents[form.meta] = {
            "fine_label_names": [f"f{i}" for i in range(100)],
            "coarse_label_names": [f"g{i}" for i in range(20)],
        }
    else:
        contents[form.meta] = {"label_names": [f"c{i}" for i in range(10)], "num_cases_per_batch": n}
    for file, content in contents.items():
        (folder / file).write_bytes(python2_pickle(content))
    return with_checksums(folder, form), contents


def with_checksums(folder: Path, form: cifar_files.Form) -> cifar_files.Form:
    return form._replace(checksums={p.name: hashlib.md5(p.read_bytes()).hexdigest() for p in folder.iterdir()})


def write_pack(path: Path, n_classes: int, **changed: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for part, n in (("train", 5), ("test", 2)):
        arrays[f"x_{part}"] = DRAW.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = DRAW.integers(0, n_classes, n)
        arrays[f"y_{part}_coarse"] = DRAW.integers(0, 20, n)
    arrays["classes"] = np.array([f"c{i}" for i in range(n_classes)])
    arrays["coarse_classes"] = np.array([f"g{i}" for i in range(20)])
    arrays |= changed
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return arrays


def jpeg(colour: int, side: int = 64, mode: str = "RGB") -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (side, side), (colour, 100, 50)).convert(mode).save(file, "JPEG", quality=95)
    return file.getvalue()


def write_tiny(folder: Path) -> Path:
    wnids = ["n02", "n01"]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    for label, wnid in enumerate(wnids):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in range(2):
            (folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG").write_bytes(jpeg(100 * label + 40 * i))
    (folder / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(7, mode="L"))
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t63\t63\n")
    return folder


def write_tiny_pack(path: Path, **changed: Any) -> None:
    pictures = [jpeg(0), jpeg(80, mode="L"), jpeg(160)]
    arrays = {
        "blob": np.frombuffer(b"".join(pictures), np.uint8),
        "offsets": np.cumsum([0] + [len(p) for p in pictures]),
        "label": np.array([0, 1, 1], np.uint8),
        "is_val": np.array([False, True, False]),
        "wnids": np.array(["n02", "n01"]),
    }
    np.savez(path, **(arrays | changed))
