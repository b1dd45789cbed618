"""Pictures of networks in which a participant is as large as its influence."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cascadice.experiments.figures.cascades import FURTHEST, distances
from cascadice.experiments.figures.results import Result

HELPED, HARMED = "#0072B2", "#D55E00"
Places = Mapping[int, tuple[float, float]]


def draw_servers(result: Result, path: Path) -> None:
    """Each network of the comparison, its busiest participant in the middle if there is one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(result.summary), 4.4), layout="constrained")
    drawn = zip(figure.subplots(1, len(result.summary), squeeze=False)[0], result.summary, strict=True)
    for axes, row in drawn:
        W = result.more[row["network"]]
        nodes, hub = len(W), row["busiest_links"] > row["median_links"]
        places = _rings(nodes, distances(W, 0)) if hub else _circle(range(nodes))
        links = -1.0 * np.array([sum(weight > 0 for k, weight in enumerate(row) if k != j) for j, row in enumerate(W)])
        _network(axes, W, places, links, float(abs(links).max()))
        axes.set_title(f"{row['network']}\nspectral gap {row['spectral_gap']:.3f}", fontsize=10)
    figure.savefig(path, dpi=130, format=path.suffix.removeprefix("."))


def draw_network(result: Result, path: Path) -> None:
    """The network and its matrix, as the command `topology` draws them."""
    from cascadice.report.topology import draw

    draw(torch.tensor(result.more["W"]), path, title="who is listened to")


def draw_one_hop(result: Result, path: Path) -> None:
    """A network for each run, participants as large as the influence of the same batch on them; below, against W."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(result.points["panel"]))
    figure = Figure(figsize=(5 * len(panels), 8.4), layout="constrained")
    above, below = figure.subplots(2, len(panels), squeeze=False, height_ratios=(3, 2))
    columns = {name: np.array(values) for name, values in result.points.items()}
    for place, under, panel, row in zip(above, below, panels, result.summary, strict=True):
        here = {name: values[columns["panel"] == panel] for name, values in columns.items()}
        nodes = np.unique(here["node"])
        each = [here["first order"][here["node"] == node] for node in nodes]
        mean = np.array([abs(values).mean() * np.sign(values.mean()) for values in each])
        weight = np.array([here["out_weight"][here["node"] == node][0] for node in nodes])
        _network(place, result.more["W"], _circle(nodes.tolist()), mean, float(abs(mean).max()))
        place.set_title(f"{panel}\nsize: one-hop influence of the same batch", fontsize=10)
        _against_weight(under, weight, mean, row)
    figure.savefig(path, dpi=130, format=path.suffix.removeprefix("."))


def _against_weight(axes: Any, weight: Any, mean: Any, row: Mapping[str, Any]) -> None:
    axes.scatter(weight, abs(mean), s=30, color=[HELPED if v < 0 else HARMED for v in mean])
    for node in np.flatnonzero(weight > np.median(weight)):  # common ones lie on top of each other
        place = weight[node], abs(mean[node])
        axes.annotate(str(node), place, fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"{row['in_order']:.0%} of pairs in order, correlation {row['pearson_out_weight']:.3f}", fontsize=9)
    axes.set_xlabel("weight that all give it, Σ W[k, j]")
    axes.set_ylabel("size of influence (blue helps, red harms)")
    axes.spines[["top", "right"]].set_visible(False)


def draw_ripples(result: Result, path: Path) -> None:
    """The hops one by one, everybody on a ring as many hops from the source; the last panel shows the decay."""
    from matplotlib.figure import Figure

    W, source = result.more["W"], result.more["source"]
    places = _rings(len(W), distances(W, source))
    hop, value = np.array(result.points["hop"]), np.array(result.points["first order"])
    figure = Figure(figsize=(4 * 4, 8.2), layout="constrained")
    axes = list(figure.subplots(2, 4).flat)
    for h, place in enumerate(axes[: FURTHEST + 1]):
        here = value[hop == h]
        _network(place, W, places, here, max(float(abs(here).max()), 1e-12))
        place.set_title(f"hop {h}: {here.sum():+.2e}", fontsize=10)
    _decay(axes[6], result.summary)
    _on_weights(axes[7], hop, np.array(result.points["weight"]), value)
    figure.savefig(path, dpi=130, format=path.suffix.removeprefix("."))


def _decay(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for name, label, style in (
        ("largest", "largest influence", "-o"),
        ("largest_weight", "largest product of weights", "--s"),
    ):
        values = np.array([row[name] for row in rows])
        axes.plot(range(len(rows)), values / values[0], style, label=label, markersize=4)
    axes.set_yscale("log")
    axes.set(xlabel="hop", ylabel="relative to hop 0", title="how it decays")
    axes.legend(frameon=False, fontsize=8)


def _on_weights(axes: Any, hop: Any, weight: Any, value: Any) -> None:
    for h in range(1, FURTHEST + 1):
        axes.scatter(weight[hop == h], abs(value[hop == h]), s=14, label=f"hop {h}")
    axes.set(xlabel="product of weights, summed over paths", ylabel="size of influence", title="receiver by receiver")
    axes.legend(frameon=False, fontsize=8)


def _circle(nodes: Sequence[int]) -> Places:
    turn = 2 * math.pi / len(nodes)
    return {node: (math.sin(i * turn), math.cos(i * turn)) for i, node in enumerate(nodes)}


def _rings(nodes: int, hops: Mapping[int, int]) -> Places:
    """Ripples: the source in the middle, around it those one hop away, then two; outside those never reached."""
    far = max(hops.values()) + (len(hops) < nodes)
    places: dict[int, tuple[float, float]] = {}
    for distance in range(far + 1):
        ring = [node for node in range(nodes) if hops.get(node, far) == distance]
        for i, node in enumerate(ring):
            angle = 2 * math.pi * i / len(ring) + 0.4 * distance
            places[node] = (distance / far * math.sin(angle), distance / far * math.cos(angle))
    return places


def _network(axes: Any, W: Sequence[Sequence[float]], places: Places, value: Any, most: float) -> None:
    """Participants as large as `value` is of `most`; blue helped, red harmed, grey was not reached."""
    from matplotlib.patches import FancyArrowPatch

    heaviest = max(weight for k, row in enumerate(W) for j, weight in enumerate(row) if j != k)
    for k, row in enumerate(W):
        for j, weight in enumerate(row):
            if weight > 0 and j != k:
                share = weight / heaviest
                arrow = FancyArrowPatch(
                    places[j], places[k], connectionstyle="arc3,rad=0.1", arrowstyle="-|>", mutation_scale=6,
                    linewidth=0.3 + 1.2 * share, color="0.6", alpha=0.3 + 0.5 * share, shrinkA=4, shrinkB=6, zorder=1,
                )  # fmt: skip
                axes.add_patch(arrow)
    for node, (x, y) in places.items():
        colour = "0.85" if value[node] == 0 else HELPED if value[node] < 0 else HARMED
        axes.scatter(
            x, y, s=100 + 700 * abs(value[node]) / most, color=colour, edgecolors="0.2", linewidths=0.8, zorder=3
        )
        ink = "black" if value[node] == 0 else "white"
        axes.text(x, y, str(node), ha="center", va="center", fontsize=6.5, color=ink, zorder=4)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axes.axis("off")
