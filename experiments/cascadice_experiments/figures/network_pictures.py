"""Pictures of networks in which a participant's area shows its influence."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cascadice_experiments.drawing import GREEN, HARMED, HELPED, SKY, YELLOW, hide_box, panels, save
from cascadice_experiments.figures.figure import Result
from cascadice_experiments.figures.networks import distances

HOPS = ((HELPED, "o"), (SKY, "s"), (GREEN, "^"), (YELLOW, "D"), (HARMED, "v"))  # the first to fifth
SMALLEST, LARGEST = 90, 1000  # areas of participants, in square points; two digits fit in the smallest
MARGIN = 0.16  # around a network of radius 1
Places = Mapping[int, tuple[float, float]]


def draw_servers(result: Result, path: Path) -> None:
    """Draw each network with areas that show numbers of links; a participant with most links stands in the middle."""
    figure, (row_of_axes,) = panels(4 * len(result.summary), 4.6, 1, len(result.summary))
    most = float(max(row["busiest_links"] for row in result.summary))
    for axes, row in zip(row_of_axes, result.summary, strict=True):
        W = result.more[row["network"]]
        nodes, hub = len(W), row["busiest_links"] > row["median_links"]
        places = _rings(nodes, distances(W, 0)) if hub else _circle(range(nodes))
        links = (np.array(W) > 0).sum(1) - 1
        _network(axes, W, places, -links, most)  # negative, so that all are blue
        caption = f"size: links, at most {row['busiest_links']}; spectral gap {row['spectral_gap']:.3f}"
        axes.set_title(f"{row['network']}\n{caption}", fontsize=10)
    _save(figure, path, row_of_axes)


def draw_network(result: Result, path: Path) -> None:
    """Draw the network and its matrix, as `cascadice topology` does."""
    from cascadice.pictures.topology import plot

    plot(torch.tensor(result.more["W"]), path, title="who is listened to")


def draw_one_hop(result: Result, path: Path) -> None:
    """Draw a network per run; areas show the influence of the same batch at each participant. Below, against weight."""
    names = list(dict.fromkeys(result.points["panel"]))
    figure, (above, below) = panels(5 * len(names), 8.4, 2, len(names), height_ratios=(3, 2))
    columns = {name: np.array(values) for name, values in result.points.items()}
    for place, under, panel, row in zip(above, below, names, result.summary, strict=True):
        here = {name: values[columns["panel"] == panel] for name, values in columns.items()}
        nodes = np.unique(here["node"])
        each = [here["first order"][here["node"] == node] for node in nodes]
        mean = np.array([abs(values).mean() * np.sign(values.mean()) for values in each])
        weight = np.array([here["out_weight"][here["node"] == node][0] for node in nodes])
        _network(place, result.more["W"], _circle(nodes.tolist()), mean, float(abs(mean).max()))
        place.set_title(f"{panel}\nsize: one-hop influence of the same batch", fontsize=10)
        _against_weight(under, weight, mean, row)
    _save(figure, path, above)


def _against_weight(axes: Any, weight: Any, mean: Any, row: Mapping[str, Any]) -> None:
    axes.scatter(weight, abs(mean), s=30, color=[HELPED if v < 0 else HARMED for v in mean])
    # labels of the others would overlap
    heavy = [node for node in np.argsort(abs(mean)) if weight[node] > np.median(weight)]
    for i, node in enumerate(heavy):
        side, away = ("right", -6) if i % 2 else ("left", 6)
        place = weight[node], abs(mean[node])
        axes.annotate(str(node), place, (away, 0), fontsize=7, textcoords="offset points", ha=side, va="center")
    how = f"{row['in_order']:.0%} of pairs in order, correlation {row['pearson_out_weight']:.3f}"
    axes.set_title(f"{how}, accuracy {row['test_accuracy'][0]:.3f}", fontsize=9)
    axes.set_xlabel("weight that all give it, Σ W[k, j]")
    axes.set_ylabel("size of influence (blue helps, orange harms)")
    hide_box(axes)


def draw_ripples(result: Result, path: Path) -> None:
    """Draw a network per hop, with rings that show the distance from the source; beside them the decay."""
    W, source = result.more["W"], result.more["source"]
    places = _rings(len(W), distances(W, source))
    hop, value = np.array(result.points["hop"]), np.array(result.points["first order"])
    figure, axes = panels(16, 8.2, 2, 4, width_ratios=(1, 1, 1, 1.1))
    for h, place in enumerate(axes[:, :3].flat):
        here = value[hop == h]
        _network(place, W, places, here, max(float(abs(here).max()), 1e-12))
        place.set_title(f"hop {h}: all together {here.sum():+.3g}", fontsize=10)
    _decay(axes[0, 3], result.summary)
    _on_weights(axes[1, 3], hop, np.array(result.points["weight"]), value)
    legend = "blue helps, orange harms, grey is not reached; areas are comparable within a hop"
    figure.suptitle(f"influence of an update of participant {source}: {legend}", fontsize=11)
    _save(figure, path, axes[:, :3].flat)


def _decay(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for name, label, style, colour in (
        ("largest", "largest influence", "-o", HELPED),
        ("largest_weight", "largest product of weights", "--s", HARMED),
    ):
        values = np.array([row[name] for row in rows])
        axes.plot(range(len(rows)), values / values[0], style, color=colour, label=label, markersize=4)
    axes.set(xlabel="hop", ylabel="relative to hop 0", yscale="log", xticks=range(len(rows)))
    axes.set_title("how it decays", fontsize=10)
    hide_box(axes)
    axes.legend(frameon=False, fontsize=8)


def _on_weights(axes: Any, hop: Any, weight: Any, value: Any) -> None:
    for h, (colour, marker) in enumerate(HOPS, start=1):
        axes.scatter(weight[hop == h], abs(value[hop == h]), s=18, color=colour, marker=marker, label=f"hop {h}")
    axes.set(xlabel="product of weights, summed over paths", ylabel="size of influence")
    axes.locator_params(axis="x", nbins=5)
    axes.set_title("receiver by receiver", fontsize=10)
    hide_box(axes)
    axes.legend(frameon=False, fontsize=8)


def _circle(nodes: Sequence[int]) -> Places:
    turn = 2 * math.pi / len(nodes)
    return {node: (math.sin(i * turn), math.cos(i * turn)) for i, node in enumerate(nodes)}


def _rings(nodes: int, hops: Mapping[int, int]) -> Places:
    """Places on rings: the source in the middle, then those one hop away, then two; outermost, those never reached."""
    far = max(hops.values()) + (len(hops) < nodes)
    places: dict[int, tuple[float, float]] = {}
    for distance in range(far + 1):
        ring = [node for node in range(nodes) if hops.get(node, far) == distance]
        for i, node in enumerate(ring):
            angle = 2 * math.pi * i / len(ring) + 0.4 * distance
            radius = (distance / far) ** 0.7  # the innermost ring is crowded
            places[node] = (radius * math.sin(angle), radius * math.cos(angle))
    return places


def _network(axes: Any, W: Sequence[Sequence[float]], places: Places, value: Any, most: float) -> None:
    """Draw a network: area shows |value| / most; blue helped, orange harmed, grey was not reached."""
    area = np.maximum(SMALLEST, LARGEST * abs(np.asarray(value)) / most)
    heaviest = max(weight for k, row in enumerate(W) for j, weight in enumerate(row) if j != k)
    for k, row in enumerate(W):
        for j, weight in enumerate(row):
            if weight > 0 and j != k:
                axes.add_patch(_arrow(places[j], places[k], area[j], area[k], weight / heaviest))
    for node, (x, y) in places.items():
        colour = "0.85" if value[node] == 0 else HELPED if value[node] < 0 else HARMED
        axes.scatter(x, y, s=area[node], color=colour, edgecolors="0.2", linewidths=0.8, zorder=3)
        ink = "black" if value[node] == 0 else "white"
        axes.text(x, y, str(node), ha="center", va="center_baseline", fontsize=6.5, color=ink, zorder=4)
    across, up = zip(*places.values(), strict=True)
    axes.set(xlim=(min(across) - MARGIN, max(across) + MARGIN), ylim=(min(up) - MARGIN, max(up) + MARGIN))
    axes.axis("off")


def _arrow(start: Any, end: Any, start_area: float, end_area: float, share: float) -> Any:
    """An arrow from rim to rim, bent so that both directions of a pair can be seen."""
    from matplotlib.patches import FancyArrowPatch

    return FancyArrowPatch(
        start, end, connectionstyle="arc3,rad=0.1", arrowstyle="-|>", mutation_scale=6, linewidth=0.3 + 1.2 * share,
        color="0.6", alpha=0.3 + 0.5 * share, shrinkA=math.sqrt(start_area) / 2, shrinkB=math.sqrt(end_area) / 2,
        zorder=1,
    )  # fmt: skip


def _save(figure: Any, path: Path, networks: Iterable[Any]) -> None:
    """Save with circular networks. The layout is fixed first: with equal aspects it would cut off titles."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in networks:
        axes.set_aspect("equal")
    save(figure, path, dpi=130)
