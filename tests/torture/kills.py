"""Processes killed at every write and at random moments; then the work is done again, and must come out right."""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torture.children import call, command, interrupted, start, wait
from torture.outcomes import Attempt, Outcome
from torture.stage import LONGER, SMALL, Stage, asked, digest

WRITES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
CHECKPOINT = "checkpoint.safetensors"


class Work(NamedTuple):
    """Something to be killed in: the command in a place, and the commands that must bring it to the right end."""

    name: str
    pristine: bool  # whether it works on a copy of the finished run, not in an empty folder
    begin: Callable[[Path], list[str]]
    again: tuple[Callable[[Path], list[str]], ...]
    answer: Callable[[Path], str]


def _run(place: Path, *more: str) -> list[str]:
    return [*SMALL, "--out", str(place / "run"), *more]


def _resume(place: Path, rounds: int = 4) -> list[str]:
    return f"run --resume --out {place / 'run'} --rounds {rounds} --quiet".split()


def _ask(question: str, place: Path, *more: str) -> list[str]:
    return [*asked(question, place)[0], *more]


def _of_checkpoint(place: Path) -> str:
    return digest(place / "run" / CHECKPOINT, place)


def _of(question: str, place: Path) -> str:
    return asked(question, place)[1]()


def _question(question: str) -> Work:
    again, over = partial(_ask, question), lambda place: _ask(question, place, "--overwrite")
    return Work(question, True, again, (again, over), partial(_of, question))


WORKS = [
    Work("run", False, _run, (_resume, lambda place: _run(place, "--overwrite")), _of_checkpoint),
    Work("overwrite", True, lambda place: _run(place, "--overwrite"),
         (_resume, lambda place: _run(place, "--overwrite")), _of_checkpoint),
    Work("resume", True, lambda place: _resume(place, LONGER), (lambda place: _resume(place, LONGER),), _of_checkpoint),
    _question("influence"), _question("influence again"), _question("reward"), _question("forget"), _question("detect"),
    _question("choose"), _question("report"),
]  # fmt: skip


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Kill at the n-th write of each work for every n, in an order by chance; in between, at random moments."""
    rng = random.Random(seed)
    every = [(work, n) for work in WORKS for n in range(right_of(stage, work)[0])]
    while True:
        rng.shuffle(every)
        for work, n in every:
            right = right_of(stage, work)[1]
            yield _killed(stage, work, right, f"at write {n}", before=partial(die_at, n))
            seconds = rng.uniform(0, 0.3)
            signals = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
            yield _killed(stage, work, right, f"by {signals.name} after {seconds:.3f} s", (seconds, signals))


def _killed(
    stage: Stage, work: Work, right: str, when: str, stop: tuple[float, int] | None = None, **how: Any
) -> Attempt:
    """Begin, be killed, do it again."""
    what = f"{work.name}, killed {when}"
    with stage.copy() if work.pristine else stage.empty() as place:
        child = start(command(*work.begin(place)), **how)
        if stop is not None:
            interrupted(child, *stop)
        first = wait(child)
        if first.crashed:
            return Attempt(what, Outcome.TRACEBACK, f"{'hung ' * first.hung}{first.said[-1500:]}")
        saved = (place / "run" / CHECKPOINT).exists() and work.name != "overwrite"
        said = []
        for repair in work.again:
            ended = call(*repair(place), then=lambda: work.answer(place))
            if ended.crashed:
                return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
            if ended.code == 0:
                wrong = ended.answer != right
                return Attempt(what, Outcome.SILENT if wrong else Outcome.HELD, f"{ended.answer} for {right}")
            said.append(ended.last_line)
            if saved and work.name == "run":
                return Attempt(what, Outcome.LOST, f"a checkpoint that is not resumed: {said}")
        return Attempt(what, Outcome.LOST, " / ".join(said))


def right_of(stage: Stage, work: Work) -> tuple[int, str]:
    """How many writes a work makes, and its right result."""
    if work.name in stage.works:
        return stage.works[work.name]
    with stage.copy() if work.pristine else stage.empty() as place:
        counted: list[None] = []

        def counting() -> tuple[int, Any]:
            sys.addaudithook(lambda event, arguments: counted.append(None) if writes(event, arguments) else None)
            code = command(*work.begin(place))()
            return code, (len(counted), work.answer(place))

        ended = wait(start(counting))
        if ended.code != 0:
            raise AssertionError(f"{work.name} must work when nobody kills it: {ended.said[-1500:]}")
        stage.works[work.name] = tuple(ended.answer)
        return stage.works[work.name]


def writes(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audited event changes what is on disk."""
    if event != "open":
        return event in WRITES
    flags = arguments[2] if isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and not str(arguments[0]).startswith("/dev/")


def die_at(n: int) -> None:
    """Kill this process just before its n-th write."""
    left = [n]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if writes(event, arguments):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    sys.addaudithook(hook)
