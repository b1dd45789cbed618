"""A picture of forgetting: how much each model changed, how good it still is, and what it still knows."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.report.influence import NAMED_UP_TO
from cascadice.store import aside

COLOURS = {"as trained": "#D55E00", "forgotten": "#0072B2", "never used": "#009E73"}  # Okabe–Ito
MARKS = {"as trained": "o", "forgotten": "s", "never used": "x"}


def draw(content: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Draw what `forget.json` holds: a panel each for change, test loss and membership, participant by participant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 4.4), layout="constrained")
    changed, judged, known = figure.subplots(1, 3)
    _change(changed, content)
    _traces(judged, content, "loss", "test loss")
    _traces(known, content, "membership", "forgotten against fresh samples, by loss: AUC")
    known.axhline(0.5, color="0.4", linewidth=0.8, linestyle="--")
    left = content["distance"]
    for axes in (changed, judged, known):
        axes.set_xlabel("participant")
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
        if len(content["change"]) <= NAMED_UP_TO:
            axes.set_xticks(range(len(content["change"])))
            axes.tick_params(axis="x", labelsize=8)
    measured = "" if left is None else f"; {left:.3f} of the way is left"
    figure.suptitle(f"{content['title']} ({content['how']['level']}{measured})")
    with aside(Path(path)) as draft:
        figure.savefig(draft, dpi=150, format="png")


def _change(axes: Any, content: Mapping[str, Any]) -> None:
    gone = set() if content["forgotten"]["samples"] else set(content["forgotten"]["participants"])
    places = np.arange(len(content["change"]))
    axes.bar(places, content["change"], color=["#E69F00" if k in gone else COLOURS["forgotten"] for k in places])
    axes.set(title="how far each model moved" + (" (orange: forgotten itself)" if gone else ""), ylabel="|change of θ|")


def _traces(axes: Any, content: Mapping[str, Any], what: str, title: str) -> None:
    for name, trace in content["traces"].items():
        mean = np.mean(trace[what])
        label = f"{name}: mean {mean:.3f}"
        axes.plot(trace[what], MARKS[name], color=COLOURS[name], markersize=5, label=label, linestyle="none")
        axes.axhline(mean, color=COLOURS[name], linewidth=0.8, alpha=0.6)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=8)
