"""The results of the study as a picture, and as lines on the console."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from cascadice_experiments.drawing import GREEN, GREY, HARMED, HELPED, PINK, SKY, YELLOW, hide_box, panels, save

LABELS = {"size": "size: update norm", "distance": "distance: Krum"}  # signals that others use on their own
MARKERS = ("o", "<", ">", "s", "v", "D", "^")
COLOURS = (HARMED, HELPED, SKY, GREY, GREEN, PINK, YELLOW)


def draw(results: Sequence[Mapping[str, Any]], path: str | PathLike[str]) -> None:
    """Draw the AUROC of every score in every setting: mean, least and greatest over the seeds."""
    shown = [result for result in results if "auroc" in result]
    figure, ((axes,),) = panels(8.4, 1.6 + 0.26 * len(shown))
    for place, score in enumerate(shown[0]["auroc"] if shown else ()):
        _draw_score(axes, LABELS.get(score, score), [result["auroc"][score] for result in shown], place)
    axes.set_yticks(range(len(shown)), [result["name"] for result in shown], fontsize=8)
    axes.axvline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="area under the ROC curve over links; bars: least and greatest of the seeds", xlim=(-0.02, 1.02))
    axes.invert_yaxis()
    hide_box(axes)
    if shown:
        figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=4)
    save(figure, path)


def _draw_score(axes: Any, label: str, areas: Sequence[Mapping[str, float]], place: int) -> None:
    mean, least, most = (np.array([area[key] for area in areas]) for key in ("mean", "least", "most"))
    axes.errorbar(
        mean, np.arange(len(mean)) + 0.09 * (place - 3), xerr=np.maximum([mean - least, most - mean], 0),
        fmt=MARKERS[place % 7], color=COLOURS[place % 7], markersize=7 if place == 0 else 4, linewidth=0.8, label=label,
    )  # fmt: skip


HEADER = (
    "AUROC, mean over seeds       detector (least)  influence direction  norm   Krum  own cos  loss   delay  "
    "flagged and false alarms at allowance 0.25, 0.5, 0.7, 1, if unlike, and measured (ever)  test accuracy    s"
)


def line(result: Mapping[str, Any]) -> str:
    """One setting as a line under `HEADER`."""
    areas, flags, delay = " " * 66, " " * 29, " " * 5
    if "auroc" in result:
        first, *others = result["auroc"].values()
        areas = f"{first['mean']:.3f}  ({first['least']:.3f})     " + "   ".join(f"{one['mean']:.3f}" for one in others)
        flags = " ".join(f"{share['mean']:.2f}" for share in result["flagged"].values())
        delay = f"{result['delay']:5.0f}"
    alarms = " ".join(f"{share['mean']:.4f}" for share in result["false_alarms"].values())
    accuracy = f"{result['accuracy']['mean']:.3f} ± {result['accuracy']['sd']:.3f}"
    ever = f"({result['false_alarms_ever']:.3f})"
    return f"{result['name']:28} {areas:66}  {delay}  {flags}  {alarms} {ever:22}  {accuracy}  {result['seconds']:5.1f}"
