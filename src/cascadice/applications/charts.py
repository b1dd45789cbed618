"""Charts of the report page as plain data: Plotly traces whose colours are names that the page's theme resolves.

"--helped", "--harmed", "--grey", "--one" … "--four", "--card", "--line", "--faint" and "--ink" are the variables of
`page.css`; the colour scale "signed" goes from helped over nothing to harmed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cascadice.applications.plain import Json, plain, short
from cascadice.influence.uncertainty import Bounds, decimals, signs

COLOURS = ("--harmed", "--two", "--three", "--four", "--one")
SIGNED = {-1: "--helped", 0: "--grey", 1: "--harmed"}
NAMED_UP_TO = 40  # participants along an axis
LOSS = "loss: − helped, + harmed"  # the sign rule of every chart of influence


def chart(title: str, traces: Iterable[Json], label: str, note: str = "", **layout: Any) -> Json:
    """A chart. `label` describes it for screen readers; `layout` is Plotly's, with axes from `axis`."""
    return {"title": title, "note": note, "traces": plain(list(traces)), "layout": plain(layout), "label": label}


def axis(text: str, **more: Any) -> Json:
    """An axis with a title."""
    return {"title": {"text": text}, **more}


def participants(
    nodes: int, injected: Mapping[int, Any], text: str = "participant", numbers: Sequence[int] = (), **more: Any
) -> Json:
    """An axis of all participants or those with these numbers; named with injected faults if there are few."""
    if nodes > NAMED_UP_TO:
        return axis(text, **more)
    each = list(numbers or range(nodes))
    names = [f"{injected[k]} {k}" if injected.get(k) else str(k) for k in each]
    return axis(text, tickvals=each, ticktext=names, **more)


def bars(
    values: Sequence[float], colours: Sequence[str] | str, hover: str, bounds: Bounds | None = None,
    numbers: Sequence[int] = (),
) -> Json:  # fmt: skip
    """A horizontal bar for each participant, or for those with these numbers; with intervals if there are any."""
    trace: Json = {"type": "bar", "orientation": "h", "x": short(values), "y": list(numbers or range(len(values)))}
    if bounds is not None and np.isfinite(bounds.low).any():
        above, below = bounds.high - np.asarray(values), np.asarray(values) - bounds.low
        ends = {"array": short(above), "arrayminus": short(below), "symmetric": False}
        trace["error_x"] = {**ends, "color": "--ink", "thickness": 1.2, "width": 3}
    return {**trace, "marker": {"color": colours}, "hovertemplate": hover, "showlegend": False}


def line(x: Iterable[Any], y: Iterable[Any], name: str, colour: str, strong: bool = True) -> Json:
    """A line over rounds; unless `strong`, it is thin and not in the legend."""
    return {
        "x": list(x), "y": short(y), "mode": "lines", "line": {"color": colour, "width": 2.2 if strong else 0.9},
        "name": name, "showlegend": strong, "opacity": 1 if strong else 0.45,
        "hovertemplate": "round %{x}: %{y:.4g}<extra>%{data.name}</extra>",
    }  # fmt: skip


def lines(rounds: Iterable[Any], values: Any, shown: Mapping[int, str], numbers: Sequence[int] = ()) -> list[Json]:
    """A line for each participant over rounds [rounds, n]; those `shown` are in colour, under these names."""
    columns, colours = np.asarray(values, dtype=float).T, iter(COLOURS * (len(shown) + 1))
    each = list(zip(numbers or range(len(columns)), columns, strict=True))
    grey = [line(rounds, column, f"participant {k}", "--grey", strong=False) for k, column in each if k not in shown]
    return grey + [line(rounds, column, shown[k], next(colours)) for k, column in each if k in shown]


def named(k: int, injected: Mapping[int, Any]) -> str:
    """A participant in a legend, with its fault if one was injected."""
    return f"{injected[k]} {k}" if injected.get(k) else f"participant {k}"


def injected_in(table: Json) -> dict[int, str]:
    """Participant -> its fault, from a table whose last column has the faults."""
    return {row[0]: row[-1] for row in table["rows"] if row[-1] and isinstance(row[-1], str)}


def across(value: float, upright: bool = False, colour: str = "--grey", dash: str = "dot") -> Json:
    """A straight line across the chart at this value of y, or of x if it is upright."""
    along, at = ("y", "x") if upright else ("x", "y")
    ends = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{at}0": value, f"{at}1": value}
    return {"type": "line", **ends, "line": {"color": colour, "dash": dash, "width": 1}}


def matrix(z: Any, names: Sequence[int], hover: str, legend: str, **more: Any) -> Json:
    """A heat map with a row for each receiver and a column for each source; NaN is left empty."""
    texts, rows = [str(name) for name in names], [short(row) for row in np.asarray(z, dtype=float)]
    bar = {"thickness": 10, "outlinewidth": 0, "title": {"text": legend, "side": "right", "font": {"size": 12}}}
    look = {"xgap": 1, "ygap": 1, "hoverongaps": False, "hovertemplate": f"{hover}<extra></extra>", "colorbar": bar}
    return {"type": "heatmap", "x": texts, "y": texts, "z": rows, **look, **more}


def matrix_axes() -> Json:
    """The axes of a matrix: sources from left to right, receivers from top to bottom."""
    category = {"type": "category", "showgrid": False, "zeroline": False, "tickangle": 0}
    return {"xaxis": axis("source j", **category), "yaxis": axis("receiver k", autorange="reversed", **category)}


def contributions(
    total: Any, bounds: Bounds | None, injected: Mapping[int, Any], title: str, kind: str, numbers: Sequence[int] = ()
) -> Json:
    """Bars of everybody's influence, with 95 % intervals if there are any; grey: within noise.

    `numbers` are those of the participants, if not all are shown.
    """
    total = np.asarray(total, dtype=float)
    bounds = bounds or Bounds(*np.full((2, len(total)), np.nan))
    colours = [SIGNED[int(sign)] for sign in signs(total, bounds)]
    trace = bars(total.tolist(), colours, "participant %{y}: %{x:.4g}<extra></extra>", bounds, numbers)
    each = zip(numbers or range(len(total)), colours, total, strict=True)
    noise = [str(k) for k, colour, value in each if colour == SIGNED[0] and value and np.isfinite(value)]
    sure = f" Within noise: {', '.join(noise[:12])}{' and more' * (len(noise) > 12)}." if noise else ""
    note = "Lines are 95 % intervals, from how much it varies between rounds; grey: within noise."
    return chart(
        title, [trace], f"Influence of each participant by {kind}.{sure}", note * ("error_x" in trace),
        height=max(300, 20 * len(total) + 80), xaxis=axis(LOSS, zerolinecolor="--grey"),
        yaxis=participants(len(total), injected, numbers=numbers, autorange="reversed", ticks=""),
    )  # fmt: skip


def saved_bounds(intervals: Any) -> Bounds | None:
    """Bounds from saved intervals, a pair of ends each; None if there are none, as in results of older versions."""
    ends = np.array([] if intervals is None else intervals, dtype=float)
    return Bounds(*ends.T) if np.isfinite(ends).any() else None


def interval_text(bounds: Bounds, node: int, digits: int | None = None) -> str | None:
    """The interval of a participant's total, for a table; None if there is none."""
    low, high = float(bounds.low[node]), float(bounds.high[node])
    form = f"{'+' * bool((bounds.low < 0).any())}.{decimals(*bounds) if digits is None else digits}f"
    return f"{low:{form}} to {high:{form}}".replace("-", "−") if low == low else None
