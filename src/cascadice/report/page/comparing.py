"""Two runs side by side: how good their models became, which settings differ, and whose influence changed."""

from pathlib import Path

import numpy as np

from cascadice import files
from cascadice.applications.charts import LOSS, axis, chart, interval_text, line, participants
from cascadice.applications.plain import Json, short
from cascadice.data.samples import WATCHED
from cascadice.engine.parts import numbered
from cascadice.influence.uncertainty import Bounds
from cascadice.report.page.collecting import Run, curves, read_run
from cascadice.report.page.influences import Influences
from cascadice.runs.config import to_json
from cascadice.runs.folder import DATA

SEEDS = " Another seed divides the data in another way, so participants with the same number hold other samples."
OTHER_BATCHES = (
    "Both runs are of loops that were watched, with other batches. If their test data differ, too, neither losses nor "
    "influence can be compared."
)
COLOURS = ("--one", "--four")
LEAD = (
    "The same questions asked of two runs. Influence is a change in loss: negative = it helped. A difference is clear "
    "if the 95 % intervals of the two totals do not overlap."
)


def compare(folder: files.Folder, other: files.Folder) -> Json:
    """Make the section of a run's page that compares it with another run.

    Args:
        folder: The run that the page is of.
        other: The run to compare it with: of the same data, loss and number of participants.

    Returns:
        The section as plain data.

    Raises:
        ValueError: If a folder holds no run, or the two cannot be compared.

    Example:
        >>> compare("runs/demo", "runs/demo-attacked")["findings"][0]  # doctest: +SKIP
        'Mean test accuracy: 0.955 in demo, 0.945 in demo-attacked.'
    """
    homes, notes = (Path(folder), Path(other)), list[str]()
    runs = [read_run(home, notes) for home in homes]
    names = [home.name for home in homes] if homes[0].name != homes[1].name else [str(home) for home in homes]
    _check_comparable(homes, runs)
    lines = [curves(run.metrics) or {} for run in runs]
    influence = _influence(runs, names)
    return {
        "name": "comparison",
        "title": f"Comparison of {names[0]} with {names[1]}",
        "lead": LEAD,
        "findings": [
            *_quality(lines, names),
            *_other_batches(runs),
            _settings(runs, names),
            *influence.pop("findings"),
            *notes,
        ],
        "charts": [*_curves(lines, names), *influence.pop("charts")],
        "flagged": None,
        "picture": None,
        **influence,
    }


def _check_comparable(homes: tuple[Path, Path], runs: list[Run]) -> None:
    same = homes[0].resolve() == homes[1].resolve()
    settings: dict[str, list[object]] = {
        "losses": [run.config.loss for run in runs],
        "numbers of participants": [run.nodes for run in runs],
    }
    wrong = [f"their {name} are {both[0]} and {both[1]}" for name, both in settings.items() if both[0] != both[1]]
    if reasons := ["they are one and the same"] * same + _different_data(runs) + wrong:
        raise ValueError(
            f"{homes[0]} and {homes[1]} cannot be compared: {'; '.join(reasons)}. Name two runs of the same data, loss "
            "and number of participants."
        )


def _quality(lines: list[Json], names: list[str]) -> list[str]:
    for measure in ("accuracy", "test loss"):
        if all(one.get(measure) for one in lines):
            last = [one[measure]["mean"][-1] for one in lines]
            return [
                f"Mean test {measure.removeprefix('test ')}: {last[0]:.3f} in {names[0]}, {last[1]:.3f} in {names[1]}."
            ]
    return ["Their models cannot be compared: at least one of the two was never evaluated."]


def _different_data(runs: list[Run]) -> list[str]:
    """Why the data are not the same, by their digests; runs of version 0.1.0 have none, and are compared by name."""
    digests, names = ([run.manifest.get(DATA) for run in runs], [run.config.data for run in runs])
    if not all(digests):
        return [f"their data sets are {names[0]} and {names[1]}"] if names[0] != names[1] else []
    if digests[0] == digests[1] or names == [WATCHED, WATCHED]:
        return []
    if names[0] != names[1]:
        return [f"their data sets are {names[0]} and {names[1]}, which hold different samples"]
    return [f"their data sets are both called {names[0]} but hold different samples"]


def _other_batches(runs: list[Run]) -> list[str]:
    """A warning if watched loops drew other batches, as they do with another seed."""
    one, two = (run.manifest.get(DATA) for run in runs)
    return [OTHER_BATCHES] if one and two and one != two else []


def _settings(runs: list[Run], names: list[str]) -> str:
    one, two = ({**to_json(run.config), "saved": None} for run in runs)  # a digest says nothing to a reader
    different = [
        f"{key.replace('_', '-')} ({_text(one[key])}, {_text(two[key])})" for key in one if one[key] != two[key]
    ]
    if not different:
        return "Their settings are the same."
    seeds = SEEDS if one["seed"] != two["seed"] else ""
    return f"Settings that differ ({names[0]}, {names[1]}): {'; '.join(different)}.{seeds}"


def _text(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)


def _curves(lines: list[Json], names: list[str]) -> list[Json]:
    charts = []
    for measure, title in (("accuracy", "Mean test accuracy"), ("test loss", "Mean test loss")):
        if all(one.get(measure) for one in lines):
            traces = [
                line(one[measure]["rounds"], one[measure]["mean"], name, colour)
                for one, name, colour in zip(lines, names, COLOURS, strict=True)
            ]
            charts.append(chart(title, traces, f"{title} of both runs.", xaxis=axis("round"), yaxis=axis(measure)))
    return charts


def _influence(runs: list[Run], names: list[str]) -> Json:
    """Totals of the first kind that both runs have for the same rounds and hops, or why there are none."""
    nothing: Json = {"columns": [], "rows": [], "count": 0, "charts": []}
    pairs = [(a, b, kind) for a in runs[0].influences for b in runs[1].influences for kind in _shared(a, b)]
    if not pairs:
        why = [f"{name} has {_known(run)}" for name, run in zip(names, runs, strict=True)]
        how = "Ask both runs the same with `cascadice influence`"
        return {**nothing, "findings": [f"Influence is not compared: {', '.join(why)}. {how}."]}
    *both, kind = max(pairs, key=lambda pair: pair[0].summary.whole_run)
    totals = [one.summary.participants[kind] for one in both]
    bounds = [one.summary.bounds[kind] for one in both]
    clear = (bounds[0].high < bounds[1].low) | (bounds[1].high < bounds[0].low)
    changed = np.flatnonzero(clear).tolist()
    who = numbered(changed) if changed else "nobody"
    cells = [
        [(short([total[k]])[0], interval_text(ends, k)) for total, ends in zip(totals, bounds, strict=True)]
        for k in range(len(clear))
    ]
    rows = [[k, *one, *two, "clear" if clear[k] else ""] for k, (one, two) in enumerate(cells)]
    columns = ["participant", *(text for name in names for text in (name, "95 % interval")), "difference"]
    drawn = _totals(totals, bounds, runs[0].injected | runs[1].injected, names, kind)
    findings = [f"Influence by {kind} clearly differs for {who}."]
    return {"columns": columns, "rows": rows, "count": len(rows), "charts": [drawn], "findings": findings}


def _shared(a: Influences, b: Influences) -> list[str]:
    """The kinds of influence that two tables have for the same rounds and hops."""
    if a.summary.rounds != b.summary.rounds:
        return []
    hops = [{kind: len(values) for kind, values in one.summary.by_hop.items()} for one in (a, b)]
    return [kind for kind in a.summary.updates if kind in b.summary.updates and hops[0].get(kind) == hops[1].get(kind)]


def _known(run: Run) -> str:
    kinds = [f"{kind} of {len(one.summary.rounds)} rounds" for one in run.influences for kind in one.summary.updates]
    return ", ".join(kinds) or "none"


def _totals(
    totals: list[np.ndarray], bounds: list[Bounds], injected: dict[int, str], names: list[str], kind: str
) -> Json:
    traces = [
        {
            "type": "bar", "orientation": "h", "x": short(total), "y": list(range(len(total))), "name": name,
            "marker": {"color": colour}, "hovertemplate": "participant %{y}: %{x:.4g}<extra>%{data.name}</extra>",
            "error_x": {"array": short(one.high - total), "color": "--ink", "thickness": 1.2, "width": 3},
        }
        for total, one, name, colour in zip(totals, bounds, names, COLOURS, strict=True)
    ]  # fmt: skip
    who = participants(len(totals[0]), injected, autorange="reversed")
    return chart(f"Influence of each participant ({kind})", traces, "Totals of both runs.", "Lines are 95 % intervals.",
                 height=max(320, 26 * len(totals[0]) + 90), xaxis=axis(LOSS),
                 yaxis=who)  # fmt: skip
