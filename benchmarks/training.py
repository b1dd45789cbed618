"""Rounds per second against a plain loop over nn.Modules with torch.optim.

    python benchmarks/training.py                          # this machine's CPU: MLP, CNN, ResNet-18, small digits MLP
    python benchmarks/training.py --device cuda --precision high
    python benchmarks/training.py --strategies loop vmap compile --models mlp

Both sides do the same work on the same random data in one process, taking turns: gather the batches, one SGD step for
each participant, gossip on the exponential graph. The engine normalises images as it gathers; the loop is given
normalised ones.
"""

import statistics
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count
from typing import Any

import torch
from timing import finish, interleaved, machine, matmul_rate, parser, ratio
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import cascadice as cd
from cascadice import Network

SHAPES = {"mlp": (3, 32, 32), "cnn": (3, 32, 32), "resnet18": (3, 32, 32), "digits": (1, 8, 8)}
# ResNet-18 with batches of 128 takes half a minute a round on two cores; the ratio does not need that.
BATCH = {"cpu": {"resnet18": 16, "digits": 32}, "cuda": {"digits": 32}}
PER_NODE = 512


def images(shape: tuple[int, ...], nodes: int) -> cd.data.DataSet:
    """Random uint8 images, as many as 512 for each participant."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (nodes * PER_NODE, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(10, (len(x),), generator=draw)
    mean, std = (0.5,) * shape[0], (0.25,) * shape[0]
    return cd.data.from_tensors(x, y, x[:16], y[:16], classes=10, mean=mean, std=std)


def build(model: str, nodes: int, batch: int, strategy: str, device: str) -> Network:
    shape = SHAPES[model]
    small = model == "digits"
    module = cd.models.build("mlp", shape, 10, hidden=(64, 64)) if small else cd.models.build(model, shape, 10)
    return cd.network(
        module, images(shape, nodes), nodes=nodes, batch_size=batch, lr=0.01, strategy=strategy, device=device
    )


def plain_loop(network: Network) -> Callable[[], None]:
    """What one would write without this library: a module and an optimizer each, gossip parameter by parameter."""
    modules = [cd.module_of(network, network.initial, k).train() for k in range(network.nodes)]
    rules = [torch.optim.SGD(module.parameters(), lr=0.01) for module in modules]
    x, y = network.data.train.take(torch.arange(len(network.data.train), device=network.device))
    W = network.mixing(0).to(network.device, torch.float32)
    rounds = count()

    def round_() -> None:
        batch = network.batches(next(rounds))[:, 0].to(network.device)
        for k, (module, rule) in enumerate(zip(modules, rules, strict=True)):
            rule.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(x[batch[k]]), y[batch[k]]))
            rule.step()
        with torch.no_grad():
            for copies in zip(*(module.parameters() for module in modules), strict=True):
                mixed = W @ torch.stack([p.flatten() for p in copies])
                for p, row in zip(copies, mixed, strict=True):
                    p.copy_(row.view_as(p))

    return round_


def several(step: Callable[[], Any], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            step()

    return repeat


def operations(network: Network) -> int:
    """Floating-point operations of everybody's forward and backward pass in a round."""
    module = deepcopy(network.learner.training)
    x, y = network.data.train.take(network.batches(0)[0, 0].to(network.device))
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(nn.functional.cross_entropy(module(x), y))
    return int(counter.get_total_flops()) * network.nodes


def measure(
    model: str, nodes: int, strategies: list[str], device: str, repeats: int, peak: float
) -> Iterator[dict[str, Any]]:
    batch = BATCH[device].get(model, 128)
    networks = {name: build(model, nodes, batch, name, device) for name in strategies}
    times = {"cpu": {"digits": 20}, "cuda": {"mlp": 100, "digits": 100, "cnn": 10}}[device].get(model, 1)
    loop = plain_loop(next(iter(networks.values())))
    contenders = {"plain": several(loop, max(1, times // 5))}
    for name, network in networks.items():
        rounds = cd.simulate(network, window=0)
        for _ in range(4):  # compiling and capturing happens in the first few
            next(rounds)
        contenders[name] = several(lambda rounds=rounds: next(rounds), times)
    seconds = interleaved(contenders, repeats, device)
    plain = [s / max(1, times // 5) for s in seconds.pop("plain")]
    for name, turns in seconds.items():
        ours = [s / times for s in turns]
        rate = operations(networks[name]) / statistics.median(ours)
        yield {
            "model": model, "nodes": nodes, "batch": batch, "asked": name, "strategy": networks[name].strategy,
            "rounds_per_second": round(1 / statistics.median(ours), 2),
            "plain_rounds_per_second": round(1 / statistics.median(plain), 2),
            "of_matmul_rate": round(rate / peak, 3), **ratio(plain, ours),
        }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    what = f"{row['model']:9} {row['nodes']:5} {row['batch']:5}  {row['strategy']:8}"
    rates = f"{row['rounds_per_second']:10.2f} {row['plain_rounds_per_second']:10.2f}"
    return f"{what} {rates}  {row['ratio']:6.2f}× ({row['low']:.2f}–{row['high']:.2f})  {row['of_matmul_rate']:8.1%}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    options.add_argument("--nodes", nargs="+", type=int, default=[16, 32])
    options.add_argument("--strategies", nargs="+", default=["auto"], help="auto, loop, vmap, compile")
    arguments = options.parse_args()
    torch.set_float32_matmul_precision(arguments.precision)
    peak = matmul_rate(arguments.device, 8192 if arguments.device == "cuda" else 2048)
    print(f"{machine(arguments.device)['name']}: float32 products at {peak / 1e12:.2f} TFLOP/s ({arguments.precision})")
    print(f"{'model':9} nodes batch  strategy   rounds/s  plain loop   ratio (quartiles)     of matmul rate")
    rows = []
    for model in arguments.models:
        for nodes in arguments.nodes:
            for row in measure(model, nodes, arguments.strategies, arguments.device, arguments.repeats, peak):
                rows.append(row)
                print(line(row), flush=True)
    result = {"benchmark": "training", "machine": machine(arguments.device), "precision": arguments.precision}
    finish({**result, "matmul_flops": peak, "rows": rows}, arguments.json)


if __name__ == "__main__":
    main()
