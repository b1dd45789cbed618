"""Estimates of influence against the truth: the paper's alignment plots, from own and shared initial parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cascadice import seeds
from cascadice.influence.agreement import agreement
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper, paper_long
from cascadice_experiments.alignment.measure import ESTIMATORS, FIRST_ORDER, TRUTH, Points, follow
from cascadice_experiments.figures.bootstrap import bootstrap
from cascadice_experiments.figures.figure import Columns, Context, Part, Result, spread, stack

PATH_INTEGRATED = "path-integrated, 2 points"
SHOWN = 30  # points in a plot of the paper
OWN, SHARED = "own", "shared"
NAMES = {"mlp": "MLP", "cnn": "CNN", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Panel:
    """A run, and how its influence is measured: everyone's update, in `scored` rounds spread over the run.

    Influence is on `judged_on` test samples, accuracy on `tested_on` (None: all). `stops` are fractions of the run;
    each is reported as if the run had ended there.
    """

    name: str
    config: Config
    scored: int
    judged_on: int
    tested_on: int | None = None
    hops: int = 1
    stops: tuple[float, ...] = (1.0,)


def both_inits(configs: Sequence[Config], quick: bool, **changes: Any) -> list[Panel]:
    """Each of the paper's runs from own initial parameters, as in the authors' code, and from shared ones."""
    return [panel(replace(config, init=init), quick, **changes) for config in configs for init in (OWN, SHARED)]


def panel(config: Config, quick: bool, name: str | None = None, **changes: Any) -> Panel:
    """The panel of a run. Quick: fewer, narrower participants, CNNs for two epochs, fewer points and test samples."""
    convolutional, large = config.model == "cnn", config.data == "tiny-imagenet"
    if quick:
        options = (*config.model_options, "channels=[8,16,32]" if convolutional and large else NARROW[config.model])
        nodes, epochs = FEWER.get(config.nodes, config.nodes), 2.0 if convolutional else config.epochs
        config = replace(config, nodes=nodes, epochs=epochs, model_options=options)
        size = {"scored": 5, "judged_on": 16 if convolutional else 64, "tested_on": 256 if convolutional else 1024}
    else:
        size = {"scored": 10 if convolutional else 20, "judged_on": 128 if convolutional or large else 256}
    kind = f"{NAMES.get(config.model, config.model)}, {NAMES.get(config.data, config.data)}"
    name = name or f"{kind}, {config.topology} of {config.nodes}"
    return Panel(**{"name": name, "config": config, **size, **changes})


MODELS, CIFARS = ("mlp", "cnn"), ("cifar10", "cifar100")
FEWER: Mapping[int | None, int] = {16: 6, 32: 8}  # participants of quick figures, by the full number
NARROW = {"mlp": "hidden=[64,64]", "cnn": "channels=[16,32,64]"}  # models of quick figures


def on_cifar(quick: bool, topology: str, nodes: int, in_quick: Sequence[str] = CIFARS, **changes: Any) -> list[Panel]:
    """MLP and CNN on CIFAR-10 and CIFAR-100, with the paper's settings and these changes. Quick: on `in_quick`."""
    sets = in_quick if quick else CIFARS
    configs = [replace(paper(model, data, topology, nodes), **changes) for data in sets for model in MODELS]
    return both_inits(configs, quick)


def tiny_ring(quick: bool) -> list[Panel]:
    """The plot of the main text: Tiny ImageNet on a ring of 32."""
    return both_inits([paper(model, "tiny-imagenet", "ring", 32) for model in MODELS], quick)


def tiny_epochs(quick: bool) -> list[Panel]:
    """10, 20 and 30 epochs with 8,192 samples each: one run of 30, reported at three stops. Quick: 1.5 epochs."""
    thirds = (1 / 3, 2 / 3, 1.0)
    if quick:
        small = [paper(model, "tiny-imagenet", "exponential", 8) for model in MODELS]
        panels = both_inits(small, quick, stops=thirds, scored=6)
        return [replace(p, config=replace(p.config, epochs=1.5)) for p in panels]
    runs = [replace(paper_long(m, "exponential", nodes), epochs=30.0) for m in MODELS for nodes in (16, 32)]
    return both_inits(runs, quick, stops=thirds, scored=18)


def measure(
    panels: Sequence[Panel], context: Context, estimators: Sequence[str] = (FIRST_ORDER, PATH_INTEGRATED)
) -> Result:
    """Train the run of every panel and compare estimates with the truth; each panel is a part of the measurement."""
    parts = [
        context.part(f"{p.name}, {p.config.init} initialisation", partial(_measure_panel, p, context, estimators))
        for p in panels
    ]
    rows = [row for p, part in zip(panels, parts, strict=True) for row in _summary(p, part, estimators)]
    return Result(stack([part["points"] for part in parts]), rows, findings(rows), {})


def _measure_panel(p: Panel, context: Context, estimators: Sequence[str]) -> Part:
    network = build(context.configure(p.config))
    assert network.partition is not None
    rounds = length(p.config, network.partition)
    stops = {round(stop * rounds) - 1 for stop in p.stops}
    scored = rounds_to_score(rounds, p.scored, p.hops)
    compared = {name: ESTIMATORS[name] for name in (TRUTH, *estimators)}
    points = follow(network, p.hops, scored, stops, compared, p.judged_on, p.tested_on)
    judged = {
        str(t + 1): {"test_accuracy": spread(metrics.accuracy), "test_loss": spread(metrics.loss)}
        for t, metrics in points.metrics.items()
    }
    chance = 1 / len(network.data.classes) if network.data.classes else None
    return {"points": _columns(p, points), "judged": judged, "rounds": rounds, "chance": chance}


def rounds_to_score(rounds: int, many: int, hops: int) -> set[int]:
    """The rounds at whose end influence is measured: `many`, evenly spread over the run; the last is one of them."""
    return {round(end) - 1 for end in torch.linspace(rounds / many, rounds, many).tolist() if round(end) >= hops}


def _columns(p: Panel, points: Points) -> Columns:
    """A row per update and number of hops; `drawn` is a random order, the same for every number of hops."""
    count = len(points.node)
    generator = seeds.generator(p.config.seed, "points shown", p.name, p.config.init)
    drawn = torch.randperm(count, generator=generator).argsort()
    rows = p.hops * count
    return {
        "panel": [p.name] * rows, "init": [p.config.init] * rows,
        "hops": [h for h in range(1, p.hops + 1) for _ in range(count)],
        "round": points.round.tolist() * p.hops, "node": points.node.tolist() * p.hops,
        "drawn": drawn.tolist() * p.hops,
        **{name: value.flatten().tolist() for name, value in points.value.items()},
    }  # fmt: skip


def _summary(p: Panel, part: Part, estimators: Sequence[str]) -> Iterator[dict[str, Any]]:
    """How each estimate agrees with the truth, for each number of hops and each stop."""
    table = {name: torch.tensor(values) for name, values in part["points"].items() if name not in ("panel", "init")}
    for hops in range(1, p.hops + 1):
        for stop in p.stops:
            end = round(stop * part["rounds"])
            kept = (table["hops"] == hops) & (table["round"] < end)
            points = {name: column[kept] for name, column in table.items()}
            for estimator in estimators:
                yield {
                    "panel": p.name, "init": p.config.init, "rounds": end, "hops": hops, "estimator": estimator,
                    "points": len(points["round"]), **part["judged"][str(end)], "chance": part["chance"],
                    **bootstrap(points[TRUTH], points[estimator], points["round"], p.config.seed),
                    **_agreement_of_shown(points, estimator),
                }  # fmt: skip


def _agreement_of_shown(points: Mapping[str, Tensor], estimator: str) -> dict[str, float]:
    """The agreement over as many points as a plot of the paper shows."""
    shown = points["drawn"].argsort()[:SHOWN]
    measured = agreement(points[TRUTH][shown], points[estimator][shown])
    return {"pearson_30": measured.pearson, "relative_rmse_30": measured.relative_rmse}


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence per initialisation and estimator: the range over all plots."""
    kinds = sorted({(row["init"], row["estimator"]) for row in rows})
    return [_sentence(*kind, [row for row in rows if (row["init"], row["estimator"]) == kind]) for kind in kinds]


def _sentence(init: str, estimator: str, rows: Sequence[Mapping[str, Any]]) -> str:
    def span(name: str) -> str:
        values = [row[name][0] for row in rows]
        least, most = f"{min(values):.3f}", f"{max(values):.3f}"
        return least if least == most else f"{least} to {most}"

    return (
        f"{init} initial parameters, {estimator}: Pearson {span('pearson')}, relative RMSE {span('relative_rmse')}, "
        f"in networks with test accuracy {span('test_accuracy')}."
    )
