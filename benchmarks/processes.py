"""What several processes cost: time beside the simulator at equal cores, and bytes an edge.

    torchrun --nproc-per-node 4 benchmarks/processes.py

Both ways of training take turns in one start: process 0 trains everybody with all cores while the others wait, then
each process trains its own participants with a thread each. Medians of the ratio of each pair.
"""

import os
import time
from collections.abc import Iterable
from statistics import median

import torch

from cascadice import Network, data, models, network
from cascadice.applications.detect.between import updates_of_neighbours
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.influence import reverse_gossip
from cascadice.influence.whole_run import whole_run
from cascadice.runs.processes import World, joined
from cascadice.topology import links

NODES, ROUNDS, PAIRS = 16, 20, 5
MODELS = {"9,000 parameters": (64, 64), "86,000 parameters": (256, 256)}


def built(hidden: tuple[int, ...], nodes: int, members: tuple[int, ...] = ()) -> Network:
    return network(
        lambda: models.mlp((64,), 10, hidden=hidden), data.digits(), nodes=nodes, batch_size=32, lr=0.05,
        strategy="vmap", members=members,
    )  # fmt: skip


def seconds(train: Iterable[object]) -> float:
    start = time.perf_counter()
    for _ in train:
        pass
    return time.perf_counter() - start


def times(world: World, hidden: tuple[int, ...]) -> tuple[float, float, float]:
    """Seconds of the simulator, of the processes, and the median ratio."""
    cores, whole = len(os.sched_getaffinity(0)), built(hidden, NODES) if world.rank == 0 else None
    mine, alone, together = built(hidden, NODES, world.members(NODES)), [], []
    with world.exchange(mine) as exchange:
        operator = Operator(mine, exchange)
        for _ in range(PAIRS + 1):  # the first pair is a rehearsal
            world.tell("simulator")
            torch.set_num_threads(cores)
            alone.append(seconds(simulate(whole, ROUNDS, window=0)) if whole is not None else 0.0)
            torch.set_num_threads(max(1, cores // world.size))
            world.tell("processes")
            here = seconds(simulate(mine, ROUNDS, window=0, operator=operator))
            together.append(max(world.tell(here)))
    ratios = [b / a for a, b in zip(alone[1:], together[1:], strict=True)] if whole is not None else [0.0]
    return median(alone[1:]), median(together[1:]), median(ratios)


def traffic(world: World, hidden: tuple[int, ...]) -> dict[str, float]:
    """Bytes an edge, with one participant in each process."""
    mine = built(hidden, world.size, world.members(world.size))
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
    return found


def main() -> None:
    with joined() as world:
        if world is None:
            raise SystemExit("start it with torchrun --nproc-per-node 4 benchmarks/processes.py")
        rows = {name: times(world, hidden) for name, hidden in MODELS.items()}
        sizes = traffic(world, MODELS["9,000 parameters"])
        if world.rank:
            return
        cores = len(os.sched_getaffinity(0))
        print(
            f"{NODES} participants, {ROUNDS} rounds, {cores} cores: seconds\n\n| model | simulator | processes | ratio |"
        )
        print("|---|---|---|---|")
        for name, (alone, together, ratio) in rows.items():
            print(f"| {name} | {alone:.2f} | {together:.2f} | {ratio:.2f} |")
        print(f"\n{MODELS['9,000 parameters']} float32\n\n| mode | bytes an edge |\n|---|---|")
        for mode, size in sizes.items():
            print(f"| {mode} | {size:,.0f} |")


if __name__ == "__main__":
    main()
