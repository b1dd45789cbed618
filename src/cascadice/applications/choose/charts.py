"""The charts and the table of `cascadice choose` on the page: groups by cosines, who gives and who takes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascadice.applications import charts as plots
from cascadice.applications.choose.groups import ALONE
from cascadice.applications.plain import Json, short

CROWDED = 0.08  # of an axis: points closer than this have no room for their numbers
LOWERED = "lowered the loss by"
AS_INFLUENCE = {"gave": "gave", "took": "took", LOWERED: "changed the loss by"}
"""Columns that older versions wrote with the opposite sign, as how much the loss fell, and their names today."""

HALF_WIDTHS = {"gave": "influence_given", "took": "influence_taken", "gave minus took": "influence_given_minus_taken"}
OPPOSITES = {"gave": "influence_given", "took": "influence_taken", "influence": "cosines"}
"""Names of entries in older versions, and today's entries; the latter have the opposite sign."""


def with_todays_signs(results: Mapping[str, Any]) -> Json:
    """The content of `choose.json` with today's names and signs, whichever version wrote it."""
    if "gave" not in results:
        return dict(results)
    signed = {name: (0 - np.array(results[old], dtype=float)).tolist() for old, name in OPPOSITES.items()}
    intervals = results.get("intervals", {})
    halves = {name: intervals[old] for old, name in HALF_WIDTHS.items() if old in intervals}
    return {**results, **signed, "half_widths": halves}


def signed_table(table: Json) -> Json:
    """The table with the signs of the page, where negative helped, and "none" for participants in no group."""
    columns = table["columns"]

    def shown(place: int, value: Any) -> Any:
        column = columns[place] if place < len(columns) else ""
        if column == "group":
            return "none" if value == ALONE else value
        return 0.0 - value if column in AS_INFLUENCE and isinstance(value, int | float) else value

    rows = [[shown(*cell) for cell in enumerate(row)] for row in table["rows"]]
    return {**table, "columns": [AS_INFLUENCE.get(column, column) for column in columns], "rows": rows}


def charts(results: Json) -> list[Json]:
    """The charts of `choose.json`, or of `contribution.json`."""
    if "groups" not in results:
        bounds, injected = plots.saved_bounds(results.get("intervals")), plots.injected_in(results["table"])
        numbers = results.get("members", ())  # of one process among several
        title, kind = "Influence of each participant's data", "whole-run shares"
        return [plots.contributions(results["contributions"], bounds, injected, title, kind, numbers)]
    results = with_todays_signs(results)
    expelled = [advice["verdict"] == "expel" for advice in results["advice"]]
    gave, took = (np.array(results[name], dtype=float) for name in ("influence_given", "influence_taken"))
    injected = {int(node): fault for node, fault in results.get("known", {}).items()}
    shown = {node: plots.named(node, injected) for node, bad in enumerate(expelled) if bad}
    return [
        _groups(results),
        _exchange(gave[-1], took[-1], expelled, results["half_widths"]),
        plots.chart(
            "Balance with neighbours over time", plots.lines(results["rounds"], gave - took, shown),
            "What each participant gave minus what it took, by round.",
            "Below 0: helps its neighbours more than they help it. In colour: advised to be expelled.",
            xaxis=plots.axis("round"), yaxis=plots.axis("gave minus took: − gives more, + takes more"),
        ),
    ]  # fmt: skip


def _groups(results: Json) -> Json:
    groups, cosine = np.array(results["groups"]), np.array(results["cosines"], dtype=float)
    order = np.argsort(np.where(groups < 0, len(groups), groups), kind="stable")  # those alone come last
    shown = cosine[order][:, order].T
    most = np.abs(shown[~np.eye(len(order), dtype=bool)]).max(initial=1e-12)
    heat = plots.matrix(
        np.where(shown == 0, np.nan, shown), order.tolist(), "from %{x} to %{y}: %{z:.4g}",
        "cosine: + same way, − opposite ways", zmin=-most, zmax=most, colorscale="signed", reversescale=True,
    )  # fmt: skip
    borders = (np.flatnonzero(np.diff(groups[order])) + 0.5).tolist()
    return plots.chart(
        "Cosines of summed updates, sorted by group", [heat],
        "Cosine of the summed updates of each receiver and each source.",
        "Participants of a group stand side by side. Blue = updates point the same way, orange = opposite ways.",
        shapes=[plots.across(place, upright, "--ink", "solid") for place in borders for upright in (False, True)],
        **plots.matrix_axes(),
    )  # fmt: skip


def _numbers_beside(gave: np.ndarray, took: np.ndarray) -> list[str]:
    """The number of each participant; none where it would lie over another's."""
    near = np.ones((len(gave), len(gave)), dtype=bool)
    for values in (gave, took):
        near &= np.abs(values[:, None] - values) < CROWDED * max(float(np.ptp(values)), 1e-300)
    return [str(k) if near[k].sum() == 1 else "" for k in range(len(gave))]


def _exchange(gave: np.ndarray, took: np.ndarray, expelled: list[bool], halves: Json) -> Json:
    ends = [float(min(gave.min(), took.min())), float(max(gave.max(), took.max()))]
    even = {"x": short(ends), "y": short(ends), "mode": "lines", "line": {"color": "--grey", "dash": "dot", "width": 1}}
    points = {
        "x": short(took), "y": short(gave), "mode": "markers+text", "text": _numbers_beside(gave, took),
        "textposition": "top center", "customdata": list(range(len(gave))),
        "marker": {"size": 9, "color": ["--harmed" if bad else "--helped" for bad in expelled]},
        "hovertemplate": "participant %{customdata}: gave %{y:.4g}, took %{x:.4g}<extra></extra>",
    }  # fmt: skip
    for error, name in (("error_x", "influence_taken"), ("error_y", "influence_given")):
        if None not in (half := halves.get(name, [None])):
            points[error] = {"array": short(half), "color": "--grey", "thickness": 1, "width": 0}
    return plots.chart(
        "Who gives, who takes", [{**even, "hoverinfo": "skip"}, points], "What each participant gave and took.",
        "Below the dotted line: gives more than it takes. Orange: advised to be expelled. Lines are 95 % intervals."
        + " Where points crowd, their numbers are in the table." * ("" in points["text"]),
        showlegend=False,
        xaxis=plots.axis(f"took: own {plots.LOSS}"), yaxis=plots.axis(f"gave: neighbours' {plots.LOSS}"),
    )  # fmt: skip
