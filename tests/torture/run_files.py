"""Every file of a run and of the results about it, changed; then a question whose answer is known."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from torture.children import judged
from torture.mutations import drawn, mutate, mutation_of
from torture.outcomes import Attempt, Outcome
from torture.stage import QUESTIONS, Stage, ask

UNCHANGED = 99
LOST_TOO = st.sampled_from([False, False, False, True])  # whether the list of checksums goes too
DERIVED = (".png", ".html")
LIST = "checksums.jsonl"
NOTED = ("manifest.json", LIST)  # where a command that fails may say so
# What a file is read by; every file is also in front of all the other commands.
READERS = {
    "influence/": ["influence again", "report"],
    "ledger/": ["reward", "report"],
    "reward/": ["reward", "report"],
    "forget/": ["report"],
    "detect/": ["report"],
    "choose/": ["report"],
    "metrics.parquet": ["report", "resume", "influence"],
    "checkpoint.safetensors": ["resume", "report"],
}


def attacks(stage: Stage, seed: int) -> Iterator[Attempt | None]:
    """Change a file, ask a question."""
    return (attack(stage, *chosen) for chosen in drawn(_attacks(stage), seed))


def _attacks(stage: Stage) -> st.SearchStrategy[Any]:
    files = [path for path in sorted(stage.run.rglob("*")) if path.is_file() and path.suffix not in DERIVED]
    names = [str(path.relative_to(stage.run)) for path in files if not path.name.startswith(".")]
    return st.sampled_from(names).flatmap(
        lambda name: st.tuples(st.just(name), mutation_of(name), st.sampled_from(_questions(name)), LOST_TOO)
    )


def _questions(name: str) -> list[str]:
    own = next((readers for start, readers in READERS.items() if name.startswith(start)), [])
    return own * 4 + [question for question in QUESTIONS if question != "reward"] if own else list(QUESTIONS)


def attack(stage: Stage, name: str, mutation: Any, question: str, lost: bool = False) -> Attempt | None:
    """Change one file of a copy of the run, then ask; where the answer is an error, all other files must be kept.

    If the list of checksums is `lost` as well, there must be no answer.
    """
    what = f"{name}: {mutation[2]}{', and no list' * lost}; {question}"
    with stage.copy() as place:
        changed = place / "run" / name
        if lost and name not in NOTED:
            (place / "run" / LIST).unlink()
        ended = ask(question, place, before=lambda: None if mutate(changed, mutation) else os._exit(UNCHANGED))
        if ended.code == UNCHANGED:
            return None
        harmless = name == LIST and listed(changed) == listed(stage.run / name)
        answerable = (question != "check" or harmless) and (place / "run" / LIST).exists()
        right = stage.answers[question] if answerable else "something is wrong"
        if ended.code not in (0, 1, 2, 3):
            return Attempt(what, Outcome.TRACEBACK, f"exit {ended.code}: {ended.said[-800:]}")
        if question == "report" and ended.code == 0 and "note:" in ended.said:
            return Attempt(what, Outcome.HELD, ended.said)
        attempt = judged(what, ended, right)
        if attempt.outcome == Outcome.HELD and ended.code != 0 and (gone := missing(stage.run, place / "run", name)):
            return Attempt(what, Outcome.LOST, f"{gone} gone or changed; {ended.last_line}")
        return attempt


def listed(path: Path) -> dict[str, Any] | None:
    """What a list of checksums says in the end. None: it is no list.

    A line that a later one replaces means nothing; nor does an unfinished last line, as a loss of power leaves it.
    """
    last: dict[str, Any] = {}
    if not path.is_file():
        return None
    try:
        for line in path.read_bytes().rpartition(b"\n")[0].splitlines():
            entry = json.loads(line)
            name = entry.get("file", entry.get("format", ""))
            last = {other: kept for other, kept in last.items() if not name or not f"{other}/".startswith(f"{name}/")}
            last |= {name: entry} if "file" not in entry or "sha256" in entry else {}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return last


def missing(pristine: Path, run: Path, changed: str) -> str:
    """The first file of a run that a command which failed removed or changed, other than by the attack; or nothing."""
    for path in sorted(pristine.rglob("*")):
        name, derived = str(path.relative_to(pristine)), path.suffix in DERIVED or path.name in NOTED
        if path.is_file() and name != changed and not derived and not path.name.startswith("."):
            copy = run / name
            if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                return name
    return ""


def unavailable(stage: Stage) -> str:
    """Why these attacks cannot be made here; nothing if they can."""
    return "" if shutil.disk_usage(stage.home).free > 1 << 28 else f"{stage.home} is nearly full"
