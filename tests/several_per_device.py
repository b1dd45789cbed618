"""Several participants a process, several processes a device, beside the simulator on it; started by torchrun.

    torchrun --standalone --nproc-per-node 4 tests/several_per_device.py cuda

Processes exchange by gloo: NCCL refuses two ranks on one GPU. Its world of one is checked in a process of its own.
"""

import sys

import torch
import torch.distributed as dist
from engine.cases import data, model

from cascadice import network
from cascadice.engine import Operator, evaluate_on, simulate
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.parts import part_of
from cascadice.influence import reverse_gossip
from cascadice.influence.whole_run import whole_run
from cascadice.runs.distributed.processes import joined

NODES, ROUNDS, CLOSE = 8, 6, 1e-10


def built(device, members=()):
    return network(
        model, data(samples=160), nodes=NODES, batch_size=8, lr=0.05, optimizer="momentum", dtype="float64",
        device=device, strategy="vmap", members=members,
    )  # fmt: skip


def looked_at(mine, exchange=None):
    """The final parameters, the adjoints of two hops, and whole-run influence."""
    operator = Operator(mine, exchange)
    rounds = list(simulate(mine, ROUNDS, operator=operator))
    evaluation = evaluate_on(mine)
    adjoint = reverse_gossip(mine, rounds[-2:], evaluation, operator=operator).theta.clone()
    return rounds[-1].after.theta, adjoint, whole_run(mine, ROUNDS, evaluation, exchange=exchange).participants


def gap(some, others, members):
    return max(float((a - b[list(members)]).abs().max()) for a, b in zip(some, others, strict=True))


def main(device):
    expected = looked_at(built(device))
    with joined() as world:
        if world.alone:
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo", rank=0, world_size=1, store=dist.HashStore()
            )
            mine = part_of(built(device), range(NODES))
            exchange = Messages(mine, [range(NODES)], 0, dist.group.WORLD)
            gaps = [gap(looked_at(mine, exchange), expected, range(NODES))]
            print(f"{dist.get_backend()}, a world of one, largest difference from the simulator: {gaps[0]:.1e}")
            dist.destroy_process_group()
            sys.exit(None if gaps[0] < CLOSE else "these are not the simulator's numbers")
        members = world.members(NODES)
        with world.exchange(mine := built(device, members)) as exchange:
            gaps = world.tell(gap(looked_at(mine, exchange), expected, members))
        if world.rank == 0:
            where = torch.cuda.get_device_name() if device == "cuda" else device
            print(f"{NODES} participants in {world.size} processes on {where}, largest difference from the simulator: "
                  f"{max(gaps):.1e}")  # fmt: skip
        if not max(gaps) < CLOSE:
            sys.exit("these are not the simulator's numbers")


if __name__ == "__main__":
    main(sys.argv[1])
