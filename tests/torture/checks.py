"""`check` on a run that somebody writes to: a healthy run is never called damaged, and the writer is not disturbed."""

import random
from collections.abc import Iterator
from time import sleep

from torture.children import Ended, call, command, start, wait
from torture.kills import WORKS, Work, right_of
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage
from torture.writers import OUTDATED

AT_ONCE = 3
NOT_YET = ("holds no run", "does not exist")  # a run that has only begun, or is being replaced


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Begin a work by chance, and check the run a few times before it ends."""
    rng = random.Random(seed)
    while True:
        yield _attack(stage, rng.choice(WORKS), [rng.uniform(0, 0.1) for _ in range(rng.randint(1, AT_ONCE))])


def _attack(stage: Stage, work: Work, pauses: list[float]) -> Attempt:
    what = f"check during {work.name}, after {', '.join(f'{pause:.3f}' for pause in pauses)} s"
    with stage.copy() if work.pristine else stage.empty() as place:
        writer, checks = start(command(*work.begin(place))), []
        for pause in pauses:
            sleep(pause)
            checks.append(start(command("check", place / "run", "--quiet")))
        written, *ends = wait(writer), *map(wait, checks)
        ends.append(call("check", place / "run", "--quiet"))
        for ended in (written, *ends):
            if ended.crashed:
                return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        if written.code != 0:
            return Attempt(what, Outcome.LOST, f"the writer was stopped: {written.last_line}")
        if (answer := work.answer(place)) != (right := right_of(stage, work)[1]):
            return Attempt(what, Outcome.SILENT, f"{answer} for {right}")
        for ended in ends:
            if alarms := false_alarms(ended):
                return Attempt(what, Outcome.SILENT, "a healthy run is called damaged: " + " / ".join(alarms))
        return Attempt(what, Outcome.HELD, "; ".join(f"{ended.code} {ended.last_line}" for ended in ends))


def false_alarms(ended: Ended) -> list[str]:
    """What a check said is wrong with a run that nothing is wrong with, but for results of a run that went on."""
    if ended.code == 0 or (ended.code == 2 and any(text in ended.last_line for text in NOT_YET)):
        return []
    wrong = [line for line in ended.said.splitlines() if line.startswith("wrong: ")]
    return [line for line in wrong if OUTDATED not in line] if wrong else [ended.last_line]
