"""The picture of `cascadice validate`: how well each estimate ranks subsets, and what it predicts for each of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.pictures.panels import panels, save

RIGHT, WRONG, NEITHER = "#0072B2", "#D55E00", "0.6"  # Okabe–Ito
ONE_ROW = 4  # panels


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Plot the content of `validate.json` as PNG or SVG: bars of LDS, and predicted against retrained loss."""
    estimates = results["estimates"]
    count = len(estimates) + 1
    rows = 1 if count <= ONE_ROW else 2
    columns = -(-count // rows)
    figure, (bars, *others) = panels(rows * columns, (4.2 * columns, 3.8 * rows), rows)
    _plot_bars(bars, estimates)
    for place, axes in enumerate(others):
        if place < len(estimates):
            _plot_subsets(axes, estimates[place], results["retrained"])
        else:
            axes.set_axis_off()
    test = results["test"]
    measured = f"test {test['measure']} of the full run {np.mean(test['values']):.3f}"
    subsets = f"{len(results['retrained'])} networks trained on {results['kept']}"
    save(figure, path, f"{results['title']}: {subsets}; {measured}")


def _plot_bars(axes: Any, estimates: list[Mapping[str, Any]]) -> None:
    for place, estimate in enumerate(estimates):
        lds, colour = estimate["lds"], _colour(estimate["lds"])
        if lds["spearman"] is None:
            continue
        axes.barh(place, lds["spearman"], color=colour, height=0.6)
        axes.plot([lds["low"], lds["high"]], [place, place], color="0.1", linewidth=1.4)
    axes.set_yticks(range(len(estimates)), [estimate["name"] for estimate in estimates], fontsize=8)
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.set(xlim=(-1.05, 1.05), ylim=(len(estimates) - 0.5, -0.5), xlabel="rank correlation (line: 95 % interval)")
    axes.set_title("LDS, the best first")


def _plot_subsets(axes: Any, estimate: Mapping[str, Any], retrained: list[float]) -> None:
    lds = estimate["lds"]
    axes.scatter(estimate["predicted"], retrained, s=14, color=_colour(lds), alpha=0.8)
    figure = "" if lds["spearman"] is None else f": {lds['spearman']:.2f}"
    axes.set(title=f"{estimate['name']}{figure}", xlabel="predicted: sum of scores", ylabel="retrained test loss")
    axes.locator_params(axis="x", nbins=5)


def _colour(lds: Mapping[str, Any]) -> str:
    if lds["spearman"] is None or lds["low"] <= 0 <= lds["high"]:
        return NEITHER
    return RIGHT if lds["low"] > 0 else WRONG
