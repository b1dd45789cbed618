"""The charts of `cascadice validate` on the page: how well each estimate ranks subsets, and what it predicts."""

import numpy as np

from cascadice.applications.charts import axis, chart
from cascadice.applications.plain import Json, short


def charts(results: Json) -> list[Json]:
    """The charts of `validate.json`."""
    estimates, retrained, test = results["estimates"], results["retrained"], results["test"]
    full = f"test {test['measure']} of the full run {np.mean(test['values']):.3f}"
    setting = f"{len(retrained)} networks trained on {results['kept']}; {full}."
    return [_scores(estimates, setting), *(_subsets(one, retrained) for one in estimates)]


def _scores(estimates: list[Json], setting: str) -> Json:
    known = [one for one in estimates if one["lds"]["spearman"] is not None]
    value = [one["lds"]["spearman"] for one in known]
    trace = {
        "type": "bar", "orientation": "h", "y": [one["name"] for one in known], "x": short(value),
        "marker": {"color": [_colour(one["lds"]) for one in known]}, "showlegend": False,
        "error_x": {
            "type": "data", "symmetric": False, "color": "--ink", "thickness": 1.2,
            "array": short([one["lds"]["high"] - one["lds"]["spearman"] for one in known]),
            "arrayminus": short([one["lds"]["spearman"] - one["lds"]["low"] for one in known]),
        },
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }  # fmt: skip
    note = f"{setting} Lines are 95 % intervals over subsets; grey: within noise."
    return chart("LDS, the best first", [trace], "LDS of each estimate.", note, yaxis=axis("", autorange="reversed"),
                 xaxis=axis("rank correlation", range=[-1.05, 1.05]))  # fmt: skip


def _subsets(estimate: Json, retrained: list[float]) -> Json:
    lds, color = estimate["lds"]["spearman"], _colour(estimate["lds"])
    points = {"x": short(estimate["predicted"]), "y": short(retrained), "mode": "markers", "marker": {"color": color}}
    points["hovertemplate"] = "predicted %{x:.4g}, retrained %{y:.4g}<extra></extra>"
    title = estimate["name"] + ("" if lds is None else f": {lds:.2f}")
    return chart(title, [points], f"Loss after retraining, by what {estimate['name']} predicts.", showlegend=False,
                 xaxis=axis("predicted"), yaxis=axis("retrained test loss"))  # fmt: skip


def _colour(lds: Json) -> str:
    if lds["spearman"] is None or lds["low"] is None or lds["low"] <= 0 <= lds["high"]:
        return "--grey"
    return "--helped" if lds["low"] > 0 else "--harmed"
