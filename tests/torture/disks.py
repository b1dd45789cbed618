"""Full disks: small ones mounted in memory, and files that may not grow; then room is made, and the work done again."""

import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torture.children import call
from torture.kills import WORKS, Work, right_of
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

ROOM = 1 << 20  # bytes: about what the largest of the works needs
PAGE = 4096


def unavailable(stage: Stage) -> str:
    """Why these attacks cannot be made here; nothing if they can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return "only root may mount small disks"
    try:
        with small_disk(stage.home, ROOM):
            return ""
    except subprocess.CalledProcessError:
        return "this machine lets nobody mount small disks"


@contextmanager
def small_disk(home: Path, size: int) -> Iterator[Path]:
    """A disk in memory of so many bytes."""
    place = Path(tempfile.mkdtemp(prefix="disk-", dir=home))
    options = f"size={max(size, PAGE)},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True, capture_output=True)
        place.rmdir()


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Works on disks with less and less room, by chance; every third with files that may not grow."""
    rng = random.Random(seed)
    while True:
        for work in rng.sample(WORKS, len(WORKS)):
            yield _on_small_disk(stage, work, right_of(stage, work)[1], rng.randrange(0, 60) * PAGE)
            if rng.random() < 0.5:
                yield _with_short_files(
                    stage, work, right_of(stage, work)[1], rng.choice([0, 1, 100, 1000, 4000, 10_000])
                )


def _on_small_disk(stage: Stage, work: Work, right: str, room: int) -> Attempt:
    what = f"{work.name} with {room // 1024} KiB left on the disk"
    held = _size(stage.run) if work.pristine else 0
    with small_disk(stage.home, held + room) as place:
        if work.pristine:
            shutil.copytree(stage.run, place / "run")
        ended = call(*work.begin(place), then=lambda: work.answer(place))
        if ended.crashed:
            return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        if ended.code == 0:
            wrong = ended.answer != right
            return Attempt(what, Outcome.SILENT if wrong else Outcome.HELD, f"{ended.answer} for {right}")
        subprocess.run(["mount", "-o", f"remount,size={held + 16 * ROOM}", place], check=True, capture_output=True)
        return repaired(work, place, right, what, ended.last_line)


def _with_short_files(stage: Stage, work: Work, right: str, longest: int) -> Attempt:
    what = f"{work.name} with files of at most {longest} bytes"
    with stage.copy() if work.pristine else stage.empty() as place:
        ended = call(*work.begin(place), then=None, before=partial(_no_longer, longest))
        if ended.crashed and not ended.said.strip():  # what it would say may not be written either
            return Attempt(what, Outcome.HELD)
        if ended.crashed or ended.code == 0:
            outcome = Outcome.TRACEBACK if ended.crashed else Outcome.SILENT
            if ended.code == 0 and work.answer(place) == right:
                outcome = Outcome.HELD
            return Attempt(what, outcome, ended.said[-1500:])
        return repaired(work, place, right, what, ended.last_line)


def repaired(work: Work, place: Path, right: str, what: str, said: str) -> Attempt:
    """Whether the work, done again where nothing is in its way, comes out right."""
    for again in work.again:
        ended = call(*again(place), then=lambda: work.answer(place))
        if ended.crashed:
            return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        if ended.code == 0:
            wrong = ended.answer != right
            return Attempt(what, Outcome.SILENT if wrong else Outcome.HELD, f"{ended.answer} for {right}, after {said}")
        said = f"{said} / {ended.last_line}"
    return Attempt(what, Outcome.LOST, said)


def _no_longer(longest: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # what is printed goes into a file too
    resource.setrlimit(resource.RLIMIT_FSIZE, (longest + 2000, longest + 2000))


def _size(folder: Path) -> int:
    """What a folder takes on a disk with pages of 4 KiB."""
    return sum(-(-path.lstat().st_size // PAGE) * PAGE + PAGE for path in folder.rglob("*"))
