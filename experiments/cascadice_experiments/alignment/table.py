"""The README's table from results that were kept: how well estimates of one hop follow the truth, over seeds."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from cascadice.influence.agreement import agreement
from cascadice_experiments.alignment.measure import FIRST_ORDER, TRUTH

PATH_INTEGRATED = "path-integrated, 2 points"
HEAD = (
    "| | seeds | test accuracy | the paper's estimate, all rounds together: Pearson, relative RMSE "
    "| within a round: mean Spearman (range over rounds) | path-integrated, 2 points (seed 0): "
    "Pearson, relative RMSE |",
    "|---|---|---|---|---|---|",
)


class Run(NamedTuple):
    """A run of the table: the figure that has it with seed 0, where in it, and the figure that has it with five."""

    name: str
    figure: str
    panel: str
    rounds: int
    with_seeds: str


CIFAR, TINY = "CIFAR-10, ring of 32", "Tiny ImageNet, exponential of 32"
RUNS = (
    *(
        Run(f"{model}, {CIFAR}, batch 16", "align-batch-16", f"{model}, {CIFAR}", 160, f"beyond-seeds-{model.lower()}")
        for model in ("MLP", "CNN")
    ),
    *(
        Run(
            f"{model}, Tiny ImageNet, exponential graph of 32, 30 epochs", "align-tiny-epochs", f"{model}, {TINY}",
            1920, f"beyond-seeds-tiny-{model.lower()}",
        )
        for model in ("MLP", "CNN")
    ),
)  # fmt: skip


def lines(folder: Path) -> Iterator[str]:
    """The table in Markdown: runs with five seeds where these were measured, and with seed 0 where not."""
    yield from HEAD
    for run in RUNS:
        seeded = (folder / f"{run.with_seeds}.json").exists()
        figures = list(measured(folder, run.with_seeds if seeded else run.figure, None if seeded else run))
        path = next(row for row in _rows(folder, run.figure, run) if row["estimator"] == PATH_INTEGRATED)
        within = _spread([one["within"] for one in figures])
        least, most = min(one["least"] for one in figures), max(one["most"] for one in figures)
        cells = [
            run.name, f"0 to {len(figures) - 1}" if seeded else "0", _spread([one["accuracy"] for one in figures]),
            f"{_spread([one['pearson'] for one in figures])}, {_spread([one['relative_rmse'] for one in figures])}",
            f"{within} ({least:.3f} to {most:.3f})",
            f"{path['pearson'][0]:.4f}, {path['relative_rmse'][0]:.3f}",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def measured(folder: Path, figure: str, run: Run | None) -> Iterator[dict[str, float]]:
    """What each panel, or that of the run, shows of first order: over all rounds, and round by round."""
    from pyarrow import parquet

    points = parquet.read_table(folder / f"{figure}.parquet").to_pydict()
    for row in _rows(folder, figure, run):
        if row["estimator"] == FIRST_ORDER:
            each = list(_by_round(points, row))
            yield {
                "accuracy": row["test_accuracy"][0], "pearson": row["pearson"][0],
                "relative_rmse": row["relative_rmse"][0], "within": mean(each), "least": min(each), "most": max(each),
            }  # fmt: skip


def _rows(folder: Path, figure: str, run: Run | None) -> Iterator[dict[str, Any]]:
    for row in json.loads((folder / f"{figure}.json").read_text())["summary"]:
        if run is None or (row["panel"], row["init"], row["rounds"]) == (run.panel, "shared", run.rounds):
            yield row


def _by_round(points: Mapping[str, list[Any]], row: Mapping[str, Any]) -> Iterator[float]:
    """Spearman of first order with the truth in each round of the row's panel."""
    own = [i for i, (panel, init) in enumerate(zip(points["panel"], points["init"], strict=True))
           if (panel, init) == (row["panel"], row["init"])]  # fmt: skip
    for t in sorted({points["round"][i] for i in own}):
        here = [i for i in own if points["round"][i] == t]
        true, found = (torch.tensor([points[name][i] for i in here]) for name in (TRUTH, FIRST_ORDER))
        yield agreement(true, found).spearman


def _spread(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"
