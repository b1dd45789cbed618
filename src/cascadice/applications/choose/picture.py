"""The picture of `cascadice choose`: groups in the matrix of influence, who gives and who takes."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from cascadice.pictures.influence import HARMED, HELPED
from cascadice.pictures.panels import number_participants, panels, save

EXPELLED = "expel"


def plot(results: Mapping[str, Any], path: str | PathLike[str]) -> None:
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
    image = axes.imshow(np.ma.masked_equal(by_group, 0), "RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="helped  <  influence  >  harmed")
    for border in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axes.axhline(border, color="0.2", linewidth=0.8)
        axes.axvline(border, color="0.2", linewidth=0.8)
    axes.set(title="influence, sorted by group", xlabel="receiver", ylabel="source")
    number_participants(axes, order)


def _plot_balance(axes: Any, results: Mapping[str, Any]) -> None:
    gave, took = np.array(results["gave"])[-1], np.array(results["took"])[-1]
    colours = [HARMED if advice["verdict"] == EXPELLED else HELPED for advice in results["advice"]]
    axes.scatter(took, gave, c=colours, s=28, zorder=3)
    ends = [min(took.min(), gave.min()), max(took.max(), gave.max())]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, linestyle=":")
    for node, point in enumerate(zip(took, gave, strict=True)):
        axes.annotate(str(node), point, xytext=(3, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel="took: loss removed by neighbours", ylabel="gave: loss removed from neighbours")
    axes.set_title("who gives, who takes (orange: expel)")


def _plot_over_time(axes: Any, results: Mapping[str, Any]) -> None:
    rounds, balance = results["rounds"], np.array(results["gave"]) - np.array(results["took"])
    expelled = {advice["participant"] for advice in results["advice"] if advice["verdict"] == EXPELLED}
    for node, line in enumerate(balance.T):
        bad = node in expelled
        axes.plot(rounds, line, color=HARMED if bad else "0.7", linewidth=1.6 if bad else 0.8, zorder=3 if bad else 2)
        if bad:
            axes.annotate(str(node), (rounds[-1], line[-1]), fontsize=8, color=HARMED)
    axes.axhline(0, color="0.2", linewidth=0.8, linestyle=":")
    axes.set(title="balance with neighbours over time", xlabel="round", ylabel="gave minus took so far")
