"""Rules compared: accuracy by rule, setting by setting."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from cascadice_experiments.drawing import GREEN, GREY, HARMED, HELPED, PINK, SKY, YELLOW, hide_box, panels, save

COLOURS = (GREY, GREEN, PINK, YELLOW, SKY, HELPED, HARMED, "#000000")


def draw(settings: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], path: str | PathLike[str]) -> None:
    """Draw accuracy by rule, one row of points per setting; lines are the spread over seeds."""
    figure, ((axes,),) = panels(9.5, 1.8 + 0.62 * len(settings))
    rules = list(dict.fromkeys(row["rule"] for _, rows in settings for row in rows))
    palette = dict(zip(rules, COLOURS * 2, strict=False))
    for place, (_, rows) in enumerate(settings):
        for offset, row in enumerate(rows):
            height = place + 0.7 * (offset / max(1, len(rows) - 1) - 0.5)
            style = {"color": palette[row["rule"]], "marker": "D" if row["rule"] == "oracle" else "o", "markersize": 5}
            axes.errorbar(row["accuracy"], height, xerr=row["spread"], elinewidth=1.2, linestyle="", **style)
    axes.set_yticks(range(len(settings)), [title for title, _ in settings], fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    axes.set(
        title="accuracy by rule (honest participants; with two groups, everyone)",
        xlabel="test accuracy: mean over seeds, with standard deviation",
    )
    handles = [axes.plot([], [], linestyle="", marker="o", color=palette[rule], label=rule)[0] for rule in rules]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.title.set_fontsize(11)
    hide_box(axes)
    save(figure, path)
