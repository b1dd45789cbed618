"""A figure of influence: who helped and harmed, who influenced whom, how far it reaches, how accurate estimates are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascadice.files import Folder
from cascadice.influence.readings import Agreement
from cascadice.pictures.panels import NAMED_UP_TO, panels, plot_matrix, save

HELPED, HARMED = "#0072B2", "#D55E00"  # Okabe–Ito: distinct for colour-blind readers too
COLOURS = ("#4D4D4D", "#009E73", "#CC79A7", "#E69F00")

Numbers = NDArray[np.float64]
ByKind = Mapping[str, Numbers]


def plot(
    path: Folder,
    *,
    updates: ByKind,
    by_hop: ByKind,
    matrix: ByKind,
    agreements: Mapping[str, Agreement],
    injected: Mapping[int, str],
    test_results: str = "",
    title: str = "",
) -> None:
    """Plot a summary of influence as PNG or SVG, one panel for each thing there is to show. Negative influence helped.

    Args:
        updates: kind -> [rounds, n], the influence of each update on everyone.
        by_hop: kind -> [hops + 1], the mean absolute influence of an update at each hop.
        matrix: kind -> [n, n], the influence of source on receiver.
        agreements: estimator -> how close it is to `updates["truth"]`.
        injected: participant -> its faults, for the labels.
        test_results: The participants' test accuracy in words.
    """
    count = 1 + 2 * bool(matrix) + bool(agreements)
    rows = 2 if count == 4 else 1
    figure, axes = panels(count, (5.4 * count / rows, 4.6 * rows), rows)
    each = iter(np.atleast_1d(axes))
    colours = {kind: COLOURS[place % len(COLOURS)] for place, kind in enumerate(updates)}
    _totals(next(each), *next(iter(updates.items())), injected)
    if matrix:
        first, heading = next(iter(matrix.values())), "who influenced whom, from the first gossip on"
        limit = np.quantile(np.abs(first[first != 0]), 0.98) if first.any() else 1.0  # one outlier would pale the rest
        heat_map, shown = next(each), np.ma.masked_equal(first, 0)
        plot_matrix(heat_map, shown, (-limit, limit), range(len(first)), heading, extend="both")
        heat_map.set_facecolor("#f4f4f4")
        _decay(next(each), by_hop, colours)
    if agreements:
        _against_truth(next(each), updates, agreements, colours, test_results)
    save(figure, path, title)


def _totals(axes: Any, kind: str, updates: Numbers, injected: Mapping[int, str]) -> None:
    values = np.nan_to_num(updates.sum(0))
    axes.barh(range(len(values)), values, color=[HELPED if v < 0 else HARMED for v in values])
    axes.axvline(0, color="0.2", linewidth=0.8)
    final = kind.startswith("whole-run")
    who, whose = ("who helped the final models", "the final") if final else ("who helped, who harmed", "everyone's")
    unit = f"influence on {whose} loss"
    axes.set(title=f"{who} ({kind})", xlabel=f"helped  <  {unit}  >  harmed")
    if len(values) <= NAMED_UP_TO:
        names = [f"{injected[node]}  {node}" if node in injected else str(node) for node in range(len(values))]
        axes.set_yticks(range(len(values)), names, fontsize=8)
    axes.locator_params(axis="x", nbins=6)  # five digits and a sign are wide
    axes.set_ylabel("participant")
    axes.invert_yaxis()


def _decay(axes: Any, by_hop: ByKind, colours: Mapping[str, str]) -> None:
    width = 0.8 / len(by_hop)
    for place, (kind, values) in enumerate(by_hop.items()):
        offset = (place - (len(by_hop) - 1) / 2) * width
        axes.bar(np.arange(len(values)) + offset, values, width, color=colours[kind], label=kind)
    axes.set(title="how far it reaches", xlabel="hops (0: on itself, before gossip)", ylabel="mean absolute influence")
    axes.set_xticks(range(max(map(len, by_hop.values()))))
    axes.legend(frameon=False, fontsize=8)


def _against_truth(
    axes: Any, updates: ByKind, agreements: Mapping[str, Agreement], colours: Mapping[str, str], test_results: str
) -> None:
    true = updates["truth"].ravel()
    for kind, a in agreements.items():
        label = f"{kind}\nPearson {a.pearson:.3f}, relative RMSE {a.relative_rmse:.3f}"
        axes.scatter(true, updates[kind].ravel(), s=14, color=colours[kind], alpha=0.7, linewidths=0, label=label)
    ends = [np.nanmin(true), np.nanmax(true)]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, zorder=0)
    title = "estimates against the truth" + (f"\nnetwork with test {test_results}" if test_results else "")
    axes.set(title=title, xlabel="truth: influence of an update", ylabel="estimate")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
