"""Figures, one after the other, into a folder: what is there already is kept, what cannot be made is named.

OUT/reproduction.json          which version made all this
OUT/report.html, index.md      everything on one page
OUT/NAME/result.json           settings, versions, seconds, summary, findings: written last, so what has it is whole
OUT/NAME/points.parquet        every single point          OUT/NAME/figure.png, figure.svg
OUT/NAME/parts/*.json          what was measured of a figure that is not finished
"""

import gc
import math
import os
import platform
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from json import dumps
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

import cascadice
from cascadice import data
from cascadice.files import aside, read_json, sweep, write_json
from cascadice.runs.folder import check_writable
from cascadice_experiments.figures import pages
from cascadice_experiments.figures.pages import ERROR, MANIFEST, PARTS, PICTURES, POINTS, RESULT
from cascadice_experiments.figures.results import Figure, Means, Mixing, Part, Result
from cascadice_experiments.regimes import BESIDE

Say = Callable[[str], None]


class Request(NamedTuple):
    """How figures are to be made, and where; `mixing` is for those that take one."""

    out: Path
    quick: bool = False
    device: str = "cpu"
    data_root: str | None = None
    mixing: Mixing | None = None
    overwrite: bool = False
    download: bool = False


class Outcome(NamedTuple):
    """The names of the figures that were made, were there already, lack their data, or went wrong."""

    made: list[str]
    kept: list[str]
    skipped: list[str]
    failed: list[str]


def reproduce(figures: Mapping[str, Figure], request: Request, say: Say = print) -> Outcome:
    """Make these figures, and the page that shows all that are in the folder."""
    check_writable(request.out)
    request.out.mkdir(parents=True, exist_ok=True)
    with _alone(request.out):
        return _reproduce(figures, request, say)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Nobody else may reproduce into the folder meanwhile; the lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows, which cannot open folders either
        yield
        return
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"another process is at work in {out}. Wait for it, or choose another --out.") from None
    else:
        yield
    finally:
        os.close(folder)


def _reproduce(figures: Mapping[str, Figure], request: Request, say: Say) -> Outcome:
    settings = {name: described(name, figure, request) for name, figure in figures.items()}
    kept = _check_folder(settings, request)
    outcome, clock = Outcome([], kept, [], []), _Clock({n: f for n, f in figures.items() if n not in kept}, request)
    write_json(request.out / MANIFEST, {"version": cascadice.__version__})
    for name, figure in figures.items():
        if name in kept:
            say(f"{name}: was there already")
            continue
        say(f"{name}: {figure.title}")
        _attempt(name, figure, settings[name], request, say, outcome).append(name)
        pages.write(request.out)
        if left := clock.after(name):
            say(left)
    pages.write(request.out)
    return outcome


def described(name: str, figure: Figure, request: Request) -> dict[str, Any]:
    """All that determines a figure's numbers, as JSON knows it."""
    mixing = _digest(request.mixing) if figure.takes_mixing else None
    plan = {"figure": name, "quick": request.quick, "mixing": mixing, "panels": figure.settings(request.quick)}
    return plain(plan)  # type: ignore[no-any-return]


def _digest(mixing: Mixing | None) -> str | None:
    if mixing is None:
        return None
    content = blake2b(Path(mixing.path).read_bytes(), digest_size=8).hexdigest()
    return f"{content}{', normalised' * mixing.normalize}"


def plain(value: Any) -> Any:
    """With lists for tuples and null for what is no number, as it will be read back."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_folder(settings: Mapping[str, Mapping[str, Any]], request: Request) -> list[str]:
    """The figures that are there with the same settings; whatever else is in the way is an error."""
    out = request.out
    if any(out.iterdir()):
        if not (out / MANIFEST).exists():
            raise ValueError(f"{out} holds files that are no reproduction. Choose another folder with --out.")
        if not request.overwrite:
            _check_version(out, read_json(out / MANIFEST).get("version"))
    if request.overwrite:
        for name in settings:
            shutil.rmtree(out / name, ignore_errors=True)
    there = {name: read_json(out / name / RESULT) for name in settings if (out / name / RESULT).exists()}
    for name, result in there.items():
        _check_version(out / name, result["version"])
        if result["settings"] != settings[name]:
            raise ValueError(
                f"{out / name} holds this figure with other settings{_difference(result['settings'], settings[name])}. "
                "Choose another --out, or replace it with --overwrite."
            )
    return list(there)


def _check_version(there: Path, version: str | None) -> None:
    if version != cascadice.__version__:
        raise ValueError(
            f"{there} was made by cascadice {version}; this is {cascadice.__version__}, whose numbers may differ. "
            "Choose another --out, or make these figures again with --overwrite."
        )


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    for name in ("quick", "mixing"):
        if there.get(name) != here[name]:
            return f" ({name} is {there.get(name)} there, {here[name]} here)"
    return ""


class _Clock:
    """Time left, by what figures were found to take elsewhere and by how much slower it is here."""

    def __init__(self, figures: Mapping[str, Figure], request: Request) -> None:
        self.expected = {name: figure.seconds[0 if request.quick else 1] for name, figure in figures.items()}
        self.start, self.done = monotonic(), 0.0

    def after(self, name: str) -> str:
        self.done += self.expected.pop(name)
        elapsed = monotonic() - self.start
        left = sum(self.expected.values()) * elapsed / self.done
        return f"  {elapsed / 60:.1f} min so far, about {left / 60:.1f} min left" if self.expected else ""


def _attempt(
    name: str, figure: Figure, settings: dict[str, Any], request: Request, say: Say, outcome: Outcome
) -> list[str]:
    """Make a figure; the list of the outcome in which it belongs."""
    folder = request.out / name
    root, missing = _place(figure.data, request)
    if missing:
        say(f"  skipped: {missing}")
        return outcome.skipped
    plan = figure.plan(request.quick)
    parts = _Parts(folder / PARTS, settings, say, len(plan))
    means = Means(request.quick, request.device, root, request.mixing if figure.takes_mixing else None, parts.part)
    start = monotonic()
    try:
        result = figure.measure(plan, means)
        _write(folder, figure, settings, result, request, monotonic() - start + parts.before)
    except Exception as error:  # one figure that goes wrong must not take the others along
        with aside(folder / ERROR) as draft:
            draft.write_text(traceback.format_exc(), encoding="utf-8")
        say(f"  failed: {' '.join(str(error).split()) or type(error).__name__} (see {folder / ERROR})")
        return outcome.failed
    finally:
        if request.device.startswith("cuda"):
            gc.collect()
            torch.cuda.empty_cache()
    for finding in result.findings:
        say(f"  {finding}")
    say(f"  {monotonic() - start:.0f} s, in {folder}")
    return outcome.made


def _place(names: Sequence[str], request: Request) -> tuple[str | None, str]:
    """The folder in which all of these data sets are found; otherwise what is said of the first that is not."""
    said = []
    for place in (request.data_root, str(BESIDE)):
        absent = [text for name in names if (text := _absent(name, place))]
        if not absent:
            return place, ""
        said += absent
    if not request.download:
        return None, said[0]
    try:
        for name in names:
            data.load(name, request.data_root, download=True)
    except OSError as error:
        return None, str(error)
    return request.data_root, ""


@cache
def _absent(name: str, place: str | None) -> str:
    try:
        data.load(name, place)
    except FileNotFoundError as error:
        return str(error)
    return ""


class _Parts:
    """The parts of a figure's measurement: those that are there already, and those that are made now."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], say: Say, many: int) -> None:
        self.folder, self.settings, self.say, self.many = folder, settings, say, many
        self.start, self.made, self.found, self.before = monotonic(), 0, 0, 0.0

    def part(self, name: str, make: Callable[[], Part]) -> Part:
        """The part of this name, from where an earlier attempt left it if it did."""
        key = dumps([cascadice.__version__, self.settings, name], sort_keys=True).encode()
        path = self.folder / f"{blake2b(key, digest_size=8).hexdigest()}.json"
        if (kept := _kept(path)) is not None:
            self.found, self.before = self.found + 1, self.before + kept["seconds"]
            self.say(f"  {name}: was measured before")
            return kept["part"]  # type: ignore[no-any-return]
        start = monotonic()
        made = plain(make())
        write_json(path, {"seconds": monotonic() - start, "part": made})
        self.made += 1
        self.say(f"  {name}: {monotonic() - start:.1f} s{self._left()}")
        return read_json(path)["part"]  # type: ignore[no-any-return]  # as it will be when it is found again

    def _left(self) -> str:
        done, each = self.found + self.made, (monotonic() - self.start) / self.made
        left = each * (self.many - done)
        return f" ({done} of {self.many}, about {left / 60:.1f} min left of this figure)" if done < self.many else ""


def _kept(path: Path) -> dict[str, Any] | None:
    """What is there of a part; one that cannot be read is measured again."""
    try:
        kept = read_json(path)
    except (OSError, ValueError):
        return None
    return kept if kept.keys() == {"seconds", "part"} else None


def _write(
    folder: Path, figure: Figure, settings: dict[str, Any], result: Result, request: Request, seconds: float
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with aside(folder / POINTS) as draft:
        parquet.write_table(pa.table(dict(result.points)), draft)
    for picture in PICTURES:
        with aside(folder / picture) as draft:
            figure.draw(result, draft)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    cuda = request.device.startswith("cuda")
    content = {
        "title": figure.title, "shows": figure.shows, "claim": figure.claim, "version": cascadice.__version__,
        "versions": versions, "device": torch.cuda.get_device_name() if cuda else f"cpu ({platform.machine()})",
        "seconds": round(seconds, 1), "findings": result.findings, "summary": result.summary, "more": result.more,
        "settings": settings,
    }  # fmt: skip
    write_json(folder / RESULT, plain(content))
    (folder / ERROR).unlink(missing_ok=True)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    sweep(folder)
