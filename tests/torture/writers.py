"""Several processes that write into one folder at once: at most one computes, and what it leaves must be right."""

import random
from collections.abc import Iterator
from time import sleep

from torture.children import call, command, start, wait
from torture.disks import repaired
from torture.kills import WORKS, Work, right_of
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

TOGETHER = 3
OUTDATED = "it is about the models after"


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Two or three works at once, begun within a few hundredths of a second."""
    rng = random.Random(seed)
    by_name = {work.name: work for work in WORKS}
    new, old = [by_name["run"]], [work for work in WORKS if work.pristine]
    while True:
        works = new * rng.randint(2, TOGETHER) if rng.random() < 0.3 else rng.choices(old, k=rng.randint(2, TOGETHER))
        if rng.random() < 0.5:
            works = [works[0]] * len(works)
        yield _attack(stage, works, [rng.uniform(0, 0.05) for _ in works])
        training = by_name[rng.choice(["run", "overwrite", "resume"])]
        yield _reported(stage, training, [rng.uniform(0, 0.1) for _ in range(rng.randint(1, TOGETHER))])


def _reported(stage: Stage, training: Work, pauses: list[float]) -> Attempt:
    """Write the page into the folder of a run while it trains, several times: neither may harm the other."""
    what = f"pages written into RUN after {', '.join(f'{pause:.3f}' for pause in pauses)} s of {training.name}"
    with stage.copy() if training.pristine else stage.empty() as place:
        trainer, pages = start(command(*training.begin(place))), []
        for pause in pauses:
            sleep(pause)
            pages.append(start(command("report", place / "run", "--quiet")))
        trained, ends = wait(trainer), [wait(page) for page in pages]
        for ended in (trained, *ends):
            if ended.crashed:
                return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        if trained.code != 0:
            return Attempt(what, Outcome.LOST, f"the run was stopped: {trained.last_line}")
        if (answer := training.answer(place)) != (right := right_of(stage, training)[1]):
            return Attempt(what, Outcome.SILENT, f"{answer} for {right}")
        checked = call("check", place / "run", "--quiet")
        said = "; ".join(f"{ended.code} {ended.last_line}" for ended in ends)
        wrong = [line for line in checked.said.splitlines() if line.startswith("wrong: ")]
        expected = bool(wrong) and all(OUTDATED in line for line in wrong)  # earlier results, of a run that went on
        held = checked.code == 0 or expected
        return Attempt(what, Outcome.HELD if held else Outcome.LOST, checked.said.strip() or said)


def _attack(stage: Stage, works: list[Work], pauses: list[float]) -> Attempt:
    names = [work.name for work in works]
    what = f"at once: {', '.join(names)}"
    with stage.copy() if works[0].pristine else stage.empty() as place:
        children = []
        for work, pause in zip(works, pauses, strict=True):
            sleep(pause)
            children.append(start(command(*work.begin(place))))
        ends = [wait(child) for child in children]
        for ended in ends:
            if ended.crashed:
                return Attempt(what, Outcome.TRACEBACK, ended.said[-1500:])
        said = "; ".join(f"{name}: {ended.code} {ended.last_line}" for name, ended in zip(names, ends, strict=True))
        if names[0] == names[-1] and all(ended.code != 0 for ended in ends) and len(set(names)) == 1:
            return Attempt(what, Outcome.LOST, f"none was let in: {said}")
        if "overwrite" in names or "resume" in names:  # what the others are about has changed
            works = [work for work in works if work.name in ("overwrite", "resume")][-1:]
            if set(names) & {"overwrite"} and set(names) & {"resume"}:
                return Attempt(what, Outcome.HELD, said)
        for work in works:
            attempt = repaired(work, place, right_of(stage, work)[1], what, said)
            if attempt.outcome != Outcome.HELD:
                return attempt
        return Attempt(what, Outcome.HELD, said)
