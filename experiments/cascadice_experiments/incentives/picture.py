"""The results of the study as a picture, and as lines on the console."""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascadice_experiments.drawing import GREEN, GREY, HARMED, HELPED, PINK, SKY, YELLOW, hide_box, panels, save

SHADES = (HELPED, SKY, GREEN, HARMED, YELLOW, PINK, GREY)
UNDRAWN = ("samples held", "shares, 1 hop, and on oneself")


def draw(study: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Draw one panel per part of the study measured so far: rank correlations, or what each role earns."""
    results = study["results"]
    figure, (places,) = panels(5.4 * len(results), 4.6, 1, len(results))
    for axes, result in zip(places, results, strict=True):
        hide_box(axes)
        axes.title.set_fontsize(11)
        (_draw_ranks if "truth" in result else _draw_roles)(axes, result)
    seeds = len(study["settings"]["seeds"])
    figure.suptitle(f"do ledgers pay those who deserve it? {study['data']}, {seeds} seeds")
    save(figure, path)


def _draw_ranks(axes: Any, result: Mapping[str, Any]) -> None:
    names = list(result["rows"])
    means, spreads = (_column([result["rows"][name]["spearman"][key] for name in names]) for key in ("mean", "std"))
    colours = [HELPED if name.startswith(("whole", "shares", "horizon")) else GREY for name in names]
    axes.barh(range(len(names)), means, xerr=spreads, color=colours, ecolor="0.3")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.invert_yaxis()
    accuracy = result["test_accuracy"]["mean"]
    axes.set(
        title=f"against {result['part']}, {result['nodes']} participants\ntest accuracy {accuracy:.3f}",
        xlabel="Spearman (mean, standard deviation over seeds)",
        xlim=(-1, 1.05),
    )


def _draw_roles(axes: Any, result: Mapping[str, Any]) -> None:
    cases = list(result["rows"])
    names = [name for name in result["rows"][cases[0]] if name not in UNDRAWN]
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        means, spreads = (100 * _column([result["rows"][case][name][key] for case in cases]) for key in ("mean", "std"))
        centres = np.arange(len(cases)) + (place - (len(names) - 1) / 2) * width
        colour = "0.2" if place == 0 else SHADES[(place - 1) % len(SHADES)]
        axes.bar(centres, means, width, yerr=spreads, color=colour, ecolor="0.3", label=name)
    axes.axhline(100 / result["nodes"], color="0.2", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(cases)), [case.replace("-", "-\n").replace(" ", "\n") for case in cases], fontsize=8)
    axes.set(title="what participant 0 earns in each role\n(duplicator: both identities)", ylabel="% of the budget")
    axes.legend(frameon=False, fontsize=7, loc="upper left")


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """One part of the study as lines of text: mean ± standard deviation over seeds.

    "[4]" is a figure of four values only: in the seeds of the others no one was paid.
    """
    if "truth" in result:
        what = "(Spearman, Pearson, part of the budget misplaced)"
        yield f"\nagainst {result['part']}, {result['nodes']} participants  {what}"
        for name, row in result["rows"].items():
            yield f"  {name:40}" + "".join(f"{_plus_minus(value):>19}" for value in row.values())
        roles = list(result["paid"]["truth"])
        yield f"  {'share of the budget per participant':40}" + "".join(f"{role:>19}" for role in roles)
        for name, paid in result["paid"].items():
            yield f"  {name:40}" + "".join(f"{_plus_minus(paid[role]):>19}" for role in roles)
        yield f"  test accuracy {_plus_minus(result['test_accuracy'])}, {result['seconds']:.0f} s"
        return
    cases = list(result["rows"])
    yield "\n[n]: of n values; in the seeds of the others no one was paid"
    yield f"share of the budget, {result['nodes']} participants    " + "".join(f"{case:>19}" for case in cases)
    for name in result["rows"][cases[0]]:
        yield f"  {name:40}" + "".join(f"{_plus_minus(result['rows'][case][name]):>19}" for case in cases)
    accuracies = "".join(f"{_plus_minus(result['test_accuracy'][case]):>19}" for case in cases)
    yield f"  {'test accuracy':40}{accuracies}, {result['seconds']:.0f} s"
    yield f"\n{result['nodes']} honest equals, pay in equal shares" + f"{'least paid':>24}{'best paid':>19}"
    for name, paid in result["equals"].items():
        yield f"  {name:40}{_plus_minus(paid['least']):>19}{_plus_minus(paid['most']):>19}"


def _column(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Numbers to draw; None becomes NaN."""
    return np.array(values, dtype=np.float64)


def _plus_minus(spread: Mapping[str, Any]) -> str:
    if spread["mean"] is None:
        return "no one paid"
    fewer = f" [{spread['count']}]" if spread["count"] < spread["of"] else ""
    return f"{spread['mean']:6.3f} ± {spread['std']:.3f}{fewer}"
