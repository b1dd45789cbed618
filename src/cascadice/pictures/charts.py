"""Draw the charts of the report page with Matplotlib, so that a command's picture shows the same as its section.

A chart is plain data, as `applications.charts` makes it: a title, a note, and Plotly's traces and layout.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import numpy as np

from cascadice.files import Folder
from cascadice.pictures.figures import COLOURS, HARMED, HELPED, UNCLEAR, Numbers
from cascadice.pictures.panels import NAMED_UP_TO, panels, save

THEME = {
    "--helped": HELPED, "--harmed": HARMED, "--grey": UNCLEAR, "--one": HELPED, "--two": COLOURS[1],
    "--three": COLOURS[2], "--four": COLOURS[3], "--ink": "0.25", "--card": "white", "--line": "0.85",
}  # fmt: skip
MARKS = {"circle": "o", "square": "s", "x": "x"}
SIGNED = [(0, "--helped"), (0.5, "--card"), (1, "--harmed")]
EMPTY = "#f4f4f4"  # where a matrix has no value
WIDTH, HEIGHT, LOW, HIGHEST = 5.4, 4.8, 4.0, 9.0  # of a panel, in inches; LOW if there are two rows
ROW = 110  # pixels of the page per inch of a tall panel
ONE_ROW = 4  # most panels in one row
MOST_TICKS = 6  # because labels of five digits and a sign are wide

Chart = Mapping[str, Any]


def plot(charts: Sequence[Chart], path: Folder, title: str = "") -> None:
    """Draw charts side by side into a PNG or SVG; without charts, write "nothing to draw"."""
    count = max(len(charts), 1)
    rows = 1 if count <= ONE_ROW else 2
    columns = -(-count // rows)
    height = min(max([HEIGHT, *(chart["layout"].get("height", 0) / ROW for chart in charts)]), HIGHEST)
    figure, axes = panels(rows * columns, (WIDTH * columns, height if rows == 1 else 2 * LOW), rows)
    for panel, chart in zip_longest(axes, charts):
        if chart is None:
            panel.set_axis_off()
        else:
            draw(panel, chart)
    if not charts:
        figure.text(0.5, 0.5, "nothing to draw", ha="center")
    save(figure, path, title[:1].upper() + title[1:])


def draw(axes: Any, chart: Chart) -> None:
    """Draw one chart: its title with the note below it, the traces, and the axes."""
    layout, note = chart["layout"], wrap(chart["note"], 76)
    for trace in chart["traces"]:
        _TRACES[trace.get("type", "scatter")](axes, trace)
    for shape in layout.get("shapes", ()):  # lines over the whole width or height of the panel
        across, at = (axes.axhline, shape["y0"]) if shape.get("xref") == "paper" else (axes.axvline, shape["x0"])
        across(at, **_line(shape["line"]), zorder=1.5)
    for name in ("x", "y"):
        _set_axis(axes, name, layout.get(f"{name}axis", {}))
    axes.set_title(chart["title"], loc="left", pad=8 + 11 * len(note))
    text = {"xycoords": "axes fraction", "xytext": (0, 6), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate("\n".join(note), (0, 1), va="bottom", fontsize=8, color="0.35", **text)
    if layout.get("showlegend", True) and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, framealpha=0.8, edgecolor="none")


def _draw_bars(axes: Any, trace: Chart) -> None:
    horizontal = trace.get("orientation") == "h"
    bars, along = (axes.barh, "x") if horizontal else (axes.bar, "y")
    positions, values = trace["y" if horizontal else "x"], np.nan_to_num(_numbers(trace[along]))
    look = {"color": _colour(trace["marker"]["color"]), "error_kw": {"elinewidth": 1.1, "ecolor": THEME["--ink"]}}
    bars(positions, values, **look, **{f"{along}err": _ends(trace.get(f"error_{along}"))})
    (axes.axvline if horizontal else axes.axhline)(0, color="0.2", linewidth=0.8)
    axes.locator_params(axis="x", nbins=MOST_TICKS)


def _draw_points(axes: Any, trace: Chart) -> None:
    """Draw lines, or markers with labels and error bars."""
    x, y = _numbers(trace["x"]), _numbers(trace["y"])
    label = trace.get("name") if trace.get("showlegend", True) else None
    axes.locator_params(axis="x", nbins=MOST_TICKS)
    if trace["mode"] == "lines":
        alpha = trace.get("opacity", 1)
        axes.plot(x, y, label=label, alpha=alpha, zorder=2 + alpha, **_line(trace["line"]))
        return
    marker, errors = trace["marker"], {f"{name}err": _ends(trace.get(f"error_{name}")) for name in "xy"}
    if any(error is not None for error in errors.values()):
        axes.errorbar(x, y, fmt="none", ecolor="0.6", elinewidth=0.8, **errors)
    style = {"c": _colour(marker["color"]), "marker": MARKS[marker.get("symbol", "circle")], "s": 24, "alpha": 0.85}
    axes.scatter(x, y, label=label, zorder=3, **style)
    for text, *point in zip(trace.get("text", ()), x, y, strict=False):
        axes.annotate(text, point, xytext=(3, 3), textcoords="offset points", fontsize=7)


def _draw_matrix(axes: Any, trace: Chart) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = SIGNED if trace["colorscale"] == "signed" else trace["colorscale"]
    colours = LinearSegmentedColormap.from_list("", [(at, THEME[name]) for at, name in scale])
    colours = colours.reversed() if trace.get("reversescale") else colours
    values = np.ma.masked_invalid([_numbers(row) for row in trace["z"]])
    image = axes.imshow(values, colours, vmin=trace["zmin"], vmax=trace["zmax"], interpolation="nearest")
    beyond = "max" if values.max() > trace["zmax"] else "neither"
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend=beyond, label=trace["colorbar"]["title"]["text"])
    axes.set_facecolor(EMPTY)
    for name in ("x", "y"):
        if len(trace[name]) <= NAMED_UP_TO:
            axes.set(**{f"{name}ticks": range(len(trace[name])), f"{name}ticklabels": trace[name]})
    axes.tick_params(labelsize=8 if len(trace["x"]) <= 16 else 6)


_TRACES: Mapping[str, Callable[[Any, Chart], None]] = {
    "bar": _draw_bars, "scatter": _draw_points, "heatmap": _draw_matrix,
}  # fmt: skip


def _set_axis(axes: Any, name: str, axis: Chart) -> None:
    axes.set(**{f"{name}label": axis.get("title", {}).get("text", "")})
    if "tickvals" in axis and len(axis["tickvals"]) <= NAMED_UP_TO:
        axes.set(**{f"{name}ticks": axis["tickvals"], f"{name}ticklabels": axis["ticktext"]})
        axes.tick_params(axis=name, labelsize=8)
    if "range" in axis:
        axes.set(**{f"{name}lim": axis["range"]})
    if axis.get("autorange") == "reversed" and not getattr(axes, f"{name}axis_inverted")():
        getattr(axes, f"invert_{name}axis")()


def _ends(error: Chart | None) -> Numbers | None:
    """The lengths of error bars below and above; those made negative by rounding become 0."""
    if error is None:
        return None
    return np.clip([_numbers(error.get("arrayminus", error["array"])), _numbers(error["array"])], 0, None)


def _numbers(values: Sequence[Any]) -> Numbers:
    return np.array(values, dtype=float)  # None becomes NaN


def _colour(name: Any) -> Any:
    return THEME[name] if isinstance(name, str) else [THEME[one] for one in name]


def _line(line: Chart) -> dict[str, Any]:
    dash = ":" if line.get("dash") == "dot" else "-"
    return {"color": _colour(line["color"]), "linewidth": line["width"], "linestyle": dash}
