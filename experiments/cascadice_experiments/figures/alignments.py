"""Estimates of influence against the truth: the paper's alignment plots, in its regime and in the one that learns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from cascadice import seeds
from cascadice.engine import Metrics
from cascadice.influence import agreement
from cascadice.runs.config import Config, build, length
from cascadice.runs.recipes import paper, paper_long
from cascadice_experiments.alignment import ESTIMATORS, TRUTH, Followed, follow
from cascadice_experiments.figures.intervals import bootstrap
from cascadice_experiments.figures.results import Columns, Means, Part, Result, joined

FIRST, PATH = "first order", "path-integrated, 2 points"
COMPARED = {name: ESTIMATORS[name] for name in (TRUTH, FIRST, PATH)}
SHOWN = 30  # points in a plot of the paper
OWN, SHARED = "own", "shared"
NAMES = {"mlp": "MLP", "cnn": "CNN", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Panel:
    """A run and how it is looked at: everybody's update in `scored` rounds spread over it.

    Influence is on `judged_on` test samples, accuracy on `tested_on` (all). `stops` are parts of the run; each is
    reported as if the run had ended there.
    """

    name: str
    config: Config
    scored: int
    judged_on: int
    tested_on: int | None = None
    hops: int = 1
    stops: tuple[float, ...] = (1.0,)


def paired(configs: Sequence[Config], quick: bool, **looked: Any) -> list[Panel]:
    """Each of the paper's runs from own initial parameters, as the authors have it, and from shared ones."""
    return [panel(replace(config, init=init), quick, **looked) for config in configs for init in (OWN, SHARED)]


def panel(config: Config, quick: bool, name: str | None = None, **looked: Any) -> Panel:
    """A run to look at. Quick: few and narrow participants, CNNs for two epochs, fewer points on fewer test samples."""
    convolves, large = config.model == "cnn", config.data == "tiny-imagenet"
    if quick:
        options = (*config.model_options, "channels=[8,16,32]" if convolves and large else NARROW[config.model])
        nodes, epochs = FEW.get(config.nodes, config.nodes), 2.0 if convolves else config.epochs
        config = replace(config, nodes=nodes, epochs=epochs, model_options=options)
        measured = {"scored": 5, "judged_on": 16 if convolves else 64, "tested_on": 256 if convolves else 1024}
    else:
        measured = {"scored": 10 if convolves else 20, "judged_on": 128 if convolves or large else 256}
    kind = f"{NAMES.get(config.model, config.model)}, {NAMES.get(config.data, config.data)}"
    return Panel(
        **{"name": name or f"{kind}, {config.topology} of {config.nodes}", "config": config, **measured, **looked}
    )


MODELS = ("mlp", "cnn")
# for a quick look: so many participants in place of 16 and 32, and models that are not as wide
FEW: Mapping[int | None, int] = {16: 6, 32: 8}
NARROW = {"mlp": "hidden=[64,64]", "cnn": "channels=[16,32,64]"}


def on_cifar(topology: str, nodes: int, quick: bool, sets: Sequence[str], **changes: Any) -> list[Panel]:
    """MLP and CNN on each of these, by the paper's settings with these changes."""
    configs = [replace(paper(model, data, topology, nodes), **changes) for data in sets for model in MODELS]
    return paired(configs, quick)


def cifar(topology: str, nodes: int, **changes: Any) -> Callable[[bool], list[Panel]]:
    """The plan of a plot with both CIFARs."""
    return lambda quick: on_cifar(topology, nodes, quick, ("cifar10", "cifar100"), **changes)


def sensitivity(topology: str, nodes: int, **changes: Any) -> Callable[[bool], list[Panel]]:
    """As `cifar`; quick, only CIFAR-10."""
    sets = ("cifar10", "cifar100")
    return lambda quick: on_cifar(topology, nodes, quick, sets[:1] if quick else sets, **changes)


def tiny_ring(quick: bool) -> list[Panel]:
    """The main text's: Tiny ImageNet on a ring of 32."""
    return paired([paper(model, "tiny-imagenet", "ring", 32) for model in MODELS], quick)


def tiny_epochs(quick: bool) -> list[Panel]:
    """10, 20 and 30 epochs with 8,192 samples each: a run of 30, looked at three times. Quick: 1.5."""
    thirds = (1 / 3, 2 / 3, 1.0)
    if quick:
        panels = paired([paper(m, "tiny-imagenet", "exponential", 8) for m in MODELS], quick, stops=thirds, scored=6)
        return [replace(p, config=replace(p.config, epochs=1.5)) for p in panels]
    runs = [replace(paper_long(m, "exponential", nodes), epochs=30.0) for m in MODELS for nodes in (16, 32)]
    return paired(runs, quick, stops=thirds, scored=18)


def measure(panels: Sequence[Panel], means: Means) -> Result:
    """Train every panel's run and compare; a part of the result is a panel."""
    parts = [means.part(_key(p), partial(_followed, p, means)) for p in panels]
    rows = [row for p, part in zip(panels, parts, strict=True) for row in _summary(p, part)]
    return Result(joined([part["points"] for part in parts]), rows, findings(rows), {})


def _key(p: Panel) -> str:
    return f"{p.name}, {p.config.init} initialisation"


def _followed(p: Panel, means: Means) -> Part:
    # compiling for each of several short runs takes longer than the runs
    strategy = "vmap" if means.device.startswith("cuda") else "auto"
    config = replace(p.config, device=means.device, data_root=means.data_root, strategy=strategy)
    network = build(config)
    assert network.partition is not None
    rounds = length(config, network.partition)
    stops = {round(stop * rounds) - 1 for stop in p.stops}
    found = follow(network, p.hops, scored(rounds, p.scored, p.hops), stops, COMPARED, p.judged_on, p.tested_on)
    judged = {str(t + 1): _spread(evaluation) for t, evaluation in found.judged.items()}
    chance = 1 / len(network.data.classes) if network.data.classes else None
    return {"points": _columns(p, found), "judged": judged, "rounds": rounds, "chance": chance}


def scored(rounds: int, many: int, hops: int) -> set[int]:
    """The rounds at whose end is looked: as many, evenly spread, as there are; the last is one of them."""
    return {round(end) - 1 for end in torch.linspace(rounds / many, rounds, many).tolist() if round(end) >= hops}


def _spread(evaluation: Metrics) -> dict[str, list[float]]:
    """Mean, least and greatest over the participants."""
    named = {"test_accuracy": evaluation.accuracy, "test_loss": evaluation.loss}
    return {name: [float(v.mean()), float(v.min()), float(v.max())] for name, v in named.items()}


def _columns(p: Panel, found: Followed) -> Columns:
    """A row for each update and number of hops; `drawn` is a random order, the same for all numbers of hops."""
    points = len(found.node)
    generator = seeds.generator(p.config.seed, "points shown", p.name, p.config.init)
    drawn = torch.randperm(points, generator=generator).argsort()
    rows = p.hops * points
    return {
        "panel": [p.name] * rows, "init": [p.config.init] * rows,
        "hops": [h for h in range(1, p.hops + 1) for _ in range(points)],
        "round": found.round.tolist() * p.hops, "node": found.node.tolist() * p.hops,
        "drawn": drawn.tolist() * p.hops,
        **{name: found.value[name].flatten().tolist() for name in COMPARED},
    }  # fmt: skip


def _summary(p: Panel, part: Part) -> Iterator[dict[str, Any]]:
    """How each estimate agrees with the truth, for each number of hops and each stop."""
    table = {name: torch.tensor(values) for name, values in part["points"].items() if name not in ("panel", "init")}
    for hops in range(1, p.hops + 1):
        for stop in p.stops:
            end = round(stop * part["rounds"])
            kept = (table["hops"] == hops) & (table["round"] < end)
            here = {name: column[kept] for name, column in table.items()}
            for estimator in (FIRST, PATH):
                yield {
                    "panel": p.name, "init": p.config.init, "rounds": end, "hops": hops, "estimator": estimator,
                    "points": len(here["round"]), **part["judged"][str(end)], "chance": part["chance"],
                    **bootstrap(here[TRUTH], here[estimator], here["round"], p.config.seed), **_of_30(here, estimator),
                }  # fmt: skip


def _of_30(here: Mapping[str, Tensor], estimator: str) -> dict[str, float]:
    """The same of as many points as a plot of the paper shows."""
    shown = here["drawn"].argsort()[:SHOWN]
    found = agreement(here[TRUTH][shown], here[estimator][shown])
    return {"pearson_30": found.pearson, "relative_rmse_30": found.relative_rmse}


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each regime and estimate: from the worst to the best of the plots."""

    def kind(row: Mapping[str, Any]) -> tuple[str, str]:
        return row["init"], row["estimator"]

    return [_sentence(*key, list(group)) for key, group in groupby(sorted(rows, key=kind), kind)]


def _sentence(init: str, estimator: str, rows: Sequence[Mapping[str, Any]]) -> str:
    def span(name: str) -> str:
        values = [row[name][0] for row in rows]
        least, most = f"{min(values):.3f}", f"{max(values):.3f}"
        return least if least == most else f"{least} to {most}"

    return (
        f"{init} initial parameters, {estimator}: Pearson {span('pearson')}, relative RMSE {span('relative_rmse')}, "
        f"in networks with test accuracy {span('test_accuracy')}."
    )
