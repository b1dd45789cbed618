"""`python -m chaos`: four processes train while faults happen to them; print what each cost, and verify every round."""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep

import torch.distributed as dist

from chaos.folders import LAUNCHED, Verdict, judge
from chaos.launched import launch
from chaos.verify import Fault, faults, held_up, left_out, read, unheard
from chaos.worker import ALL, FAULTS, PROCESS_FAULTS, RANKS, Job, whole, work

EVERY = 6  # rounds from one fault to the next
QUIET, CALM = 15, 100  # rounds without faults, at the start and at the end: who died last must have time to come back
LONGEST = 270  # seconds
WITHIN, WAITED = 10, 20  # rounds in which who was late is heard again: by a little, or by more than the patience


def main(arguments: Sequence[str] | None = None) -> int:
    """Make faults, print the table, and return 1 if anything was lost or wrong."""
    parser = argparse.ArgumentParser("chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=84, help="how many to plan (default: 84)")
    parser.add_argument("--at-least", type=int, default=50, help="how many must happen (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn (default: 0)")
    parser.add_argument("--launched", type=int, default=2, choices=range(RANKS + 1),
                        help="how many of the processes that torchrun starts to kill (default: 2)")  # fmt: skip
    parser.add_argument("--graph", default=ALL, help="ring, exponential or another topology (default: all to all)")
    parser.add_argument("--keep", type=Path, help="a folder to leave the logs of the processes in")
    parser.add_argument("--longest", type=float, default=LONGEST, help=f"seconds it may take (default: {LONGEST})")
    args = parser.parse_args(arguments)
    rounds, plans = planned(args.faults, args.seed)
    start = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        restarts = run(rounds, plans, Path(folder), args.seed, args.longest, args.graph)
        logs = read(Path(folder))
        if args.keep:
            shutil.copytree(folder, args.keep, dirs_exist_ok=True)
    found = faults(logs, rounds, args.graph)
    launched = under_torchrun(args.launched, args.seed) if args.launched else Verdict([], [])
    print(table([*found, *launched.faults]))
    finished = [max((line["t"] for line in log if "rows" in line), default=0) == rounds - 1 for log in logs]
    print(f"\n{len(found)} faults in {rounds} rounds of {RANKS} processes, {restarts} restarts, "
          f"{monotonic() - start:.0f} s, seed {args.seed}")  # fmt: skip
    gone, held = left_out(logs, rounds, args.graph), held_up(logs)
    if held:
        print(f"the machine gave processes no processor {len(held)} times, for {max(held):.1f} s at most")
    if gone.cut_off:
        print(f"{len(gone.cut_off)} rounds were left out by processes that had been cut off, to catch up")
    ignored = unheard(logs, rounds, args.graph)
    if late := [each for each in ignored if len(each.rounds) <= (WAITED if each.waited else WITHIN)]:
        print(f"{sum(len(each.rounds) for each in late)} messages came too late from processes that waited for others")
    problems = [
        *(f"process {rank} did not reach the last round" for rank, done in enumerate(finished) if not done),
        *(["fewer faults than asked for"] if len(found) < args.at_least else []),
        *(f"process {rank} lost round {t}" for rank, t in gone.lost),
        *(f"nothing had happened, but there is {each}" for each in ignored if each not in late),
        *(f"{f.kind} in round {f.t}: {f}" for f in (*found, *launched.faults) if not f.verified),
        *launched.problems,
    ]
    print("\n".join(problems) or "every round of every process is the simulator's; no survivor lost a round")
    return 1 if problems else 0


def under_torchrun(kills: int, seed: int) -> Verdict:
    """Kill processes that torchrun started, and verify the folders that they wrote."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return judge(Path(folder), launch(kills, Path(folder), seed))
        except ChildProcessError as error:
            return Verdict([], [str(error)])


def planned(count: int, seed: int) -> tuple[int, list[dict[int, str]]]:
    """How many rounds to train, and what happens to each process: every kind about as often.

    What happens to processes is spread evenly, or all might be dead at the same time, and nobody left to come back to.
    """
    chance = random.Random(seed)
    kinds = [FAULTS[i % len(FAULTS)] for i in range(count)]
    chance.shuffle(kinds)
    of_processes = [kind for kind in kinds if kind in PROCESS_FAULTS]
    kinds = [kind for kind in kinds if kind not in PROCESS_FAULTS]
    for number, kind in enumerate(of_processes):
        kinds.insert(round((number + 0.5) * count / len(of_processes)), kind)
    plans: list[dict[int, str]] = [{} for _ in range(RANKS)]
    for number, kind in enumerate(kinds):
        plans[chance.randrange(RANKS)][QUIET + number * EVERY + chance.randrange(3)] = kind
    return QUIET + CALM + count * EVERY, plans


def run(rounds: int, plans: list[dict[int, str]], folder: Path, seed: int, longest: float, graph: str) -> int:
    """Train; who died is started again, who was stopped is continued. How many were started again."""
    whole(graph)
    chance, end = random.Random(seed + 1), monotonic() + longest
    port, keeper = serve()
    jobs = [Job(rank, rounds, plan, folder, port, graph=graph) for rank, plan in enumerate(plans)]
    ranks = {start(lambda job=job: work(job, False)): job.rank for job in jobs}  # type: ignore[misc]
    due: list[tuple[float, Callable[[], object]]] = []
    restarts, finished = 0, False
    try:
        while (ranks or due) and monotonic() < end:
            for when, action in [entry for entry in due if entry[0] <= monotonic()]:
                due.remove((when, action))
                action()
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED) if ranks else (0, 0)
            if not pid or pid == keeper:
                sleep(0.01)
            elif os.WIFSTOPPED(status):
                due.append((monotonic() + chance.uniform(0.3, 1.8), lambda pid=pid: os.kill(pid, signal.SIGCONT)))  # type: ignore[misc]
            else:
                rank = ranks.pop(pid)
                finished |= not status
                if status and not finished:  # who finds nobody tries again, as long as there is somebody
                    restarts += 1
                    again = lambda job=jobs[rank]: ranks.__setitem__(start(lambda: work(job, True)), job.rank)  # noqa: E731
                    due.append((monotonic() + chance.uniform(0.1, 1.0), again))
    finally:
        for pid in (*ranks, keeper):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return restarts


def start(task: Callable[[], int]) -> int:
    """A process that does this and ends with the code that it returns; its number."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        code = task()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def serve(
    host: str = "127.0.0.1", where: Callable[[Callable[[], int]], Callable[[], int]] = lambda task: task
) -> tuple[int, int]:
    """A process with a store, as torchrun's agent has one, that outlives the others; its port and its number."""
    reader, writer = os.pipe()

    def keep() -> int:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{store.port}\n".encode())
        while True:
            sleep(60)

    keeper = start(where(keep))
    with os.fdopen(reader) as lines:
        return int(lines.readline()), keeper


def table(found: Sequence[Fault]) -> str:
    """A row for each kind of fault."""
    rows = [f"{'fault':<32}{'times':>6}{'rounds lost':>13}{'seconds lost':>14}{'verified':>10}"]
    rows.append("-" * len(rows[0]))
    for kind in (*FAULTS, LAUNCHED, "all"):
        those = [fault for fault in found if kind in (fault.kind, "all")]
        if those:
            name = f"{kind} (process)" if kind in (*PROCESS_FAULTS, LAUNCHED) else kind
            lost, seconds = sum(fault.lost for fault in those), max(fault.seconds for fault in those)
            good = sum(fault.verified for fault in those)
            rows.append(f"{name:<32}{len(those):>6}{lost:>13}{seconds:>14.2f}{good:>7}/{len(those)}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
