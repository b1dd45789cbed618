"""Data sets in every format, changed after a run was trained on them: the change must be named, or change nothing."""

import io
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from data import small_files
from hypothesis import strategies as st

from cascadice.data import cifar_files
from torture.children import call, judged
from torture.mutations import BYTES, INSTEAD, PLACE, drawn, mutate
from torture.outcomes import Attempt
from torture.run_files import UNCHANGED
from torture.stage import Stage, digest

RUN = (
    "run demo --nodes 2 --rounds 2 --per-node 2 --batch-size 2 --model-options hidden=[2] --eval-every 2 "
    "--record all --quiet --partition with-replacement"
)
ASK = "influence RUN --kind first-order --hops 1 --data-root ROOT --out OUT --quiet"


class Format(NamedTuple):
    """A data set, and how to write small files of it."""

    data: str
    write: Callable[[Path], Any]


def _pack(folder: Path, name: str, classes: int, compressed: bool) -> None:
    arrays = small_files.write_pack(folder / name / f"{name}_small.npz", classes)
    if compressed:
        np.savez_compressed(folder / name / f"{name}_small.npz", **arrays)


def _official(folder: Path) -> None:
    cifar_files.TEN, _ = small_files.write_cifar(
        folder / "cifar10" / "cifar-10-batches-py", cifar_files.TEN
    )  # their checksums


def _tiny_folder(folder: Path) -> None:
    small_files.write_tiny(folder / "tiny-imagenet" / "tiny-imagenet-200")


def _tiny_pack(folder: Path) -> None:
    (folder / "tiny-imagenet").mkdir(parents=True)
    small_files.write_tiny_pack(folder / "tiny-imagenet" / "tiny_small.npz")


FORMATS = {
    "idx": Format("mnist", lambda folder: small_files.write_mnist(folder / "mnist")),
    "idx.gz": Format("mnist", lambda folder: small_files.write_mnist(folder / "mnist", ".gz")),
    "npz": Format("cifar10", partial(_pack, name="cifar10", classes=10, compressed=False)),
    "compressed npz": Format("cifar100", partial(_pack, name="cifar100", classes=100, compressed=True)),
    "CIFAR": Format("cifar10", _official),
    "JPEG folder": Format("tiny-imagenet", _tiny_folder),
    "JPEG pack": Format("tiny-imagenet", _tiny_pack),
}  # fmt: skip


def _edited_npz(content: bytes, how: str, place: float, kind: str) -> bytes:
    """Rewrite a pack with one array of another type, shape or order, shortened, repeated, changed or left out."""
    with np.load(io.BytesIO(content)) as held:
        arrays = dict(held)
    name = sorted(arrays)[int(place * len(arrays))]
    array, at = arrays[name], int(place * 7919 % 1 * max(1, len(arrays[name])))
    changed: dict[str, Callable[[], Any]] = {
        "type": lambda: array.astype(kind),
        "column": lambda: array[:, None],
        "row": lambda: array[None],
        "shorter": lambda: array[:at],
        "fortran": lambda: np.asfortranarray(array),
        "transposed": lambda: array.T,
        "scalar": lambda: array.ravel()[0],
        "twice": lambda: np.concatenate([array, array]),
        "reversed": lambda: array[::-1],
        "value": lambda: np.where(np.arange(array.size).reshape(array.shape) == at, array.ravel()[0], array),
    }
    if how == "gone":
        del arrays[name]
    else:
        arrays[name] = changed[how]()
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


PACKS = ("npz", "compressed npz", "JPEG pack")
KINDS = ["u1", "i1", "u2", "u4", "u8", "i2", "i8", "f2", "f4", "f8", "?", "c8", ">i8", ">u2", "S3", "U2", "M8[s]"]
WAYS = ["type", "type", "column", "row", "shorter", "fortran", "transposed", "scalar", "twice", "reversed"]
WAYS += ["value", "gone"]
NPZ = st.tuples(
    st.sampled_from(WAYS),
    PLACE,
    st.sampled_from(KINDS),
).map(lambda chosen: ("npz", lambda content: _edited_npz(content, *chosen), f"npz {chosen!r}"))


def attacks(stage: Stage, seed: int) -> Iterator[Attempt | None]:
    """Change a data file of a run, then ask about the run."""
    os.environ.pop("CASCADICE_DATA", None)
    os.environ["XDG_CACHE_HOME"] = str(stage.home / "no-cache")
    rights = {name: _trained(stage, name) for name in FORMATS}
    strategy = st.sampled_from(list(FORMATS)).flatmap(
        lambda name: st.tuples(st.just(name), PLACE, st.one_of(*([NPZ] * 3 if name in PACKS else []), BYTES, INSTEAD))
    )
    return (_attack(stage, rights[name], name, place, mutation) for name, place, mutation in drawn(strategy, seed))


def _trained(stage: Stage, name: str) -> str:
    """Write the files, train on them, and give the right answer to the question."""
    home = stage.home / "data" / name
    FORMATS[name].write(home / "root")
    ended = call(*RUN.split(), "--data", FORMATS[name].data, "--data-root", home / "root", "--out", home / "run")
    if ended.code != 0:
        raise AssertionError(f"{name} must be read when it is whole: {ended.said[-1500:]}")
    right = _asked(home, home / "out")
    if right.code != 0:
        raise AssertionError(f"{name} must be asked about when it is whole: {right.said[-1500:]}")
    shutil.rmtree(home / "out")
    return str(right.answer)


def _asked(home: Path, out: Path, **how: Any) -> Any:
    where = {"RUN": home / "run", "ROOT": home / "root", "OUT": out}
    return call(*(where.get(word, word) for word in ASK.split()), then=lambda: digest(out, home), **how)


def _attack(stage: Stage, right: str, name: str, place: float, mutation: Any) -> Attempt | None:
    with stage.copy(of=stage.home / "data" / name) as copy:
        home = copy / "run"
        files = [path for path in sorted((home / "root").rglob("*")) if path.is_file()]
        changed = files[int(place * len(files))]
        what = f"{name}, {changed.name}: {mutation[2]}"
        ended = _asked(home, home / "out", before=lambda: None if mutate(changed, mutation) else os._exit(UNCHANGED))
        return None if ended.code == UNCHANGED else judged(what, ended, right)
