"""Everything a run's page shows, as plain data: JSON values only, and nothing left for a browser to compute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cascadice
from cascadice import files
from cascadice.applications.plain import Json, evenly, short
from cascadice.files import checksums
from cascadice.intervals import kinds_by_participant, parse_interval
from cascadice.pictures.training import LINES_UP_TO
from cascadice.report.page import final_models, influences, mixing, samples, sections
from cascadice.report.page.sentences import sentences
from cascadice.runs import store
from cascadice.runs.config import Config, sees_scale, to_json
from cascadice.runs.departures import read_departures
from cascadice.runs.folder import (
    TARGETS,
    TOKENS,
    fingerprint,
    read_manifest,
    read_run_config,
    resuming,
    run_fingerprint,
)
from cascadice.runs.gathering import gathered_manifest, gathered_metrics, mixed_up, places_of
from cascadice.runs.round_metrics import RoundMetrics
from cascadice.runs.saved import unknown

WORDS = {"interrupted": "was interrupted", "stopped": "was killed", "failed": "failed", "diverged": "diverged"}
POINTS = 400  # most points of a curve


def collect(folder: files.Folder) -> Json:
    """Collect the plain data of a run's page, whether the run has ended or not.

    Only the run's settings are required; whatever else is missing or cannot be read is named in `notes`. The same
    folder always gives the same data, so a live page may ask again and again. Cost: one pass over the tables; no
    network is built.

    Args:
        folder: The folder of a run.

    Returns:
        What the page shows, as JSON can hold it.

    Raises:
        ValueError: Where there is no run.

    Example:
        >>> collect("runs/demo")["findings"][0]  # doctest: +SKIP
        '16 participants trained mlp on digits together for 320 rounds, with no server. ...'
    """
    home, notes = Path(folder), list[str]()
    places, config, manifest, run, nodes, metrics, injected, read = read_run(home, notes)
    length = int(manifest.get("rounds", 0))
    notes.extend(_stopped(home, manifest, config, length))
    away = _away(places)
    notes.extend(away + [text for place in places for text in _gone(place)])
    summaries, shown = [one.summary for one in read], influences.shown(read, nodes)
    results = sections.read_sections(places, run, notes)
    final = final_models.section(home, read)
    sections.explain_disagreement(results, final)
    sections.explain_points([*([final] if final else []), *results])
    whole = None if manifest.get("process") else places[0]  # a process draws only its own batches
    scored = samples.samples(config, sorted(summaries, key=lambda one: not one.whole_run), notes, whole, places[0])
    present = {section["name"]: True for section in results} | {"samples": scored}
    present |= {"whole-run" if one.whole_run else "influence": True for one in summaries}
    recorded, there = bool(store.saved_rounds(places[0])), [name for name, what in present.items() if what]
    if process := manifest.get("process"):
        offered = sections.commands_of_processes(
            places[0].parent, int(process.get("of", 1)), recorded, there, playable=not away
        )
    else:
        own = unknown(config) if config.saved else ()
        offered = sections.commands(home, recorded, there, config.rule is None, own)
    rounds = list(summaries[0].rounds) if summaries else list(range(max(length, 1)))
    hops = max((len(values) - 1 for one in summaries[:1] for values in one.by_hop.values()), default=1)
    network = Path(config.mixing).stem if config.mixing else config.topology
    among = "" if config.saved else f" ({network} {'W' if config.mixing else 'graph'})"  # built in Python: no name
    return {
        "version": cascadice.__version__,
        "title": f"{nodes} participants train {config.model} on {config.data}{among}",
        "folder": home.name or str(home),
        "path": str(home),
        "nodes": nodes,
        "shown": shown,
        "members": _members(places, nodes),
        "run": _run(config, manifest),
        "injected": {str(node): what for node, what in injected.items()},
        "flagged": sorted({node for section in results for node in section["flagged"] or ()}),
        "findings": sentences(config, nodes, length, metrics, summaries, manifest.get(TARGETS) == TOKENS),
        "final": final,
        "training": curves(metrics),
        "influence": influences.influence(read, shown),
        "mixing": mixing.mixing(places[0], config, shown, rounds, hops, notes),
        "samples": scored,
        "sections": results,
        "commands": offered,
        "table": influences.table(read),
        "notes": notes,
    }


def _members(places: Sequence[Path], nodes: int) -> list[int] | None:
    """The participants that these folders of processes are about; None if it is everybody."""
    try:
        each: list[Any] = [(read_manifest(place).get("process") or {}).get("members") for place in places]
        members = sorted({int(k) for own in each for k in own})
    except (ValueError, TypeError):
        return None
    return members if len(members) < nodes else None


def _stopped(home: Path, manifest: dict[str, Any], config: Config, rounds: int) -> list[str]:
    """That a run ended before its last round, and how, in words; nothing if it did not."""
    status = str(manifest.get("status", "finished"))
    if status in ("finished", "running"):
        return []
    planned = f" of {config.rounds}" if config.rounds else ""
    how = "" if status == "diverged" else f" Continue it with: {resuming(home, manifest)}"
    return [f"The run ended early: it {WORDS.get(status, f'is {status}')} after {rounds}{planned} rounds.{how}"]


class Run(NamedTuple):
    """What a folder says of a run: `places` are the folders of its processes, or its own."""

    places: list[Path]
    config: Config
    manifest: dict[str, Any]
    fingerprint: str
    nodes: int
    metrics: list[RoundMetrics]
    injected: dict[int, str]
    influences: list[influences.Influences]


def read_run(home: Path, notes: list[str]) -> Run:
    """Read a run and all influence of it; what cannot be read is named in `notes`. ValueError if there is no run."""
    places = places_of(home) or [home]
    config = read_run_config(places[0])
    manifest, run = _read_manifest(places, config, notes)
    nodes = int(manifest.get("nodes") or config.nodes or 0)
    metrics, faults = _read_metrics(places, nodes, notes), (*config.corruptions, *config.behaviours)
    if (
        len(places) == 1 and manifest
    ):  # metrics are written before the manifest: a live page may be collected in between
        metrics = [one for one in metrics if one.t < int(manifest.get("rounds", 0))]
    injected = kinds_by_participant(parse_interval(text, "behaviour") for text in faults)
    nodes = nodes or (len(metrics[0].train_loss) if metrics else 1)
    read = influences.read(places, run, nodes, metrics, injected, sees_scale(config, nodes), notes)
    return Run(places, config, manifest, run, nodes, metrics, injected, read)


def _away(places: Sequence[Path]) -> list[str]:
    """Which processes have no record of how many rounds, in words."""
    return [
        f"{place.name} has no record of {len(away)} rounds between {away[0]} and {away[-1]}: it was away, or died "
        "before a checkpoint kept them. Nothing is known of its participants there, and influence covers only rounds "
        "that all processes recorded."
        for place in places
        if (away := read_departures(place).away)
    ]


def _gone(home: Path) -> list[str]:
    """Results that were written and are missing, in words. A folder of results may be removed as a whole."""
    found = checksums.list_for(home / checksums.LIST)
    paths = [] if found is None else [home / name for name in found.files if name.endswith(".json")]
    gone = [path for path in paths if path.parent.is_dir() and not path.exists()]
    return [f"{path.relative_to(home)} is missing: what it held is not shown." for path in gone]


def _run(config: Config, manifest: dict[str, Any]) -> Json:
    names = ("status", "rounds", "seconds", "started", "finished", "device", "platform", "versions", "parameters")
    defaults = to_json(Config())
    settings = [[name, value, value != defaults[name]] for name, value in to_json(config).items()]
    return {**{name: manifest.get(name) for name in names}, "settings": settings}


def _read_manifest(places: Sequence[Path], config: Config, notes: list[str]) -> tuple[dict[str, Any], str]:
    """The manifest, empty if it cannot be believed, and the run's fingerprint."""
    try:
        notes.extend([wrong] if len(places) > 1 and (wrong := mixed_up(places)) else [])
        return gathered_manifest(places), run_fingerprint(places[0], config)
    except ValueError as error:
        notes.append(str(error))
        return {}, fingerprint(config)


def _read_metrics(places: Sequence[Path], nodes: int, notes: list[str]) -> list[RoundMetrics]:
    try:
        return gathered_metrics(places, nodes)
    except FileNotFoundError:
        notes.append("Nothing has been measured yet: the first checkpoint will write the first metrics.")
    except ValueError as error:
        notes.append(str(error))
    return []


def curves(metrics: Sequence[RoundMetrics]) -> Json | None:
    """Training loss by round, and consensus distance, test loss and accuracy where they were measured."""
    if not metrics:
        return None
    kept = [metrics[place] for place in evenly(len(metrics), POINTS)]
    tests = [(m.t, m.test) for m in metrics if m.test is not None]
    tests = [tests[place] for place in evenly(len(tests), POINTS)]
    distances = [float(m.consensus) for m in kept]
    measured = any(distance == distance for distance in distances)  # it takes all models, which no process has
    return {
        "loss": _curve([(m.t, m.train_loss) for m in kept]),
        "test loss": _curve([(t, test.loss) for t, test in tests]),
        "accuracy": _curve([(t, test.accuracy) for t, test in tests if not bool(test.accuracy.isnan().all())]),
        "consensus": {"rounds": [m.t for m in kept], "mean": short(distances)} if measured else None,
        "thinned": len(kept) < len(metrics),
    }


def _curve(points: Sequence[tuple[int, Tensor]]) -> Json | None:
    """A line for each participant, or a band from the lowest to the highest if there are too many."""
    if not points:
        return None
    values = torch.stack([value for _, value in points]).double()
    curve: Json = {"rounds": [t for t, _ in points], "mean": short(values.nanmean(1))}
    if values.shape[1] <= LINES_UP_TO:
        return {**curve, "each": [short(column) for column in values.T]}
    least, greatest = values.nan_to_num(torch.inf).amin(1), values.nan_to_num(-torch.inf).amax(1)
    return {**curve, "least": short(least), "greatest": short(greatest)}
