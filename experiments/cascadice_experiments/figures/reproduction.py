"""Make figures one after the other into a folder: finished ones are kept, and what cannot be made is named.

The files are those of `cascadice.report.page.results`. A figure's result.json is written last, so a figure that has
one is complete.
"""

import gc
import platform
import shutil
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch

import cascadice
from cascadice import data
from cascadice.files import locks, read_json, remove_drafts, replacing, write_json
from cascadice.report.page.results import ERROR, MANIFEST, ORDER, PARTS, PICTURES, POINTS, RESULT
from cascadice.runs.folder import check_writable
from cascadice_experiments.data_sets import BESIDE
from cascadice_experiments.figures import index_page
from cascadice_experiments.figures.figure import Context, Figure, Mixing, Result
from cascadice_experiments.figures.parts import Parts, Say, plain
from cascadice_experiments.figures.registry import FIGURES
from cascadice_experiments.study import device_name, write_points


class Request(NamedTuple):
    """Where and how figures are made; `mixing` is for those that take a matrix."""

    out: Path
    quick: bool = False
    device: str = "cpu"
    data_root: str | None = None
    mixing: Mixing | None = None
    overwrite: bool = False
    download: bool = False


class Outcome(NamedTuple):
    """The names of the figures that were made, were kept from earlier, lack their data, or failed."""

    made: list[str]
    kept: list[str]
    skipped: list[str]
    failed: list[str]


def reproduce(figures: Mapping[str, Figure], request: Request, say: Say = print) -> Outcome:
    """Make these figures, and the pages that show all figures in the folder; `say` gets each line of progress.

    Raises ValueError if the folder holds something else, figures with other settings or by another version, or if
    another process works in it.
    """
    check_writable(request.out)
    with locks.locked(request.out):
        return _reproduce(figures, request, say)


def _reproduce(figures: Mapping[str, Figure], request: Request, say: Say) -> Outcome:
    settings = {name: settings_of(name, figure, request) for name, figure in figures.items()}
    kept = _check_folder(settings, request)
    outcome, clock = Outcome([], kept, [], []), _Clock({n: f for n, f in figures.items() if n not in kept}, request)
    write_json(request.out / MANIFEST, {"version": cascadice.__version__, ORDER: list(FIGURES)})
    for name, figure in figures.items():
        if name in kept:
            say(f"{name}: already made")
            continue
        say(f"{name}: {figure.title}")
        _attempt(name, figure, settings[name], request, say, outcome).append(name)
        index_page.write(request.out)
        if time_left := clock.after(name):
            say(time_left)
    index_page.write(request.out)
    return outcome


def settings_of(name: str, figure: Figure, request: Request) -> dict[str, Any]:
    """Everything that determines a figure's numbers, as plain data."""
    digest = None
    if figure.takes_mixing and request.mixing:
        content = blake2b(Path(request.mixing.path).read_bytes(), digest_size=8).hexdigest()
        digest = f"{content}{', normalised' * request.mixing.normalize}"
    plan = {"figure": name, "quick": request.quick, "mixing": digest, "panels": figure.settings(request.quick)}
    return dict(plain(plan))


def _check_folder(settings: Mapping[str, Mapping[str, Any]], request: Request) -> list[str]:
    """The figures that are finished with the same settings; anything else in the way is an error."""
    out = request.out
    if any(path.name != locks.LOCK for path in out.iterdir()):
        if not (out / MANIFEST).exists():
            raise ValueError(f"{out} holds files that `cascadice reproduce` did not write. Choose another --out.")
        if not request.overwrite:
            _check_version(out, read_json(out / MANIFEST).get("version"))
    if request.overwrite:
        for name in settings:
            shutil.rmtree(out / name, ignore_errors=True)
    results = {name: read_json(out / name / RESULT) for name in settings if (out / name / RESULT).exists()}
    for name, result in results.items():
        _check_version(out / name, result["version"])
        if result["settings"] != settings[name]:
            raise ValueError(
                f"{out / name} holds this figure with other settings{_difference(result['settings'], settings[name])}. "
                "Choose another --out, or replace it with --overwrite."
            )
    return list(results)


def _check_version(folder: Path, version: str | None) -> None:
    if version != cascadice.__version__:
        raise ValueError(
            f"{folder} was made by cascadice {version}; this is {cascadice.__version__}, whose numbers may differ. "
            "Choose another --out, or make these figures again with --overwrite."
        )


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    for name in ("quick", "mixing"):
        if there.get(name) != here[name]:
            return f" ({name} is {there.get(name)} there, {here[name]} here)"
    return ""


class _Clock:
    """Estimates the time left from how long figures took elsewhere and how much slower this machine is."""

    def __init__(self, figures: Mapping[str, Figure], request: Request) -> None:
        self.expected = {name: figure.seconds[0 if request.quick else 1] for name, figure in figures.items()}
        self.start, self.finished = monotonic(), 0.0

    def after(self, name: str) -> str:
        self.finished += self.expected.pop(name)
        elapsed = monotonic() - self.start
        left = sum(self.expected.values()) * elapsed / self.finished
        return f"  {elapsed / 60:.1f} min so far, about {left / 60:.1f} min left" if self.expected else ""


def _attempt(
    name: str, figure: Figure, settings: dict[str, Any], request: Request, say: Say, outcome: Outcome
) -> list[str]:
    """Make a figure; returns the list of the outcome to which it belongs."""
    folder = request.out / name
    root, missing = _find_data(figure.data, request)
    if missing:
        say(f"  skipped: {missing}")
        return outcome.skipped
    plan = figure.plan(request.quick)
    parts = Parts(folder / PARTS, settings, say, len(plan))
    context = Context(request.quick, request.device, root, request.mixing if figure.takes_mixing else None, parts.part)
    start = monotonic()
    try:
        result = figure.measure(plan, context)
        _write(folder, figure, settings, result, request, monotonic() - start + parts.earlier_seconds)
    except Exception as error:  # one figure that fails must not stop the others
        with replacing(folder / ERROR) as draft:
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


def _find_data(names: Sequence[str], request: Request) -> tuple[str | None, str]:
    """The folder that holds all of these data sets, or the message about the first one that is missing."""
    messages = []
    for folder in (request.data_root, str(BESIDE)):
        missing = [message for name in names if (message := _missing(name, folder))]
        if not missing:
            return folder, ""
        messages += missing
    if not request.download:
        return None, messages[0]
    try:
        for name in names:
            data.load(name, request.data_root, download=True)
    except OSError as error:
        return None, str(error)
    return request.data_root, ""


@cache
def _missing(name: str, folder: str | None) -> str:
    try:
        data.load(name, folder)
    except FileNotFoundError as error:
        return str(error)
    return ""


def _write(
    folder: Path, figure: Figure, settings: dict[str, Any], result: Result, request: Request, seconds: float
) -> None:
    write_points(folder / POINTS, result.points)
    for picture in PICTURES:
        figure.draw(result, folder / picture)
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    content = {
        "title": figure.title, "shows": figure.shows, "claim": figure.claim, "version": cascadice.__version__,
        "versions": versions, "device": device_name(request.device),
        "seconds": round(seconds, 1), "findings": result.findings, "summary": result.summary, "more": result.more,
        "settings": settings,
    }  # fmt: skip
    write_json(folder / RESULT, plain(content))
    (folder / ERROR).unlink(missing_ok=True)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    remove_drafts(folder)
