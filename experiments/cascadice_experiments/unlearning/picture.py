"""The results of the study as a picture: how far each level of forgetting leaves the models from retrained ones."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from cascadice_experiments.drawing import GREEN, HELPED, PINK, SKY, YELLOW, hide_box, panels, save

CASES = [(kind, span) for span in ("short", "long") for kind in ("sample", "batch", "participant")]
STYLES = {
    "gossip": (YELLOW, "v"),
    "first-order": (HELPED, "o"),
    "path-integrated, 2 points": (GREEN, "D"),
    "as trained, repaired": (PINK, "x"),
    "first-order, repaired": (SKY, "s"),
}


def draw(points: Sequence[Mapping[str, Any]], path: str | PathLike[str]) -> None:
    """Draw the distance left by each level, one panel per setting: mean and standard deviation over seeds."""
    settings = list(dict.fromkeys((p["data"], p["activation"], p["lr"]) for p in points))
    rows, columns = -(-len(settings) // 2), min(2, len(settings))
    figure, places = panels(5.6 * columns, 3.8 * rows, rows, columns, sharey=True)
    for spare in places.flat[len(settings) :]:
        spare.set_visible(False)
    for axes, setting in zip(places.flat, settings, strict=False):
        shown = [p for p in points if (p["data"], p["activation"], p["lr"]) == setting]
        accuracy = np.mean([p["test_accuracy"] for p in shown if p["level"] == "as trained"])
        axes.set_title(f"{setting[0]}, {setting[1]}, lr {setting[2]:g} (test accuracy {accuracy:.2f})", fontsize=11)
        _draw_setting(axes, shown)
    axes.legend(frameon=False, fontsize=8)
    figure.supylabel("distance left (1: as trained, 0: never used)", fontsize=10)
    save(figure, path)


def _draw_setting(axes: Any, points: Sequence[Mapping[str, Any]]) -> None:
    for place, (level, (colour, marker)) in enumerate(STYLES.items()):
        left = [[p["distance"] for p in points if (p["kind"], p["span"], p["level"]) == (*c, level)] for c in CASES]
        measured = [x for x, distances in enumerate(left) if distances]
        means, spreads = ([f(left[x]) for x in measured] for f in (np.mean, np.std))
        centres = np.array(measured) + 0.14 * (place - 2)
        style = {"fmt": marker, "color": colour, "markersize": 5, "capsize": 2, "linestyle": "none"}
        axes.errorbar(centres, means, spreads, label=level, **style)
    axes.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_xticks(range(len(CASES)), [f"{kind}\n{span}" for kind, span in CASES], fontsize=8)
    hide_box(axes)
