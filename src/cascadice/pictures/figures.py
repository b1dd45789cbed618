"""Figures of influence: each function draws into `ax` or into a new figure, and returns the axes.

They take arrays, tensors or results of `cascadice.influence`. Negative influence helped, and is blue.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cascadice.influence.agreement import Agreement
from cascadice.influence.agreement import agreement as agreement_of
from cascadice.influence.cascade import Cascade
from cascadice.influence.uncertainty import bounds_of_totals, decimals, plus_minus, signs
from cascadice.pictures.panels import NAMED_UP_TO
from cascadice.pictures.topology import plot_network
from cascadice.topology import links

HELPED, HARMED, UNCLEAR = "#0072B2", "#D55E00", "#999999"  # Okabe–Ito: distinct for colour-blind readers too
COLOURS = ("#4D4D4D", "#009E73", "#CC79A7", "#E69F00")
INTERVALS_UP_TO = 16  # participants beside whose circles there is room for an interval
SIGNED = {-1: HELPED, 0: UNCLEAR, 1: HARMED}

Numbers = NDArray[np.float64]


def axes_or_new(ax: Any = None, size: tuple[float, float] = (5.4, 4.6)) -> Any:
    """`ax`, or the axes of a new pyplot figure, which a notebook shows."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _numbers(values: Any, dimensions: int, what: str) -> Numbers:
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=float)
    if array.ndim != dimensions:
        raise ValueError(f"{what} must have {dimensions} dimensions; found shape {list(array.shape)}.")
    return array


def contributions(
    updates: Any, *, kind: str = "influence", injected: Mapping[int, str] | None = None, ax: Any = None
) -> Any:
    """Draw each participant's influence, summed over rounds, with 95 % intervals; grey is within noise.

    Args:
        updates: [rounds, n], the influence of each participant's update in each round; one round has no intervals.
        kind: The estimator, for the title.
        injected: participant -> its faults, for the labels.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> ax = contributions([[-1.0, 0.5], [-1.2, -0.5], [-1.1, 0.2]], kind="truth")
        >>> ax.get_title()
        'who helped, who harmed (truth)'
    """
    updates, named = _numbers(updates, 2, "updates"), injected or {}
    totals, bounds, axes = np.nan_to_num(updates.sum(0)), bounds_of_totals(updates), axes_or_new(ax)
    half = bounds.high - totals
    error = half if np.isfinite(half).all() else None
    colours = [SIGNED[int(sign)] for sign in signs(totals, bounds)]
    axes.barh(range(len(totals)), totals, color=colours, xerr=error, error_kw={"elinewidth": 0.9, "ecolor": "0.25"})
    axes.axvline(0, color="0.2", linewidth=0.8)
    final = kind.startswith("whole-run")
    who, whose = ("who helped the final models", "the final") if final else ("who helped, who harmed", "everyone's")
    sure = "\none round has no intervals" if len(updates) == 1 else ""
    loss = f"helped  <  influence on {whose} loss  >  harmed"
    axes.set(title=f"{who} ({kind}){sure}", xlabel=loss, ylabel="participant")
    if len(totals) <= NAMED_UP_TO:
        names = [f"{named[node]}  {node}" if node in named else str(node) for node in range(len(totals))]
        axes.set_yticks(range(len(totals)), names, fontsize=8)
    axes.locator_params(axis="x", nbins=6)  # five digits and a sign are wide
    axes.invert_yaxis()
    return axes


def matrix(influence: Any, *, title: str = "who influenced whom, from the first gossip on", ax: Any = None) -> Any:
    """Draw influence as a matrix with a row for each receiver and a column for each source, like W.

    Args:
        influence: [n, n], of each source (first) on each receiver, e.g. `readings.by_receiver(cascade)`.
        title: The title.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> matrix([[0.0, -0.5], [0.2, 0.0]]).get_xlabel()
        'source j'
    """
    values, axes = _numbers(influence, 2, "influence"), axes_or_new(ax)
    limit = np.quantile(np.abs(values[values != 0]), 0.98) if values.any() else 1.0  # one outlier would pale the rest
    shown = np.ma.masked_equal(values, 0).T
    image = axes.imshow(shown, "RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend="both")
    axes.set(xlabel="source j", ylabel="receiver k", title=title, facecolor="#f4f4f4")
    if (nodes := len(values)) <= NAMED_UP_TO:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(nodes), range(nodes))
        axes.tick_params(labelsize=8 if nodes <= 16 else 6)
    return axes


def cascade(cascade: Cascade, source: int, *, ax: Any = None) -> Any:
    """Draw how the influence of one source travels: a row for each hop, a column for each participant.

    Args:
        cascade: A cascade of `influence.truth` or an estimator.
        source: One of its sources.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> ax = cascade(influence.truth(network, rounds[:4], evaluation), source=3)  # doctest: +SKIP
    """
    if source not in cascade.sources:
        raise ValueError(f"source must be one of the cascade's, {list(cascade.sources)}; found {source}.")
    values = _numbers(cascade.value[:, cascade.sources.index(source)], 2, "a cascade")
    axes, limit = axes_or_new(ax, (7.5, 3.2)), float(np.abs(values).max(initial=1e-12))
    image = axes.imshow(np.ma.masked_equal(values, 0), "RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="helped  <  change in loss  >  harmed")
    title = f"where the update of participant {source} in round {cascade.t} went ({cascade.kind})"
    axes.set(xlabel="participant", ylabel="hops", title=title, yticks=range(len(values)), facecolor="#f4f4f4")
    if values.shape[1] <= NAMED_UP_TO:
        axes.set_xticks(range(values.shape[1]))
    return axes


def network(W: Any, influence: Any = None, *, ax: Any = None) -> Any:
    """Draw who sends to whom; with `influence`, its size is the size of a circle, blue if it helped, orange if not.

    Args:
        W: The mixing matrix; `W[k, j]` is the weight that k gives to j.
        influence: [rounds, n], of each update, such as `scores.updates`: participants within noise are grey, and up to
            16 have their total and its 95 % interval beside them (for more, see `contributions`). Or [n], totals,
            which have no intervals. By default, circles show the weight that others give.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> from cascadice import topology
        >>> network(topology.build("ring", 8)(0), [-1.0] * 7 + [0.5]).get_title()
        'who sends to whom (blue helped, orange harmed; totals have no intervals)'
    """
    axes, entries = axes_or_new(ax, (6.0 if influence is None else 7.5, 6.0)), links(torch.as_tensor(W).detach().cpu())
    if influence is None:
        plot_network(axes, len(W), entries)
        return axes
    values = np.nan_to_num(_numbers(influence, 2 if np.ndim(influence) == 2 else 1, "influence"))
    if values.shape[-1] != len(W):
        raise ValueError(f"influence must have a value for each of {len(W)} participants; found {values.shape[-1]}.")
    rounds = values if values.ndim == 2 else values[None]
    totals, bounds = rounds.sum(0), bounds_of_totals(rounds)
    fill = [SIGNED[int(sign)] for sign in signs(totals, bounds)]
    digits, intervals = decimals(totals), zip(totals, bounds.high - totals, strict=True)
    room = len(rounds) > 1 and len(totals) <= INTERVALS_UP_TO
    notes = [plus_minus(*interval, digits) for interval in intervals] if room else []
    plot_network(axes, len(W), entries, np.abs(totals), fill, notes)
    lacking = "one round has" if values.ndim == 2 else "totals have"
    sure = ", grey within noise" if len(rounds) > 1 else f"; {lacking} no intervals"
    below = "\ninfluence summed over rounds, with its 95 % interval" if notes else ""
    axes.set_title(f"who sends to whom (blue helped, orange harmed{sure}){below}", fontsize=11)
    return axes


def decay(by_hop: Mapping[str, Any], *, colours: Mapping[str, str] | None = None, ax: Any = None) -> Any:
    """Draw the mean size of an update's influence after each round of gossip.

    Args:
        by_hop: estimator -> [hops + 1], as in a run's `InfluenceSummary.by_hop`.
        colours: estimator -> its colour.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> decay({"truth": [0.3, 0.2, 0.1], "first order": [0.3, 0.25, 0.2]}).get_title()
        'how far it reaches'
    """
    axes, width, tones = axes_or_new(ax), 0.8 / max(len(by_hop), 1), colours or colours_of(by_hop)
    for place, (kind, each) in enumerate(by_hop.items()):
        values, offset = _numbers(each, 1, kind), (place - (len(by_hop) - 1) / 2) * width
        axes.bar(np.arange(len(values)) + offset, values, width, color=tones[kind], label=kind)
    axes.set(title="how far it reaches", xlabel="hops (0: on itself, before gossip)", ylabel="mean absolute influence")
    axes.set_xticks(range(max(map(len, by_hop.values()))))
    axes.legend(frameon=False, fontsize=8)
    return axes


def agreement(
    truth: Any, estimates: Mapping[str, Any], *, colours: Mapping[str, str] | None = None,
    measured: Mapping[str, Agreement] | None = None, title: str = "estimates against the truth", ax: Any = None,
) -> Any:  # fmt: skip
    """Draw estimates against the truth, update by update, with their correlation and error in the legend.

    Args:
        truth: The true influence of each update, in any shape.
        estimates: estimator -> the same updates.
        colours: estimator -> its colour.
        measured: estimator -> what `agreement` says, if it is known already.
        ax: The axes to draw into; defaults to a new figure.

    Returns:
        The Matplotlib axes.

    Example:
        >>> ax = agreement([0.1, 0.2, 0.4], {"first order": [0.1, 0.2, 0.3]})
        >>> ax.get_legend().get_texts()[0].get_text()
        'first order\\nPearson 0.982, relative RMSE 0.218'
    """
    axes, tones = axes_or_new(ax), colours or colours_of(estimates)
    true = _numbers(truth, np.ndim(truth), "truth").ravel()
    for kind, each in estimates.items():
        values = _numbers(each, np.ndim(each), kind).ravel()
        a = measured[kind] if measured else agreement_of(torch.from_numpy(true), torch.from_numpy(values))
        label = f"{kind}\nPearson {a.pearson:.3f}, relative RMSE {a.relative_rmse:.3f}"
        axes.scatter(true, values, s=14, color=tones[kind], alpha=0.7, linewidths=0, label=label)
    ends = [np.nanmin(true), np.nanmax(true)]
    axes.plot(ends, ends, color="0.2", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel="truth: influence of an update", ylabel="estimate")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return axes


def colours_of(kinds: Mapping[str, Any]) -> dict[str, str]:
    return {kind: COLOURS[place % len(COLOURS)] for place, kind in enumerate(kinds)}
