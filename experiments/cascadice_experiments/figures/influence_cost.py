"""What influence costs by number of hops: linear for all sources at once, however many paths there are."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from cascadice.engine import Network, Round, evaluate, simulate
from cascadice.influence import Evaluation, by_participant, evaluate_on, first_order, reverse_gossip, truth
from cascadice.runs.config import Config, build
from cascadice.runs.recipes import paper
from cascadice_experiments.data_sets import first
from cascadice_experiments.drawing import HARMED, HELPED, SKY, YELLOW, hide_box, panels, save
from cascadice_experiments.figures.figure import Context, Part, Result
from cascadice_experiments.study import clock

ALL, ONE = "reverse gossip, all sources", "first order, one source"
REPLAYED, ONE_REPLAYED = "truth, all sources", "truth, one source"
STYLES = {ALL: ("-o", HELPED), ONE: ("-s", SKY), REPLAYED: ("--o", HARMED), ONE_REPLAYED: ("--s", YELLOW)}


@dataclass(frozen=True)
class Cost:
    """A run, the greatest number of hops, and how often each computation is timed."""

    config: Config
    hops: int
    repeats: int


def plan(quick: bool) -> list[Cost]:
    """An MLP on an exponential graph of 32, up to eight hops. Quick: of 8, up to four hops, timed once."""
    config = paper("mlp", "cifar10", "exponential", 8 if quick else 32)
    return [Cost(config, 4, 1) if quick else Cost(config, 8, 5)]


def measure(plan: Sequence[Cost], context: Context) -> Result:
    """Time each computation for each number of hops."""
    (cost,) = plan
    rows = context.part("each number of hops", partial(_time, cost, context))["rows"]
    first, last = rows[0], rows[-1]
    findings = [
        f"all sources by reverse gossip: {last['hops']} hops take {last[ALL] / first[ALL]:.1f} times as long as one, "
        f"while the paths from all of them grow from {first['paths']:,} to {last['paths']:,}.",
        f"at {last['hops']} hops the truth of all sources takes {last[REPLAYED] / last[ALL]:.1f} times as long as this "
        f"estimate, and the truth of one source {last[ONE_REPLAYED] / last[ONE]:.2f} times as long as first order.",
    ]
    return Result({name: [row[name] for row in rows] for name in first}, rows, findings, {})


def _time(cost: Cost, context: Context) -> Part:
    network = build(context.configure(cost.config))
    evaluation = evaluate_on(network, first(network.data.test, cost.config.batch_size))
    rounds = list(simulate(network, cost.hops))
    accuracy = float(evaluate(network, rounds[-1].after).accuracy.mean())
    linked = (network.mixing(0).to_dense() > 0).double()
    rows = []
    for hops in range(1, cost.hops + 1):
        computations = _computations(network, rounds[:hops], evaluation)
        seconds = {name: _seconds(call, context.device, cost.repeats) for name, call in computations.items()}
        paths = int(torch.linalg.matrix_power(linked, hops).sum())
        rows.append({"hops": hops, "paths": paths, **seconds, "test_accuracy": accuracy})
    return {"rows": rows}


def _computations(network: Network, rounds: Sequence[Round], evaluation: Evaluation) -> dict[str, Callable[[], object]]:
    return {
        ALL: lambda: by_participant(rounds[0], reverse_gossip(network, rounds, evaluation)),
        ONE: lambda: first_order(network, rounds, evaluation, [0]),
        REPLAYED: lambda: truth(network, rounds, evaluation),
        ONE_REPLAYED: lambda: truth(network, rounds, evaluation, [0]),
    }


def _seconds(call: Callable[[], object], device: str, repeats: int) -> float:
    """The median over the repeats."""
    call()  # the first call allocates memory and loads kernels
    seconds = []
    for _ in range(repeats):
        start = clock(device)
        call()
        seconds.append(clock(device) - start)
    return statistics.median(seconds)


def draw(result: Result, path: Path) -> None:
    """Draw seconds, and the number of paths, against the number of hops."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, ((left, right),) = panels(9.5, 4, 1, 2)
    hops = result.points["hops"]
    for name, (style, colour) in STYLES.items():
        left.plot(hops, result.points[name], style, color=colour, label=name, markersize=4)
    left.set(xlabel="hops", ylabel="seconds", yscale="log", title="time")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.legend(frameon=False, fontsize=8)
    right.plot(hops, result.points["paths"], "-o", color=HARMED, markersize=4)
    right.set(xlabel="hops", ylabel="paths", yscale="log", title="paths that are never enumerated")
    for axes in (left, right):
        axes.set_xticks(hops)
        hide_box(axes)
    save(figure, path, dpi=130)
