"""Pictures of collaboration: groups in the matrix of influence, who gives and takes, rules compared."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.files import aside
from cascadice.pictures.influence import COLOURS, HARMED, HELPED, NAMED_UP_TO
from cascadice.pictures.topology import SUFFIXES

EXPELLED = "expel"


def draw(found: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Draw what `cascadice choose` found: influence sorted by group, giving and taking, in all and over time."""
    figure, (left, middle, right) = _figure(3, (16.5, 4.8))
    _matrix(left, found)
    _balance(middle, found)
    _over_time(right, found)
    _save(figure, path)


def _figure(columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: str | PathLike[str]) -> None:
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    for axes in figure.axes:
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    with aside(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def _matrix(axes: Any, found: Mapping[str, Any]) -> None:
    groups, influence = np.array(found["groups"]), np.array(found["influence"])
    order = np.argsort(np.where(groups < 0, len(groups), groups), kind="stable")  # those alone come last
    sorted_ = influence[order][:, order]
    most = np.abs(sorted_[~np.eye(len(order), dtype=bool)]).max(initial=1e-12)
    shown = axes.imshow(np.ma.masked_equal(sorted_, 0), "RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
    axes.figure.colorbar(shown, ax=axes, shrink=0.8, label="helped  <  influence  >  harmed")
    for border in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axes.axhline(border, color="0.2", linewidth=0.8)
        axes.axvline(border, color="0.2", linewidth=0.8)
    axes.set(title="influence, sorted by group", xlabel="receiver", ylabel="source")
    if len(order) <= NAMED_UP_TO:
        axes.set_xticks(range(len(order)), order)
        axes.set_yticks(range(len(order)), order)
        axes.tick_params(labelsize=8 if len(order) <= 16 else 6)


def _balance(axes: Any, found: Mapping[str, Any]) -> None:
    gave, took = np.array(found["gave"])[-1], np.array(found["took"])[-1]
    colours = [HARMED if one["verdict"] == EXPELLED else HELPED for one in found["advice"]]
    axes.scatter(took, gave, c=colours, s=28, zorder=3)
    ends = [min(took.min(), gave.min()), max(took.max(), gave.max())]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, linestyle=":")
    for node, place in enumerate(zip(took, gave, strict=True)):
        axes.annotate(str(node), place, xytext=(3, 3), textcoords="offset points", fontsize=7)
    axes.set(
        title="who gives, who takes (red: expel)",
        xlabel="took: help from neighbours",
        ylabel="gave: help to neighbours",
    )


def _over_time(axes: Any, found: Mapping[str, Any]) -> None:
    times, balance = found["rounds"], np.array(found["gave"]) - np.array(found["took"])
    expelled = {one["participant"] for one in found["advice"] if one["verdict"] == EXPELLED}
    for node, line in enumerate(balance.T):
        bad = node in expelled
        axes.plot(times, line, color=HARMED if bad else "0.7", linewidth=1.6 if bad else 0.8, zorder=3 if bad else 2)
        if bad:
            axes.annotate(str(node), (times[-1], line[-1]), fontsize=8, color=HARMED)
    axes.axhline(0, color="0.2", linewidth=0.8, linestyle=":")
    axes.set(title="the balance of each with its neighbours", xlabel="round", ylabel="given minus taken so far")


def compare(settings: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], path: str | PathLike[str]) -> None:
    """Draw accuracy by rule, a row of points for each setting; lines are the spread over seeds."""
    figure, axes = _figure(1, (9.5, 1.8 + 0.62 * len(settings)))
    rules = list(dict.fromkeys(row["rule"] for _, rows in settings for row in rows))
    palette = dict(zip(rules, ("#4D4D4D", *COLOURS[1:], "#56B4E9", HELPED, HARMED, "#000000") * 2, strict=False))
    for place, (_, rows) in enumerate(settings):
        for offset, row in enumerate(rows):
            height = place + 0.7 * (offset / max(1, len(rows) - 1) - 0.5)
            style = {"color": palette[row["rule"]], "marker": "D" if row["rule"] == "oracle" else "o", "markersize": 5}
            axes.errorbar(row["accuracy"], height, xerr=row["spread"], elinewidth=1.2, linestyle="", **style)
    axes.set_yticks(range(len(settings)), [title for title, _ in settings], fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    axes.set(title="accuracy of those that matter, by rule", xlabel="test accuracy: mean over seeds, with spread")
    handles = [axes.plot([], [], linestyle="", marker="o", color=palette[rule], label=rule)[0] for rule in rules]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, path)
