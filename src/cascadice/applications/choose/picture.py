"""The picture of `cascadice choose`: groups in the matrix of cosines, who gives and who takes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.applications.charts import noted_bounds
from cascadice.files import Folder
from cascadice.influence.uncertainty import signs
from cascadice.pictures.figures import HARMED, HELPED, SIGNED
from cascadice.pictures.panels import panels, plot_matrix, save


def plot(results: Mapping[str, Any], path: Folder) -> None:
    """Plot the content of `choose.json` as PNG or SVG: cosines sorted by group, giving and taking, also over time."""
    figure, (left, middle, right) = panels(3, (16.5, 4.8))
    _plot_groups(left, results)
    expelled = [advice["verdict"] == "expel" for advice in results["advice"]]
    gave, took = np.array(results["gave"]), np.array(results["took"])
    points = np.stack([took[-1], gave[-1]], axis=1)
    halves = [results.get("intervals", {}).get(name) for name in ("took", "gave")]
    if not any(half is None or None in half for half in halves):
        middle.errorbar(*points.T, xerr=halves[0], yerr=halves[1], fmt="none", ecolor="0.6", elinewidth=0.8)
    middle.scatter(*points.T, c=[HARMED if bad else HELPED for bad in expelled], s=28, zorder=3)
    middle.plot([points.min(), points.max()], [points.min(), points.max()], color="0.2", linewidth=0.8, linestyle=":")
    for node, point in enumerate(points):
        middle.annotate(str(node), point, xytext=(3, 3), textcoords="offset points", fontsize=7)
    middle.set(xlabel="took: loss removed by neighbours", ylabel="gave: loss removed from neighbours")
    middle.set_title("who gives, who takes (orange: expel)")
    for node, (line, bad) in enumerate(zip((gave - took).T, expelled, strict=True)):
        style = {"color": HARMED, "linewidth": 1.6, "zorder": 3} if bad else {"color": "0.7", "linewidth": 0.8}
        right.plot(results["rounds"], line, **style)
        if bad:
            right.annotate(str(node), (results["rounds"][-1], line[-1]), fontsize=8, color=HARMED)
    right.axhline(0, color="0.2", linewidth=0.8, linestyle=":")
    right.set(title="balance with neighbours over time", xlabel="round", ylabel="gave minus took so far")
    save(figure, path)


def plot_contributions(results: Mapping[str, Any], path: Folder) -> None:
    """Plot how much each participant lowered the loss of the final models, over the whole run, as PNG or SVG."""
    lowered, (figure, axes) = -np.array(results["contributions"]), panels(1, (6.4, 4.8))
    nodes = range(len(lowered))
    if "members" in results:  # of one process among several
        axes.set_yticks(nodes, [str(k) for k in results["members"]])
    bounds = noted_bounds(results.get("intervals"))
    sign = np.sign(-lowered) if bounds is None else signs(-lowered, bounds)
    error = None if bounds is None else bounds.high + lowered
    look = {"error_kw": {"elinewidth": 0.9, "ecolor": "0.25"}, "color": [SIGNED[one] for one in sign.tolist()]}
    axes.barh(nodes, lowered, xerr=error, **look)
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.invert_yaxis()
    axes.set(title=results["title"], xlabel="harmed  <  loss lowered by  >  helped", ylabel="participant")
    save(figure, path)


def _plot_groups(axes: Any, results: Mapping[str, Any]) -> None:
    groups, cosine = np.array(results["groups"]), -np.array(results["influence"])
    order = np.argsort(np.where(groups < 0, len(groups), groups), kind="stable")  # those alone come last
    by_group = cosine[order][:, order]
    most = np.abs(by_group[~np.eye(len(order), dtype=bool)]).max(initial=1e-12)
    shown, bar = np.ma.masked_equal(by_group, 0), {"label": "opposite ways  <  cosine  >  the same way"}
    plot_matrix(axes, shown, (-most, most), order, "cosines of summed updates, sorted by group", "RdBu", **bar)
    for border in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axes.axhline(border, color="0.2", linewidth=0.8)
        axes.axvline(border, color="0.2", linewidth=0.8)
