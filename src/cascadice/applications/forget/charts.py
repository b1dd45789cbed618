"""The charts of `cascadice forget` on the page: how far models moved, and what they still know."""

import numpy as np

from cascadice.applications.charts import across, axis, chart, participants
from cascadice.applications.plain import Json, short

COLOURS = {"as trained": "--harmed", "forgotten": "--helped", "never used": "--two"}
SYMBOLS = {"as trained": "circle", "forgotten": "square", "never used": "x"}


def charts(results: Json) -> list[Json]:
    """The charts of `forget.json`."""
    forgotten = set() if results["forgotten"]["samples"] else set(results["forgotten"]["participants"])
    change, who = results["change"], participants(len(results["change"]), {})
    colours = ["--four" if k in forgotten else "--helped" for k in range(len(change))]
    moved = {"type": "bar", "x": list(range(len(change))), "y": short(change), "marker": {"color": colours}}
    moved["hovertemplate"] = "participant %{x}: %{y:.4g}<extra></extra>"
    how, left = results.get("how", {}).get("level"), results.get("distance")
    note = "From the trained models. " + "Yellow: whose data were forgotten. " * bool(forgotten)
    note += f"Method: {how}. " * bool(how) + (f"Distance left: {left:.3f}." if left is not None else "")
    known = "0.5 = forgotten samples cannot be told from unseen ones."
    return [
        chart("How far each model moved", [moved], "Change of each model.", note.rstrip(), xaxis=who,
              yaxis=axis("distance between parameters")),
        chart("Test loss", _traces(results, "loss"), "Test loss of each model.", xaxis=who, yaxis=axis("test loss")),
        chart("Membership AUC", _traces(results, "membership"), "Membership AUC of each model.", known, xaxis=who,
              yaxis=axis("AUC"), shapes=[across(0.5)]),
    ]  # fmt: skip


def _traces(results: Json, key: str) -> list[Json]:
    return [
        {
            "x": list(range(len(values))), "y": short(values), "mode": "markers",
            "name": f"{name}: mean {np.nanmean(values):.3f}",
            "marker": {"color": COLOURS.get(name, "--grey"), "symbol": SYMBOLS.get(name, "circle"), "size": 8},
            "hovertemplate": "participant %{x}: %{y:.4g}<extra>%{data.name}</extra>",
        }
        for name, trace in results["traces"].items()
        for values in [np.array(trace[key], dtype=float)]
        if np.isfinite(values).any()
    ]  # fmt: skip
