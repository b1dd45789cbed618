"""What several processes cost: time beside the simulator at equal cores, and bytes an edge.

    torchrun --nproc-per-node 4 benchmarks/processes.py [bytes | time [number of a network] | threads [number]]

All ways of training take turns in one start: process 0 trains everybody with all cores while the others wait; then
each process trains its own participants with a thread each, by messages, by bare gloo (the same tensors sent by
torch.distributed and not checked), and without telling anybody. Medians of the ratios of each turn.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice import Network, data, models, network
from cascadice.applications.forget.idea import Removal, forget
from cascadice.applications.neighbours import updates_of_neighbours
from cascadice.engine import Operator, Participants, Round, evaluate_on, simulate
from cascadice.engine.exchange.routes import routes
from cascadice.engine.parts import split
from cascadice.influence import reverse_gossip
from cascadice.influence.whole_run import whole_run
from cascadice.runs.distributed.processes import World, joined
from cascadice.topology import links

ROUNDS, TURNS = 10, 9


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


Times = dict[str, list[tuple[float, float]]]
SIMULATOR, SILENT, BARE, MESSAGES = "simulator", "no messages", "bare gloo", "processes"


class Bare:
    """What processes send, by torch.distributed alone, to each other or, if they do not talk, to nobody: the floor."""

    def __init__(self, world: World, mine: Network, talk: bool) -> None:
        parts, theta = [torch.tensor(part) for part in split(mine.whole, world.size)], mine.initial.theta
        ways, self._group = routes(mine.mixing(0).to_dense(), parts, world.rank), world.group
        self._own = ways.mine[:, parts[world.rank]].to(theta)
        self._hearing = [peer for peers in ways.sends.values() for peer in peers if talk]
        self._heard = {
            peer: (ways.mine[:, parts[peer]].to(theta), theta.new_empty(len(parts[peer]), theta.shape[1]))
            for peer in ways.awaited
            if talk
        }

    def apply(self, round_: Round, half: Participants, out: Participants | None = None) -> Participants:
        sent = [self._group.send([half.theta], peer, 0) for peer in self._hearing]
        coming = [self._group.recv([rows], peer, 0) for peer, (_, rows) in self._heard.items()]
        mixed = torch.mm(self._own, half.theta, out=None if out is None else out.theta)
        for came, (weights, rows) in zip(coming, self._heard.values(), strict=True):
            came.wait()
            mixed.addmm_(weights, rows)
        for left in sent:
            left.wait()
        return half._replace(theta=mixed)

    def mixed(self, round_: Round) -> Tensor:
        return round_.W


def seconds(train: Iterable[object]) -> tuple[float, float]:
    """By the clock, and of all cores together."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in train:
        pass
    return time.perf_counter() - start, time.process_time() - cpu


def times(world: World, case: Case) -> Times:
    """Seconds of each way of training in each turn."""
    cores, mine = len(os.sched_getaffinity(0)), built(case, world.members(case.nodes))
    found: Times = {}
    with world.exchange(mine) as messages:
        exchanges: dict[str, Any] = {
            SILENT: Bare(world, mine, talk=False), BARE: Bare(world, mine, talk=True), MESSAGES: messages
        }  # fmt: skip
        ways: dict[str, Callable[[], Iterable[object]]] = {
            SIMULATOR: tuple if world.rank else partial(simulate, built(case), ROUNDS, window=0)
        }
        for way, exchange in exchanges.items():
            ways[way] = partial(simulate, mine, ROUNDS, window=0, operator=Operator(mine, exchange))
        for turn, way in product(range(TURNS + 1), ways):  # the first turn is a rehearsal
            torch.set_num_threads(cores if way == SIMULATOR else max(1, cores // world.size))
            world.tell(way)
            told = world.tell(seconds(ways[way]()))
            if turn:
                found.setdefault(way, []).append((max(clock for clock, _ in told), sum(cpu for _, cpu in told)))
    return found


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
        "training, checking and mixing": main,
        "sending and receiving": sum(spent.values()) - gloo - main,
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


def print_times(rows: Mapping[str, Times]) -> None:
    print(f"{ROUNDS} rounds, {len(os.sched_getaffinity(0))} cores; times that of the simulator\n")
    print(f"| network | | simulator | {SILENT} | {BARE} | {MESSAGES} |\n|---|---|---|---|---|---|")
    for name, found in rows.items():
        for place, what in enumerate(("by the clock", "of processor time")):
            each = {way: [turn[place] for turn in turns] for way, turns in found.items()}
            one = each.pop(SIMULATOR)
            ratios = (median(b / a for a, b in zip(one, other, strict=True)) for other in each.values())
            print(f"| {name} | {what} | {median(one):.2f} s | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")


def print_bytes(sizes: Mapping[str, float]) -> None:
    print(f"\n{SMALL.hidden} float32\n\n| mode | bytes an edge |\n|---|---|")
    for mode, size in sizes.items():
        print(f"| {mode} | {size:,.0f} |")


def main(only: str = "", number: str = "") -> None:
    cases = [list(CASES)[int(number)]] if number else CASES
    with joined() as world:
        if world.alone:
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
            if rows:
                print_times(rows)
            if sizes:
                print_bytes(sizes)


if __name__ == "__main__":
    main(*sys.argv[1:])
