"""What influence costs against the number of hops: linear for all sources at once, whatever the number of paths."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from cascadice.engine import Network, Round, evaluate, simulate
from cascadice.influence import Evaluation, by_participant, evaluate_on, first_order, reverse_gossip, truth
from cascadice.runs.config import Config, build
from cascadice.runs.recipes import paper
from cascadice_experiments.figures.results import Means, Part, Result

ALL, ONE, REPLAYED, ONE_REPLAYED = (
    "reverse gossip, all sources", "first order, one source", "truth, all sources", "truth, one source"
)  # fmt: skip
STYLES = {
    ALL: ("-o", "#0072B2"), ONE: ("-s", "#56B4E9"), REPLAYED: ("--o", "#D55E00"), ONE_REPLAYED: ("--s", "#E69F00"),
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """A run, up to how many hops of it, and how often each is timed."""

    config: Config
    hops: int
    repeats: int


def plan(quick: bool) -> list[Cost]:
    """An MLP on an exponential graph of 32. Quick: of 8, up to four hops, timed once."""
    config = paper("mlp", "cifar10", "exponential", 8 if quick else 32)
    return [Cost(config, 4, 1) if quick else Cost(config, 8, 5)]


def measure(plan: Sequence[Cost], means: Means) -> Result:
    """Time each way for each number of hops, taking turns."""
    (cost,) = plan
    found = means.part("each number of hops", partial(_timed, cost, means))
    rows = found["rows"]
    first, last = rows[0], rows[-1]
    findings = [
        f"all sources by reverse gossip: {last['hops']} hops take {last[ALL] / first[ALL]:.1f} times as long as one, "
        f"while the paths from all of them grow from {first['paths']:,} to {last['paths']:,}.",
        f"at {last['hops']} hops the truth of all sources takes {last[REPLAYED] / last[ALL]:.1f} times as long as this "
        f"estimate, and the truth of one source {last[ONE_REPLAYED] / last[ONE]:.2f} times as long as first order.",
    ]
    return Result({name: [row[name] for row in rows] for name in first}, rows, findings, {})


def _timed(cost: Cost, means: Means) -> Part:
    strategy = "vmap" if means.device.startswith("cuda") else "auto"
    network = build(replace(cost.config, device=means.device, data_root=means.data_root, strategy=strategy))
    size = cost.config.batch_size
    yardstick = evaluate_on(network, network.data.test.subset(torch.arange(size)))
    rounds = list(simulate(network, cost.hops))
    accuracy = float(evaluate(network, rounds[-1].after).accuracy.mean())
    linked = (network.mixing(0).to_dense() > 0).double()
    rows = []
    for hops in range(1, cost.hops + 1):
        ways = _ways(network, rounds[:hops], yardstick)
        seconds = {name: statistics.median(_seconds(way, means.device, cost.repeats)) for name, way in ways.items()}
        paths = int(torch.linalg.matrix_power(linked, hops).sum())
        rows.append({"hops": hops, "paths": paths, **seconds, "test_accuracy": accuracy})
    return {"rows": rows}


def _ways(network: Network, rounds: Sequence[Round], yardstick: Evaluation) -> dict[str, Callable[[], object]]:
    return {
        ALL: lambda: by_participant(rounds[0], reverse_gossip(network, rounds, yardstick)),
        ONE: lambda: first_order(network, rounds, yardstick, [0]),
        REPLAYED: lambda: truth(network, rounds, yardstick),
        ONE_REPLAYED: lambda: truth(network, rounds, yardstick, [0]),
    }


def _seconds(way: Callable[[], object], device: str, repeats: int) -> list[float]:
    way()  # memory is found and kernels are loaded in the first
    found = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        way()
        _wait(device)
        found.append(time.perf_counter() - start)
    return found


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def draw(result: Result, path: Path) -> None:
    """Seconds, and paths, against the number of hops."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(9.5, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    hops = result.points["hops"]
    for name, (style, colour) in STYLES.items():
        left.plot(hops, result.points[name], style, color=colour, label=name, markersize=4)
    left.set(xlabel="hops", ylabel="seconds", yscale="log", title="time")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.legend(frameon=False, fontsize=8)
    right.plot(hops, result.points["paths"], "-o", color="#D55E00", markersize=4)
    right.set(xlabel="hops", ylabel="paths", yscale="log", title="paths that are never enumerated")
    for axes in (left, right):
        axes.set_xticks(hops)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format=path.suffix.removeprefix("."))
