"""What a message between two processes costs on the loopback interface: seconds a message, and seconds a byte.

Two processes with one participant each exchange parameters, as in training: each packs, sends, receives, checks and
averages. Processor time is what counts, because it is the same on a busy machine; with a core for each process, an
exchange takes no longer. The two costs are those of the line through the smallest and the largest message; what lies
between is cheaper, because it fits the cache.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cascadice import network
from cascadice.engine import Operator, simulate
from cascadice.engine.exchange import frames
from cascadice.engine.exchange.messages import Messages
from cascadice.engine.parts import part_of, split

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)  # parameters
PAIR = split(2, 2)


class Ballast(nn.Module):
    """A small model with as many parameters as wanted."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.ballast = nn.Parameter(torch.zeros(parameters - 10))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear(x) + 0 * self.ballast[:1]
        return outputs


def connected(store: str, name: str, rank: int) -> Any:
    """A group of two processes that meet in a file, under a name that is used once."""
    c10d: Any = dist  # torch does not declare all of it
    return c10d.ProcessGroupGloo(c10d.PrefixStore(name, c10d.FileStore(store, 2)), rank, 2, timedelta(seconds=120))


def exchanges(rank: int, group: Any, parameters: int, repeats: int) -> Tensor:
    """Seconds of this process and on the clock, for each exchange."""
    samples = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    whole = network(Ballast(parameters), (samples, samples), nodes=2, mixing="complete", batch_size=2)
    mine = part_of(whole, PAIR[rank])
    exchange = Messages(mine, PAIR, rank, group)
    round_ = next(simulate(mine, 1, operator=Operator(mine, exchange)))
    spent = []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        exchange.apply(round_, round_.half)
        spent.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    exchange.post.close()
    return torch.tensor(spent, dtype=torch.float64)


def line(sizes: Sequence[int], spent: Sequence[float]) -> tuple[float, float]:
    """Seconds a message and a byte: the line through the smallest and the largest."""
    return spent[0], (spent[-1] - spent[0]) / sizes[-1]


def measured(store: str, rank: int, sizes: Sequence[int], repeats: int) -> list[float]:
    """The median processor time of an exchange of each size."""
    medians = []
    for parameters in sizes:
        spent = exchanges(rank, connected(store, str(parameters), rank), parameters, repeats)
        medians.append(float(spent[:, 0].median()))
        if rank == 0:
            size, quickest = frames.size(1, parameters, torch.float32), float(spent[:, 1].min())
            print(f"{parameters:>12,} {size:>12,} {medians[-1] * 1e3:>12.2f} ms {quickest * 1e3:>12.2f} ms", flush=True)
    return medians


def main() -> None:
    """Print the time of each size, and the two costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if args.store:
        measured(args.store, 1, SIZES, args.repeats)
        return
    print(f"{'parameters':>12} {'bytes':>12} {'processor':>15} {'quickest':>15}")
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/store"
        command = [sys.executable, __file__, "--repeats", str(args.repeats), "--store", place]
        with subprocess.Popen(command):
            spent = measured(place, 0, SIZES, args.repeats)
    message, byte = line([frames.size(1, d, torch.float32) for d in SIZES], spent)
    print(f"a message {message:.2g} s, a byte {byte:.2g} s: python benchmarks/scale.py --cost {message:.2g} {byte:.2g}")


if __name__ == "__main__":
    main()
