"""A figure of influence: who helped and harmed, who influenced whom, how far it reaches, how accurate estimates are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascadice.influence.readings import Agreement
from cascadice.pictures.panels import NAMED_UP_TO
from cascadice.pictures.saving import check_suffix, save

HELPED, HARMED = "#0072B2", "#D55E00"  # Okabe–Ito: distinct for colour-blind readers too
COLOURS = ("#4D4D4D", "#009E73", "#CC79A7", "#E69F00")

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class _Content:
    updates: Mapping[str, Numbers]
    by_hop: Mapping[str, Numbers]
    matrix: Mapping[str, Numbers]
    agreements: Mapping[str, Agreement]
    injected: Mapping[int, str]
    test_results: str

    def colour(self, kind: str) -> str:
        return COLOURS[list(self.updates).index(kind) % len(COLOURS)]


def plot(
    path: str | PathLike[str],
    *,
    updates: Mapping[str, Numbers],
    by_hop: Mapping[str, Numbers],
    matrix: Mapping[str, Numbers],
    agreements: Mapping[str, Agreement],
    injected: Mapping[int, str],
    test_results: str = "",
    title: str = "",
) -> None:
    """Plot a summary of influence, one panel for each thing there is to show. Negative influence helped.

    Args:
        path: A PNG or SVG file.
        updates: kind -> [rounds, n], the influence of each update on everyone.
        by_hop: kind -> [hops + 1], the mean absolute influence of an update at each hop.
        matrix: kind -> [n, n], the influence of source on receiver.
        agreements: estimator -> how close it is to `updates["truth"]`.
        injected: participant -> its faults, for the labels.
        test_results: The participants' test accuracy in words.
    """
    from matplotlib.figure import Figure

    path, content = check_suffix(path), _Content(updates, by_hop, matrix, agreements, injected, test_results)
    panels: list[Callable[[Any, _Content], None]] = [_totals]
    panels += [_matrix, _decay] if matrix else []
    panels += [_against_truth] if agreements else []
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    figure = Figure(figsize=(5.4 * columns, 4.6 * rows), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        panel(axes, content)
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    save(figure, path)


def _totals(axes: Any, content: _Content) -> None:
    kind, updates = next(iter(content.updates.items()))
    values, injected = np.nan_to_num(updates.sum(0)), content.injected
    axes.barh(range(len(values)), values, color=[HELPED if v < 0 else HARMED for v in values])
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.set(title=f"who helped, who harmed ({kind})", xlabel="helped  <  influence on everyone's loss  >  harmed")
    names = {node: f"{injected[node]}  {node}" if node in injected else str(node) for node in range(len(values))}
    if len(values) <= NAMED_UP_TO:
        axes.set_yticks(list(names), list(names.values()), fontsize=8)
    axes.locator_params(axis="x", nbins=6)  # five digits and a sign are wide
    axes.set_ylabel("participant")
    axes.invert_yaxis()


def _matrix(axes: Any, content: _Content) -> None:
    matrix = next(iter(content.matrix.values()))
    limit = np.quantile(np.abs(matrix[matrix != 0]), 0.98) if matrix.any() else 1.0  # one outlier would pale the rest
    image = axes.imshow(np.ma.masked_equal(matrix, 0), "RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend="both")
    axes.set_facecolor("#f4f4f4")
    axes.set(xlabel="receiver", ylabel="source", title="who influenced whom, from the first gossip on")
    if len(matrix) <= NAMED_UP_TO:
        axes.set_xticks(range(len(matrix)))
        axes.set_yticks(range(len(matrix)))
        axes.tick_params(labelsize=8 if len(matrix) <= 16 else 6)


def _decay(axes: Any, content: _Content) -> None:
    kinds, width = len(content.by_hop), 0.8 / len(content.by_hop)
    for place, (kind, values) in enumerate(content.by_hop.items()):
        offset = (place - (kinds - 1) / 2) * width
        axes.bar(np.arange(len(values)) + offset, values, width, color=content.colour(kind), label=kind)
    axes.set(title="how far it reaches", xlabel="hops (0: on itself, before gossip)", ylabel="mean absolute influence")
    axes.set_xticks(range(max(map(len, content.by_hop.values()))))
    axes.legend(frameon=False, fontsize=8)


def _against_truth(axes: Any, content: _Content) -> None:
    true = content.updates["truth"].ravel()
    for kind, a in content.agreements.items():
        label = f"{kind}\nPearson {a.pearson:.3f}, relative RMSE {a.relative_rmse:.3f}"
        values = content.updates[kind].ravel()
        axes.scatter(true, values, s=14, color=content.colour(kind), alpha=0.7, linewidths=0, label=label)
    ends = [np.nanmin(true), np.nanmax(true)]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, zorder=0)
    title = "estimates against the truth"
    if content.test_results:
        title += f"\nnetwork with test {content.test_results}"
    axes.set(title=title, xlabel="truth: influence of an update", ylabel="estimate")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
