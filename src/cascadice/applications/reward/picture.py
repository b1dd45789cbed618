"""A picture of the payments, of what was earned and lost for them, and of contributions over the rounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cascadice.applications.charts import noted_bounds
from cascadice.pictures.figures import COLOURS, HARMED, HELPED
from cascadice.pictures.panels import NAMED_UP_TO, panels, save


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Plot the content of `reward.json` as PNG or SVG."""
    figure, (payments, reasons, growth) = panels(3, (16.2, 4.6))
    lowered = -np.array(results["contributions"])  # the loss, by round and participant
    injected = {row[0]: row[-1] for row in results["table"]["rows"] if row[-1]}
    nodes = range(lowered.shape[1])
    numbers = results.get("members", nodes)  # of one process among several
    bounds, paid = noted_bounds(results.get("intervals", {}).get("payments")), np.array(results["payments"])
    error = None if bounds is None else np.clip([paid - bounds.low, bounds.high - paid], 0, None)
    payments.barh(nodes, paid, color=COLOURS[1], xerr=error, error_kw={"elinewidth": 0.9, "ecolor": "0.25"})
    payments.set(title="payments", xlabel="payment", ylabel="participant")
    reasons.barh(nodes, lowered.clip(min=0).sum(0), color=HELPED, label="rounds in which it helped")
    reasons.barh(nodes, lowered.clip(max=0).sum(0), color=HARMED, label="rounds in which it harmed")
    reasons.axvline(0, color="0.2", linewidth=0.8)
    reasons.set(title="what they are paid for", xlabel="harmed  <  loss lowered by  >  helped")
    reasons.legend(frameon=False, fontsize=8)
    for axes in (payments, reasons):
        labels = [f"{injected.get(k, '')}  {k}".strip() if len(nodes) <= NAMED_UP_TO else "" for k in numbers]
        axes.set_yticks(nodes, labels, fontsize=8)
        axes.invert_yaxis()
    for node, total in zip(numbers, lowered.cumsum(0).T, strict=True):
        colour, alpha = (HARMED, 0.9) if node in injected else (HELPED, 0.5)
        growth.plot(results["rounds"], total, color=colour, alpha=alpha, linewidth=1.2)
    growth.axhline(0, color="0.2", linewidth=0.8)
    growth.set(title="contributions so far", xlabel="round", ylabel="loss lowered by")
    save(figure, path, results["title"])
