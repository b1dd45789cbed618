"""`python -m torture`: attack cascadice for some minutes, print the table, fail if an attack succeeded."""

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from time import monotonic
from typing import Any, NamedTuple

from torture.outcomes import Attempt, Outcome, Tally
from torture.stage import Stage, staged


class Kind(NamedTuple):
    """A kind of attack: its module, its part of the time, and what it is."""

    module: str
    part: float
    description: str


KINDS: Mapping[str, Kind] = {
    "kills": Kind("kills", 5, "processes killed at every write and at random moments"),
    "full disks": Kind("disks", 2, "disks with no room left, and files that may not grow"),
    "writers": Kind("writers", 2, "several processes that write into one folder"),
    "checks": Kind("checks", 1.5, "`check` on a run that is being written"),
    "forgeries": Kind("forgeries", 1, "payments and ledgers forged without the key"),
    "command lines": Kind("commands", 3, "flags and values by chance"),
    "numbers": Kind("numbers", 2, "extreme settings, strange matrices, huge sizes, little memory"),
    "injections": Kind("injections", 1.5, "names that are markup or commands of a terminal"),
    "floods": Kind("floods", 1, "hostile and slow requests to a live page"),
    "archives": Kind("archives", 0.5, "tar and zip files made to escape"),
    "data files": Kind("data_files", 3, "data sets in every format changed after training"),
    "run files": Kind("run_files", 6, "files of a run changed, knowing their formats"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack, print the table, and return 1 if an attack succeeded."""
    parser = argparse.ArgumentParser("torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=18, help="how long to attack (default: 18)")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn (default: 0)")
    parser.add_argument("--only", choices=KINDS, action="append", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed
    with staged() as stage:
        tally = attack(stage, args.only or list(KINDS), args.minutes * 60, args.seed, args.jobs)
    print(f"\n{tally}\n\nseed {args.seed}, {args.minutes:g} minutes, {args.jobs} processes")
    return 1 if tally.failures else 0


def attack(stage: Stage, kinds: Sequence[str], seconds: float, seed: int, jobs: int = 1) -> Tally:
    """Make attacks of these kinds for so many seconds, in several processes, and count what came of them."""
    tally = Tally()
    parts = sum(KINDS[kind].part for kind in kinds)
    workers = [_worker(stage, kinds, seconds / parts, seed * 1000 + job) for job in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:  # one that nobody listens to would wait
        list(pool.map(lambda worker: _listen(worker[1], tally), workers))
    for pid, _ in workers:
        if os.waitpid(pid, 0)[1]:
            tally.add("attackers", Attempt(f"process {pid}", Outcome.TRACEBACK, "it failed itself; see above"))
    return tally


def _listen(reader: int, tally: Tally) -> None:
    """Count what an attacker says; what succeeded is printed at once."""
    with os.fdopen(reader) as lines:
        for line in lines:
            kind, what, outcome, said = json.loads(line)
            if outcome == "skipped":
                tally.skipped[kind] = said
                continue
            tally.add(kind, Attempt(what, Outcome(outcome), said))
            if outcome != Outcome.HELD:
                print(f"\n{kind}, {outcome}: {what}\n    {said.strip()[-1200:]}", flush=True)


def _worker(stage: Stage, kinds: Sequence[str], seconds_a_part: float, seed: int) -> tuple[int, int]:
    """A process that attacks, and the end of the pipe that its attempts come from."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    if pid := os.fork():
        os.close(writer)
        return pid, reader
    os.close(reader)
    code = 1
    try:
        stage.home = stage.home / f"worker-{os.getpid()}"
        stage.home.mkdir()
        with os.fdopen(writer, "w") as lines:
            for kind in kinds:
                for attempt in _attempts(stage, KINDS[kind], seconds_a_part * KINDS[kind].part, seed):
                    print(json.dumps([kind, *attempt]), file=lines, flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _attempts(stage: Stage, kind: Kind, seconds: float, seed: int) -> Iterator[tuple[Any, ...]]:
    module = import_module(f"torture.{kind.module}")
    unavailable: Callable[[Stage], str] = getattr(module, "unavailable", lambda stage: "")
    if why := unavailable(stage):
        yield "", "skipped", why
        return
    end = monotonic() + seconds
    for attempt in module.attacks(stage, seed):
        yield from map(tuple, attempt if isinstance(attempt, list) else [attempt] if attempt else [])
        if monotonic() > end:
            return


if __name__ == "__main__":
    sys.exit(main())
