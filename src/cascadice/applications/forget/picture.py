"""A picture of forgetting: how much each model changed, how good it still is, and what it still knows."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.files import aside
from cascadice.pictures.influence import NAMED_UP_TO

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
    axes.set(title="how far each model moved" + (" (orange: itself)" if gone else ""), ylabel="|change of θ|")


def _traces(axes: Any, content: Mapping[str, Any], what: str, title: str) -> None:
    for name, trace in content["traces"].items():
        mean = np.mean(trace[what])
        label = f"{name}: mean {mean:.3f}"
        axes.plot(trace[what], MARKS[name], color=COLOURS[name], markersize=5, label=label, linestyle="none")
        axes.axhline(mean, color=COLOURS[name], linewidth=0.8, alpha=0.6)
    axes.set_title(title)
    axes.legend(frameon=False, fontsize=8)


KINDS = [(kind, span) for span in ("short", "long") for kind in ("sample", "batch", "participant")]
LEVELS = {
    "gossip": ("#E69F00", "v"),
    "first-order": ("#0072B2", "o"),
    "path-integrated, 2 points": ("#009E73", "D"),
    "as trained, repaired": ("#CC79A7", "x"),
    "first-order, repaired": ("#56B4E9", "s"),
}


def draw_levels(points: Sequence[Mapping[str, Any]], path: str | PathLike[str]) -> None:
    """What each level leaves of the way, setting by setting: mean and deviation over seeds (PNG or SVG)."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys((p["data"], p["activation"], p["lr"]) for p in points))
    rows, columns = -(-len(settings) // 2), min(2, len(settings))
    figure = Figure(figsize=(5.6 * columns, 3.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for spare in panels.flat[len(settings) :]:
        spare.set_visible(False)
    for axes, setting in zip(panels.flat, settings, strict=False):
        mine = [p for p in points if (p["data"], p["activation"], p["lr"]) == setting]
        accuracy = np.mean([p["test_accuracy"] for p in mine if p["level"] == "as trained"])
        axes.set_title(f"{setting[0]}, {setting[1]}, lr {setting[2]:g} (test accuracy {accuracy:.2f})", fontsize=11)
        _levels(axes, mine)
    axes.legend(frameon=False, fontsize=8)
    figure.supylabel("distance left (1: as trained, 0: never used)", fontsize=10)
    with aside(Path(path)) as draft:
        figure.savefig(draft, dpi=150, format=Path(path).suffix.removeprefix("."))


def _levels(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    for place, (level, (colour, mark)) in enumerate(LEVELS.items()):
        left = [[p["distance"] for p in points if (p["kind"], p["span"]) == k and p["level"] == level] for k in KINDS]
        there = [x for x, values in enumerate(left) if values]
        means, spreads = ([f(left[x]) for x in there] for f in (np.mean, np.std))
        at = np.array(there) + 0.14 * (place - 2)
        axes.errorbar(
            at, means, spreads, fmt=mark, color=colour, markersize=5, capsize=2, linestyle="none", label=level
        )
    axes.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_xticks(range(len(KINDS)), [f"{kind}\n{span}" for kind, span in KINDS], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
