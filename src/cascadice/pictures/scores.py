"""A picture of scores: each participant's influence with its interval."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from cascadice.pictures.influence import HARMED, HELPED
from cascadice.pictures.panels import NAMED_UP_TO

NOISE = "#999999"


def plot(columns: Mapping[str, NDArray[Any]], question: str, ax: Any = None) -> Any:
    """Bars of influence with 95 % intervals, grey where they are within noise.

    Args:
        columns: participant, influence, low, high and verdict, in the order from top to bottom.
        question: What the numbers are about.
        ax: Matplotlib axes to draw on; those of a new figure unless given.

    Returns:
        The axes.

    Example:
        >>> axes = score(network, rounds).plot()  # doctest: +SKIP
    """
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=(6.4, 1.2 + 0.24 * len(columns["influence"])), layout="constrained").subplots()
    places, values = range(len(columns["influence"])), columns["influence"]
    colours = {"helped": HELPED, "harmed": HARMED}
    ax.barh(places, values, color=[colours.get(verdict, NOISE) for verdict in columns["verdict"]])
    ends = (values - columns["low"], columns["high"] - values)
    ax.errorbar(values, places, xerr=ends, fmt="none", ecolor="0.3", elinewidth=0.8, capsize=2)
    ax.axvline(0, color="0.2", linewidth=0.8)
    if len(values) <= NAMED_UP_TO:
        ax.set_yticks(places, [str(participant) for participant in columns["participant"]], fontsize=8)
    about, _, _ = question.partition(":")
    ax.set(title=f"who helped {about}", ylabel="participant", xlabel="helped  <  influence, 95 % interval  >  harmed")
    ax.invert_yaxis()
    return ax
