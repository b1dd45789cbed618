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
    _check_comparable(homes, runs)
    names = [home.name for home in homes] if homes[0].name != homes[1].name else [str(home) for home in homes]
    quality, curves = _models(runs, names)
    influence = _influence(runs, names)
    findings = [quality, *_other_batches(runs), _settings(runs, names), *influence["findings"], *notes]
    return {
        **influence,
        "name": "comparison",
        "title": f"Comparison of {names[0]} with {names[1]}",
        "lead": LEAD,
        "findings": findings,
        "charts": [*curves, *influence["charts"]],
        "flagged": None,
        "picture": None,
    }


def _check_comparable(homes: tuple[Path, Path], runs: list[Run]) -> None:
    reasons = ["they are one and the same"] if homes[0].resolve() == homes[1].resolve() else []
    reasons += _different_data(runs)
    (loss, nodes), (other_loss, other_nodes) = ((run.config.loss, run.nodes) for run in runs)
    reasons += [f"their losses are {loss} and {other_loss}"] * (loss != other_loss)
    reasons += [f"their numbers of participants are {nodes} and {other_nodes}"] * (nodes != other_nodes)
    if reasons:
        raise ValueError(
            f"{homes[0]} and {homes[1]} cannot be compared: {'; '.join(reasons)}. Name two runs of the same data, loss "
            "and number of participants."
        )


def _models(runs: list[Run], names: list[str]) -> tuple[str, list[Json]]:
    """How good the models became: a sentence, and a chart of each measure that both runs have."""
    both = [curves(run.metrics) or {} for run in runs]
    measured = [measure for measure in ("accuracy", "test loss") if all(one.get(measure) for one in both)]
    if not measured:
        return "Their models cannot be compared: at least one of the two was never evaluated.", []
    charts = []
    for measure in measured:
        title = f"Mean test {measure.removeprefix('test ')}"
        traces = [
            line(one[measure]["rounds"], one[measure]["mean"], name, colour)
            for one, name, colour in zip(both, names, COLOURS, strict=True)
        ]
        charts.append(chart(title, traces, f"{title} of both runs.", xaxis=axis("round"), yaxis=axis(measure)))
    last = [f"{one[measured[0]]['mean'][-1]:.3f} in {name}" for one, name in zip(both, names, strict=True)]
    return f"{charts[0]['title']}: {', '.join(last)}.", charts


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
    keys = [key for key in one if one[key] != two[key]]
    if not keys:
        return "Their settings are the same."
    different = [f"{key.replace('_', '-')} ({_text(one[key])}, {_text(two[key])})" for key in keys]
    seeds = SEEDS if one["seed"] != two["seed"] else ""
    return f"Settings that differ ({names[0]}, {names[1]}): {'; '.join(different)}.{seeds}"


def _text(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)


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
    who = numbered(np.flatnonzero(clear).tolist()) if clear.any() else "nobody"
    one, two = (
        [(value, interval_text(ends, k)) for k, value in enumerate(short(total))]
        for total, ends in zip(totals, bounds, strict=True)
    )
    rows = [[k, *one[k], *two[k], "clear" if clear[k] else ""] for k in range(len(clear))]
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
    look = {"height": max(320, 26 * len(totals[0]) + 90), "xaxis": axis(LOSS), "yaxis": who}
    title = f"Influence of each participant ({kind})"
    return chart(title, traces, "Totals of both runs.", "Lines are 95 % intervals.", **look)
