"""The picture of `cascadice choose`: groups in the matrix of influence, who gives and who takes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.files import Folder
from cascadice.pictures.influence import HARMED, HELPED
from cascadice.pictures.panels import panels, plot_matrix, save


def plot(results: Mapping[str, Any], path: Folder) -> None:
    """Plot the content of `choose.json` as PNG or SVG: influence sorted by group, giving and taking, also over time."""
    figure, (left, middle, right) = panels(3, (16.5, 4.8))
    _plot_groups(left, results)
    _plot_balance(middle, results)
    _plot_over_time(right, results)
    save(figure, path)


def _plot_groups(axes: Any, results: Mapping[str, Any]) -> None:
    groups, influence = np.array(results["groups"]), np.array(results["influence"])
    order = np.argsort(np.where(groups < 0, len(groups), groups), kind="stable")  # those alone come last
    by_group = influence[order][:, order]
    most = np.abs(by_group[~np.eye(len(order), dtype=bool)]).max(initial=1e-12)
    shown, bar = np.ma.masked_equal(by_group, 0), {"label": "helped  <  influence  >  harmed"}
    plot_matrix(axes, shown, (-most, most), order, "influence, sorted by group", **bar)
    for border in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axes.axhline(border, color="0.2", linewidth=0.8)
        axes.axvline(border, color="0.2", linewidth=0.8)


def _plot_balance(axes: Any, results: Mapping[str, Any]) -> None:
    gave, took = np.array(results["gave"])[-1], np.array(results["took"])[-1]
    colours = [HARMED if advice["verdict"] == "expel" else HELPED for advice in results["advice"]]
    axes.scatter(took, gave, c=colours, s=28, zorder=3)
    ends = [min(took.min(), gave.min()), max(took.max(), gave.max())]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, linestyle=":")
    for node, point in enumerate(zip(took, gave, strict=True)):
        axes.annotate(str(node), point, xytext=(3, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel="took: loss removed by neighbours", ylabel="gave: loss removed from neighbours")
    axes.set_title("who gives, who takes (orange: expel)")


def _plot_over_time(axes: Any, results: Mapping[str, Any]) -> None:
    rounds, balance = results["rounds"], np.array(results["gave"]) - np.array(results["took"])
    for node, (line, advice) in enumerate(zip(balance.T, results["advice"], strict=True)):
        bad = advice["verdict"] == "expel"
        axes.plot(rounds, line, color=HARMED if bad else "0.7", linewidth=1.6 if bad else 0.8, zorder=3 if bad else 2)
        if bad:
            axes.annotate(str(node), (rounds[-1], line[-1]), fontsize=8, color=HARMED)
    axes.axhline(0, color="0.2", linewidth=0.8, linestyle=":")
    axes.set(title="balance with neighbours over time", xlabel="round", ylabel="gave minus took so far")
