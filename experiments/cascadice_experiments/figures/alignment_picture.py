"""Alignment plots: estimates against the truth, a panel per run and number of hops."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cascadice_experiments.alignment.measure import FIRST_ORDER, TRUTH
from cascadice_experiments.drawing import HARMED, HELPED, hide_box, panels, save
from cascadice_experiments.figures.alignment_plots import PATH_INTEGRATED, SHOWN
from cascadice_experiments.figures.figure import Result

COLOURS = {FIRST_ORDER: HARMED, PATH_INTEGRATED: HELPED}
COLUMNS = 4


def draw(result: Result, path: Path) -> None:
    """Draw estimates (x) against the truth (y), as in the paper: 30 points dark, all of them pale."""
    cases = list(dict.fromkeys(map(_case, result.summary)))
    columns = min(COLUMNS, len(cases))
    rows = -(-len(cases) // columns)
    figure, axes = panels(3.6 * columns, 3.7 * rows, rows, columns)
    points = {name: np.array(column) for name, column in result.points.items()}
    for place, case in zip(axes.flat, cases, strict=False):
        _draw_panel(place, points, [row for row in result.summary if _case(row) == case])
    for place in axes.flat[len(cases) :]:
        place.set_axis_off()
    save(figure, path, dpi=130)


def _case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["panel"], row["init"], row["hops"], row["rounds"]


def _draw_panel(axes: Any, points: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    panel, init, hops, rounds = _case(rows[0])
    kept = (points["panel"] == panel) & (points["init"] == init) & (points["hops"] == hops)
    kept = (kept & (points["round"] < rounds)).nonzero()[0]
    shown, true = kept[points["drawn"][kept].argsort()[:SHOWN]], points[TRUTH]
    for row in rows:
        name, label = row["estimator"], f"{row['estimator']}: r = {row['pearson'][0]:.3f}"
        axes.scatter(points[name][kept], true[kept], s=7, color=COLOURS[name], alpha=0.18, linewidths=0)
        axes.scatter(points[name][shown], true[shown], s=16, color=COLOURS[name], linewidths=0, label=label)
    ends = [true[kept].min(), true[kept].max()]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, zorder=0)
    far = f", {hops} hops" if hops > 1 else ""
    accuracy = rows[0]["test_accuracy"][0]
    axes.set_title(f"{panel}{far}\n{init} init, {rounds} rounds, accuracy {accuracy:.3f}", fontsize=8)
    axes.set_xlabel("estimate", fontsize=8)
    axes.set_ylabel("truth", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.ticklabel_format(style="sci", scilimits=(-2, 2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_offset_text().set_fontsize(6)
    hide_box(axes)
    axes.legend(frameon=False, fontsize=6.5, loc="upper left")
