"""What several processes cost: time beside the simulator at equal cores, and bytes an edge.

    torchrun --nproc-per-node 4 benchmarks/processes.py [bytes | time [number of a network] | threads [number]]

Both ways of training take turns in one start: process 0 trains everybody with all cores while the others wait, then
each process trains its own participants with a thread each. Medians of the ratio of each pair.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from cascadice import Network, data, models, network
from cascadice.applications.detect.between import updates_of_neighbours
from cascadice.applications.forget.idea import Removal, forget
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.influence import reverse_gossip
from cascadice.influence.whole_run import whole_run
from cascadice.runs.processes import World, joined
from cascadice.topology import links

ROUNDS, PAIRS = 10, 5


class Case(NamedTuple):
    """A network: the layers of its model, its participants, the samples of a local step, and steps a round."""

    hidden: tuple[int, ...]
    nodes: int
    batch: int
    steps: int = 1


CASES = {
    "9,000 parameters, 16 participants, batches of 32": Case((64, 64), 16, 32),
    "85,000 parameters, 16 participants, batches of 32": Case((256, 256), 16, 32),
    "870,000 parameters, 8 participants, batches of 128": Case((640, 640, 640), 8, 128),
    "870,000 parameters, 8 participants, 4 steps of 128": Case((640, 640, 640), 8, 128, 4),
}
SMALL = Case((64, 64), 4, 32)


def built(case: Case, members: tuple[int, ...] = ()) -> Network:
    return network(
        lambda: models.mlp((64,), 10, hidden=case.hidden), data.digits(), nodes=case.nodes, batch_size=case.batch,
        local_steps=case.steps, lr=0.05, strategy="vmap", members=members,
    )  # fmt: skip


Times = list[tuple[float, float]]


def seconds(train: Iterable[object]) -> tuple[float, float]:
    """By the clock, and of all cores together."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in train:
        pass
    return time.perf_counter() - start, time.process_time() - cpu


def times(world: World, case: Case) -> tuple[Times, Times]:
    """Seconds of the simulator and of the processes in each pair."""
    cores = len(os.sched_getaffinity(0))
    whole = built(case) if world.rank == 0 else None
    mine, alone, together = built(case, world.members(case.nodes)), Times(), Times()
    with world.exchange(mine) as exchange:
        operator = Operator(mine, exchange)
        for _ in range(PAIRS + 1):  # the first pair is a rehearsal
            world.tell("simulator")
            torch.set_num_threads(cores)
            alone.append(seconds(simulate(whole, ROUNDS, window=0)) if whole is not None else (0.0, 0.0))
            torch.set_num_threads(max(1, cores // world.size))
            world.tell("processes")
            told = world.tell(seconds(simulate(mine, ROUNDS, window=0, operator=operator)))
            together.append((max(clock for clock, _ in told), sum(cpu for _, cpu in told)))
    return alone[1:], together[1:]


def traffic(world: World) -> dict[str, float]:
    """Bytes an edge, with one participant in each process."""
    mine = built(SMALL._replace(nodes=world.size), world.members(world.size))
    receivers, sources, _ = links(mine.mixing(0))
    edges, found = int((receivers != sources).sum()), {}
    with world.exchange(mine) as exchange:
        operator, before = Operator(mine, exchange), 0

        def count(mode: str, rounds: int) -> None:
            nonlocal before
            now = sum(world.tell(sum(exchange.post.sent.values())))
            found[mode], before = (now - before) / edges / rounds, now

        rounds = list(simulate(mine, 8, operator=operator))
        count("training, a round", 8)
        updates_of_neighbours(mine, rounds[-1], exchange)
        count("update beside the model (detect), a round", 1)
        reverse_gossip(mine, rounds[-3:], evaluate_on(mine), operator=operator)
        count("λ of reverse gossip, a hop", 3)
        whole_run(mine, rounds, evaluate_on(mine), samples=False, exchange=exchange)
        count("whole-run influence from a recording, a round", 8)
        whole_run(mine, 8, evaluate_on(mine), samples=False, length=8, exchange=exchange)
        count("whole-run influence, played again in memory, a round", 8)
        whole_run(mine, 64, evaluate_on(mine), samples=False, length=8, exchange=exchange)
        count("whole-run influence, played again from √T checkpoints, a round", 64)
        forget(mine, rounds, Removal((0,)), operator=operator)
        count("forgetting by replay, a round", 8)
        forget(mine, rounds, Removal((0,)), "gossip", operator=operator)
        count("forgetting by gossip, a round", 8)
        forget(mine, rounds, Removal((0,)), "first-order", operator=operator)
        count("forgetting to first order, a round", 8)
        forget(mine, rounds, Removal((0,)), "path-integrated", points=1, operator=operator)
        count("forgetting along a path, a round and point", 8)
    return found


def threads(world: World, case: Case, rounds: int = 60) -> dict[str, float]:
    """Milliseconds of processor time that a round takes of each kind of thread of this process (Linux)."""
    mine = built(case, world.members(case.nodes))
    with world.exchange(mine) as exchange:
        operator = Operator(mine, exchange)
        seconds(simulate(mine, ROUNDS, window=0, operator=operator))
        world.tell("ready")
        before, start = _by_thread(), time.thread_time()
        seconds(simulate(mine, rounds, window=0, operator=operator))
        main, after = time.thread_time() - start, _by_thread()
    spent = {thread: used - before.get(thread, 0.0) for thread, used in after.items()}
    gloo = sum(used for (_, name), used in spent.items() if "gloo" in name)
    seconds_of = {
        "training and mixing": main,
        "sending, receiving and checking": sum(spent.values()) - gloo - main,
        "gloo": gloo,
    }
    return {what: 1e3 * used / rounds for what, used in seconds_of.items()}


def _by_thread() -> dict[tuple[str, str], float]:
    """Seconds of processor time of each thread of this process, by number and name."""
    tasks = Path("/proc/self/task").iterdir()
    return {
        (task.name, (task / "comm").read_text()): int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in tasks
    }


def print_times(rows: Mapping[str, tuple[Times, Times]]) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"{ROUNDS} rounds, {cores} cores\n")
    print("| network | seconds | simulator | processes | ratio |\n|---|---|---|---|---|")
    for name, (alone, together) in rows.items():
        for place, what in enumerate(("by the clock", "of processor time")):
            one, other = ([pair[place] for pair in pairs] for pairs in (alone, together))
            ratio = median(b / a for a, b in zip(one, other, strict=True))
            print(f"| {name} | {what} | {median(one):.2f} | {median(other):.2f} | {ratio:.2f} |")


def print_bytes(sizes: Mapping[str, float]) -> None:
    print(f"\n{SMALL.hidden} float32\n\n| mode | bytes an edge |\n|---|---|")
    for mode, size in sizes.items():
        print(f"| {mode} | {size:,.0f} |")


def main(only: str = "", number: str = "") -> None:
    cases = [list(CASES)[int(number)]] if number else CASES
    with joined() as world:
        if world is None:
            raise SystemExit("start it with torchrun --nproc-per-node 4 benchmarks/processes.py")
        if only == "threads":
            for name in cases:
                used = threads(world, CASES[name])
                if not world.rank:
                    print(f"{name}: " + ", ".join(f"{what} {each:.1f} ms a round" for what, each in used.items()))
            return
        rows = {name: times(world, CASES[name]) for name in cases} if only != "bytes" else {}
        sizes = traffic(world) if only != "time" else {}
        if not world.rank:
            print_times(rows)
            print_bytes(sizes)


if __name__ == "__main__":
    main(*sys.argv[1:])
