"""What is attacked: small runs with every result there is, and the right answers to questions about them."""

import gc
import hashlib
import json
import re
import shutil
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from torture.children import call, command, start, wait

SETTINGS = (
    "run demo --nodes 4 --rounds 4 --per-node 12 --batch-size 4 --model-options hidden=[4] --eval-every 2 "
    "--record all --checkpoint-every 1 --quiet"
)
SMALL = SETTINGS.split()
LONGER = 6  # rounds to which the run is continued
VOLATILE = ("seconds", "started", "finished", "created", "seal")  # a ledger keeps all that was ever entered
PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII=")
SKIPPED = (".png", ".svg", ".jsonl")  # and lists, which tell how often things were written
DURATION = re.compile(rb"\b[\d.]+ s\b|Ledger seal: [0-9a-f]+")  # in words

# A command line about the run RUN that writes to OUT, where it writes anything.
QUESTIONS: Mapping[str, str] = {
    "influence": "influence RUN --kind truth,first-order --hops 1 --every 2 --eval-samples 40 --out OUT --quiet",
    "influence again": "influence RUN --kind first-order --hops 1 --eval-samples 40 --quiet",
    "detect": "detect RUN --out OUT --quiet",
    "choose": "choose RUN --out OUT --quiet",
    "reward": "reward RUN --budget 100 --overwrite --quiet",
    "forget": "forget RUN --participant 1 --out OUT --quiet",
    "report": "report RUN --out OUT/report.html",
    "check": "check RUN --quiet",
    "resume": f"run --resume --out RUN --rounds {LONGER} --quiet",
}


@dataclass
class Stage:
    """A folder to work in, the runs in it, and the right answers.

    `run` is pristine: each attempt gets a copy. `works` is what is known of works that are not attacked.
    """

    home: Path
    run: Path
    answers: dict[str, Any] = field(default_factory=dict)
    works: dict[str, Any] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    @contextmanager
    def copy(self, of: Path | None = None) -> Iterator[Path]:
        """A folder with a copy of a run in `run`; it is removed afterwards."""
        place = self.home / f"attempt-{next(self.numbers)}"
        shutil.copytree(self.run if of is None else of, place / "run", symlinks=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def empty(self) -> Iterator[Path]:
        """An empty folder; it is removed afterwards."""
        place = self.home / f"attempt-{next(self.numbers)}"
        place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def staged() -> Iterator[Stage]:
    """Train the run to attack, compute everything about it, and note the right answers, each found twice."""
    make_quick()
    fast = Path("/dev/shm")
    place = fast if fast.is_dir() and shutil.disk_usage(fast).free > 1 << 29 else None
    home = Path(tempfile.mkdtemp(prefix="torture-", dir=place))
    try:
        stage = Stage(home, home / "pristine")
        import_once(command(*SMALL, "--out", home / "warm"), command("influence", home / "warm", "--quiet"))
        _must(call(*SMALL, "--out", stage.run))
        for question in ("influence again", "detect", "choose", "reward", "forget", "report"):
            line = QUESTIONS[question].replace(" --out OUT/report.html", "").replace(" --out OUT", "")
            _must(call(*(stage.run if word == "RUN" else word for word in line.split())))
        for question in QUESTIONS:
            first, second = (_answer(stage, question) for _ in range(2))
            if first != second:
                raise AssertionError(f"the answer to {question} differs from time to time: {first} and {second}")
            stage.answers[question] = first
        yield stage
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _answer(stage: Stage, question: str) -> Any:
    with stage.copy() as place:
        return _must(ask(question, place)).answer


def _must(ended: Any) -> Any:
    if ended.code != 0:
        raise AssertionError(f"what is not attacked must work; exit {ended.code}: {ended.said[-2000:]}")
    return ended


def ask(question: str, place: Path, run: str = "run", **how: Any) -> Any:
    """Ask about the run in a place; the answer is of what was written."""
    arguments, then = asked(question, place, run)
    return call(*arguments, then=then, **how)


def asked(question: str, place: Path, run: str = "run") -> tuple[list[str], Callable[[], str]]:
    """The command line of a question about the run in a place, and how to read the answer."""
    out = place / f"out-{question.replace(' ', '-')}"
    words = (word.replace("OUT", str(out)) for word in QUESTIONS[question].split())
    where = {"influence again": "influence", "reward": "reward", "resume": "checkpoint.safetensors"}.get(question)
    answer = out if where is None else place / run / where
    return [str(place / run) if word == "RUN" else word for word in words], lambda: digest(answer, place)


def digest(path: Path, place: Path) -> str:
    """A digest of the results in a file or folder; times, pictures and the name of the place are left out."""
    hasher = hashlib.blake2b(digest_size=8)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.suffix not in SKIPPED and not file.name.startswith("."):
            hasher.update(f"{file.name} ".encode())
            hasher.update(DURATION.sub(b"", _content(file).replace(str(place).encode(), b"")))
    return hasher.hexdigest()


def _content(file: Path) -> bytes:
    if file.suffix == ".json":
        return json.dumps(without_times(json.loads(file.read_text())), sort_keys=True).encode()
    if file.suffix == ".html":
        return "".join(page_data(file)).encode()
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return repr(parquet.read_table(file, use_threads=False).to_pydict()).encode()
    return file.read_bytes()


def without_times(content: Any) -> Any:
    """A JSON value without the entries that differ from time to time."""
    if isinstance(content, dict):
        return {name: without_times(value) for name, value in content.items() if name not in VOLATILE}
    return [without_times(entry) for entry in content] if isinstance(content, list) else content


def page_data(page: Path) -> list[str]:
    """What a page says: its scripts and its text, without times."""
    return re.split(r'"(?:seconds|started|finished|created)":[^,}]*', page.read_text())


def import_once(*works: Callable[[], Any]) -> None:
    """Import here, once, what these commands import while they run; every child would take seconds for it.

    The commands themselves run in a child: threads that they start would be missing in later children.
    """

    def modules() -> tuple[int, list[str]]:
        for work in works:
            work()
        return 0, [name for name in sys.modules if "." in name or name not in sys.builtin_module_names]

    for name in _must(wait(start(modules))).answer:
        with suppress(Exception):
            import_module(name)
    gc.collect()
    gc.freeze()  # or each child would copy every page, to count references in it


@cache
def make_quick() -> None:
    """Leave out what takes longest and is not attacked: pictures, what draws the page, and reading digits."""
    import matplotlib.figure
    import plotly.offline
    import pyarrow.parquet  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    import cascadice.applications.forget.findings
    import cascadice.report.page  # noqa: F401
    from cascadice.data import catalogue

    torch.set_num_threads(1)
    digits = catalogue.digits()
    catalogue.digits = lambda: digits
    matplotlib.figure.Figure = NoFigure
    plotly.offline.get_plotlyjs = lambda: ""


class NoFigure:
    """Takes what a figure takes, draws nothing, and is saved as one pixel."""

    def __init__(self, **options: Any) -> None:
        self.axes: list[Any] = []

    def subplots(self, rows: int = 1, columns: int = 1, *, squeeze: bool = True, **options: Any) -> Any:
        array = np.empty((rows, columns), dtype=object)
        array.flat = [Axes() for _ in range(array.size)]
        if not squeeze:
            return array
        return array.item() if array.size == 1 else array.squeeze()

    def savefig(self, file: Path, **options: Any) -> None:
        file.write_bytes(PIXEL)

    def __getattr__(self, name: str) -> Any:
        return MagicMock()


class Axes:
    """Takes what axes take. Not a mock itself, which NumPy would take for an empty list."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()
