"""A picture of forgetting: how far each model moved, how good it is, and whether forgotten samples are recognised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.pictures.panels import NAMED_UP_TO, panels, save

COLOURS = {"as trained": "#D55E00", "forgotten": "#0072B2", "never used": "#009E73"}  # Okabe–Ito
MARKS = {"as trained": "o", "forgotten": "s", "never used": "x"}


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Plot the content of `forget.json` as PNG or SVG: change, test loss and membership AUC of each participant."""
    figure, (change, loss, membership) = panels(3, (13.5, 4.4))
    forgotten = set() if results["forgotten"]["samples"] else set(results["forgotten"]["participants"])
    nodes, left = range(len(results["change"])), results["distance"]
    change.bar(nodes, results["change"], color=["#E69F00" if k in forgotten else COLOURS["forgotten"] for k in nodes])
    title = "how far each model moved" + (" (orange: forgotten)" if forgotten else "")
    change.set(title=title, ylabel="|change of θ|")
    _plot_traces(loss, results, "loss", "test loss")
    _plot_traces(membership, results, "membership", "membership AUC (0.5: chance)")
    membership.axhline(0.5, color="0.4", linewidth=0.8, linestyle="--")
    for axes in (change, loss, membership):
        axes.set_xlabel("participant")
        if len(nodes) <= NAMED_UP_TO:
            axes.set_xticks(nodes, [str(k) for k in nodes])
            axes.tick_params(axis="x", labelsize=8)
    measured = "" if left is None else f"; distance left {left:.3f}"
    save(figure, path, f"{results['title']} ({results['how']['level']}{measured})")


def _plot_traces(axes: Any, results: Mapping[str, Any], key: str, title: str) -> None:
    for name, trace in results["traces"].items():
        values = np.array(trace[key], dtype=float)
        if np.isnan(values).all():  # the forgotten samples are in another process
            continue
        mean = np.nanmean(values)
        style = {"color": COLOURS[name], "markersize": 5, "linestyle": "none"}
        axes.plot(values, MARKS[name], label=f"{name}: mean {mean:.3f}", **style)
        axes.axhline(mean, color=COLOURS[name], linewidth=0.8, alpha=0.6)
    axes.set_title(title)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
