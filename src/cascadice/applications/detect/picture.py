"""The picture of `cascadice detect`: who flags whom, and the votes over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.applications.detect.idea import MAJORITY
from cascadice.files import Folder
from cascadice.pictures.figures import COLOURS, HARMED, HELPED
from cascadice.pictures.panels import panels, plot_matrix, save

LINES = (HARMED, *COLOURS[1:], HELPED)


def plot(results: Mapping[str, Any], path: Folder) -> None:
    """Plot the content of `detect.json` as PNG or SVG: who flags whom, and how the votes developed."""
    figure, (left, right) = panels(2, (11.2, 4.8))
    strength = np.ma.masked_where(~np.array(results["heard"]), np.array(results["strength"]))
    bar = {"extend": "max", "label": "evidence divided by its threshold"}
    title = "who flags whom: red is above the threshold"
    plot_matrix(left, strength, (0, 2), range(len(strength)), title, **bar)  # 1, the threshold, is white
    left.set_facecolor("#f4f4f4")
    rounds, votes, injected = results["rounds"], np.array(results["votes"], dtype=float), results["known"]
    colours = iter(LINES * len(votes.T))
    for node, share in enumerate(votes.T):
        if share[-1] >= MAJORITY or str(node) in injected:
            label = f"{node} ({injected[str(node)]})" if str(node) in injected else str(node)
            right.plot(rounds, share, color=next(colours), linewidth=1.8, label=label, zorder=3)
        else:
            right.plot(rounds, share, color="0.75", linewidth=0.8)
    right.axhline(MAJORITY, color="0.2", linewidth=0.8, linestyle=":")
    right.set(title="votes over time", xlabel="round", ylabel="share of its receivers that flag it")
    right.set_ylim(-0.03, 1.03)
    if right.get_legend_handles_labels()[0]:
        right.legend(frameon=False, fontsize=8, loc="best")
    save(figure, path)
