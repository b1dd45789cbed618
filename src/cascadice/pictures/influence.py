"""A picture of influence: who helped and harmed, whom it reached, how it decays, how near the estimates are."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.files import aside
from cascadice.pictures.topology import SUFFIXES
from cascadice.runs.summary import InfluenceSummary
from cascadice.runs.words import accuracy

HELPED, HARMED = "#0072B2", "#D55E00"  # Okabe–Ito; told apart by colour-blind readers too
COLOURS = ("#4D4D4D", "#009E73", "#CC79A7", "#E69F00")
NAMED_UP_TO = 32  # participants


def draw(found: InfluenceSummary, path: str | PathLike[str], *, title: str = "") -> None:
    """Draw the findings into `path` (PNG or SVG, by its suffix), a panel for each thing there is to show."""
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}; found {str(path)!r}.")
    panels: list[Callable[[Any, InfluenceSummary], None]] = [_totals]
    panels += [_matrix, _decay] if found.given else []
    panels += [_against_truth] if found.agreements else []
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    figure = Figure(figsize=(5.4 * columns, 4.6 * rows), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        panel(axes, found)
        axes.title.set_fontsize(11)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    with aside(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix.lower().removeprefix("."))


def _totals(axes: Any, found: InfluenceSummary) -> None:
    kind, totals = next(iter(found.participants.items()))
    values = np.nan_to_num(totals)
    axes.barh(range(len(values)), values, color=[HELPED if v < 0 else HARMED for v in values])
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.set(title=f"who helped, who harmed ({kind})", xlabel="helped  <  influence on all  >  harmed")
    names = {node: f"{found.known[node]}  {node}" if node in found.known else str(node) for node in range(len(values))}
    if len(values) <= NAMED_UP_TO:
        axes.set_yticks(list(names), list(names.values()), fontsize=8)
    axes.locator_params(axis="x", nbins=6)  # five digits and a sign are wide
    axes.set_ylabel("participant")
    axes.invert_yaxis()


def _matrix(axes: Any, found: InfluenceSummary) -> None:
    given = next(iter(found.given.values()))
    most = np.quantile(np.abs(given[given != 0]), 0.98) if given.any() else 1.0  # one outlier would blanch the rest
    shown = axes.imshow(np.ma.masked_equal(given, 0), "RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
    axes.figure.colorbar(shown, ax=axes, shrink=0.8, extend="both")
    axes.set_facecolor("#f4f4f4")
    axes.set(xlabel="receiver", ylabel="source", title="who influenced whom, from the first gossip on")
    if len(given) <= NAMED_UP_TO:
        axes.set_xticks(range(len(given)))
        axes.set_yticks(range(len(given)))
        axes.tick_params(labelsize=8 if len(given) <= 16 else 6)


def _decay(axes: Any, found: InfluenceSummary) -> None:
    kinds, width = len(found.by_hop), 0.8 / len(found.by_hop)
    for place, (kind, values) in enumerate(found.by_hop.items()):
        offset = (place - (kinds - 1) / 2) * width
        axes.bar(np.arange(len(values)) + offset, values, width, color=_colour(kind, found), label=kind)
    axes.set(title="how far it goes", xlabel="hops (0: on oneself, before gossip)", ylabel="mean size of influence")
    axes.set_xticks(range(max(map(len, found.by_hop.values()))))
    axes.legend(frameon=False, fontsize=8)


def _against_truth(axes: Any, found: InfluenceSummary) -> None:
    true = found.updates["truth"].ravel()
    for kind, a in found.agreements.items():
        label = f"{kind}\nPearson {a.pearson:.3f}, relative RMSE {a.relative_rmse:.3f}"
        values = found.updates[kind].ravel()
        axes.scatter(true, values, s=14, color=_colour(kind, found), alpha=0.7, linewidths=0, label=label)
    ends = [np.nanmin(true), np.nanmax(true)]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, zorder=0)
    title = "estimates against the truth"
    if found.judged:
        title += f"\nof a network with test {found.judged[0].measure} {accuracy(found.judged)}"
    axes.set(title=title, xlabel="truth: influence of an update", ylabel="estimate")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _colour(kind: str, found: InfluenceSummary) -> str:
    return COLOURS[list(found.updates).index(kind) % len(COLOURS)]
