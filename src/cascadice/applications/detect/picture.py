"""A picture of suspicion: who flags whom, and how the vote came about."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.files import aside
from cascadice.pictures.influence import COLOURS, HARMED, HELPED, NAMED_UP_TO
from cascadice.pictures.topology import SUFFIXES

LINES = (HARMED, *COLOURS[1:], HELPED)


def draw(found: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Draw what `cascadice detect` found into `path` (PNG or SVG, by its suffix)."""
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    figure = Figure(figsize=(11.2, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _matrix(left, found)
    _votes(right, found)
    for axes in (left, right):
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    with aside(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def _matrix(axes: Any, found: Mapping[str, Any]) -> None:
    strength = np.ma.masked_where(~np.array(found["heard"]), np.array(found["strength"]))
    shown = axes.imshow(strength, "RdBu_r", vmin=0, vmax=2, interpolation="nearest")  # 1, the limit, is white
    axes.figure.colorbar(shown, ax=axes, shrink=0.8, extend="max", label="evidence over its threshold")
    axes.set_facecolor("#f4f4f4")
    axes.set(xlabel="who judges", ylabel="who is judged", title="who flags whom: red is above the threshold")
    if (nodes := len(strength)) <= NAMED_UP_TO:
        axes.set_xticks(range(nodes))
        axes.set_yticks(range(nodes))
        axes.tick_params(labelsize=8 if nodes <= 16 else 6)


def _votes(axes: Any, found: Mapping[str, Any]) -> None:
    rounds, votes = found["rounds"], np.array(found["votes"], dtype=float)
    colours = iter(LINES * len(votes.T))
    for node, share in enumerate(votes.T):
        if share[-1] >= 0.5 or str(node) in found["known"]:
            kind = found["known"].get(str(node))
            label = f"{node}" + (f" ({kind})" if kind else "")
            axes.plot(rounds, share, color=next(colours), linewidth=1.8, label=label, zorder=3)
        else:
            axes.plot(rounds, share, color="0.75", linewidth=0.8)
    axes.axhline(0.5, color="0.2", linewidth=0.8, linestyle=":")
    axes.set(title="how the vote came about", xlabel="round", ylabel="share of its receivers that flag it")
    axes.set_ylim(-0.03, 1.03)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")


def draw_study(results: Sequence[Mapping[str, Any]], path: str | PathLike[str]) -> None:
    """How surely attackers are told from the honest by each score, setting by setting, into `path` (PNG or SVG)."""
    from matplotlib.figure import Figure

    path, shown = Path(path), [result for result in results if "auroc" in result]
    figure = Figure(figsize=(8.4, 1.6 + 0.26 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for place, score in enumerate(shown[0]["auroc"] if shown else ()):
        found = [result["auroc"][score] for result in shown]
        _areas(axes, USED_AS.get(score, score), found, place)
    axes.set_yticks(range(len(shown)), [result["name"] for result in shown], fontsize=8)
    axes.axvline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="area under the ROC curve over links; bars: least and greatest of the seeds", xlim=(-0.02, 1.02))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=4)
    with aside(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


USED_AS = {"size": "size: update norm", "distance": "distance: Krum"}  # signs that people use alone
MARKS = ("o", "<", ">", "s", "v", "D", "^")


def _areas(axes: Any, score: str, found: Sequence[Mapping[str, float]], place: int) -> None:
    mean = np.array([one["mean"] for one in found])
    bars = [mean - [one["least"] for one in found], np.array([one["most"] for one in found]) - mean]
    colour = (HARMED, HELPED, "#56B4E9", *COLOURS)[place % 7]
    heights = np.arange(len(mean)) + 0.09 * (place - 3)
    size = 7 if place == 0 else 4
    axes.errorbar(
        mean, heights, xerr=np.maximum(bars, 0), fmt=MARKS[place % 7], color=colour, markersize=size, linewidth=0.8,
        label=score,
    )  # fmt: skip


STUDY_HEADER = (
    "AUROC, mean over seeds       detector (least)  influence direction  norm   Krum  own cos  loss   delay  "
    "flagged and false alarms at allowance 0.25, 0.5, 0.7, 1, and if unlike (ever)  test accuracy    s"
)


def study_line(result: Mapping[str, Any]) -> str:
    """A setting in a line under `STUDY_HEADER`."""
    areas, flags, delay = " " * 66, " " * 24, " " * 5
    if "auroc" in result:
        first, *others = result["auroc"].values()
        areas = f"{first['mean']:.3f}  ({first['least']:.3f})     " + "   ".join(f"{one['mean']:.3f}" for one in others)
        flags = " ".join(f"{one['mean']:.2f}" for one in result["flagged"].values())
        delay = f"{result['delay']:5.0f}"
    alarms = " ".join(f"{one['mean']:.4f}" for one in result["false_alarms"].values())
    accuracy = f"{result['accuracy']['mean']:.3f} ± {result['accuracy']['sd']:.3f}"
    ever = f"({result['false_alarms_ever']:.3f})"
    return f"{result['name']:28} {areas:66}  {delay}  {flags}  {alarms} {ever:22}  {accuracy}  {result['seconds']:5.1f}"
