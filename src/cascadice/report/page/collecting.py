"""Everything a run's page shows, as plain data that JSON can hold."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cascadice
from cascadice import files
from cascadice.applications.plain import Json, evenly, short
from cascadice.faults import kinds_by_participant, parse_fault
from cascadice.files import checksums
from cascadice.pictures.training import LINES_UP_TO
from cascadice.report.page import final_models, influences, mixing, samples, sections
from cascadice.report.page.sentences import sentences
from cascadice.runs import store
from cascadice.runs.config import Config, sees_scale, to_json
from cascadice.runs.distributed.departures import read_departures
from cascadice.runs.distributed.gathering import gathered_manifest, gathered_metrics, members_of, mixed_up, places_of
from cascadice.runs.folder import TARGETS, TOKENS, fingerprint, read_run_config, resuming, run_fingerprint
from cascadice.runs.recording import mixed_by_rule
from cascadice.runs.round_metrics import RoundMetrics
from cascadice.runs.saved import unknown

ENDINGS = {"interrupted": "was interrupted", "stopped": "was killed", "failed": "failed", "diverged": "diverged"}
OF_RUN = ("status", "rounds", "seconds", "started", "finished", "device", "platform", "versions", "parameters")
POINTS = 400  # at most, in a curve


def collect(folder: files.Folder) -> Json:
    """Collect the plain data of a run's page, whether the run has ended or not.

    Only the run's settings are required; `notes` names whatever else is missing or cannot be read. Cost: one pass over
    the tables; no network is built.

    Args:
        folder: The folder of a run.

    Returns:
        What the page shows.

    Raises:
        ValueError: If the folder holds no run.

    Example:
        >>> collect("runs/demo")["findings"][0]  # doctest: +SKIP
        '16 participants trained mlp on digits together for 320 rounds, with no server. ...'
    """
    home, notes = Path(folder), list[str]()
    folders, config, manifest, run, nodes, metrics, injected, read = read_run(home, notes)
    length = int(manifest.get("rounds", 0))
    notes.extend(_stopped(home, manifest, config, length))
    gaps = _missing_rounds(folders)
    notes.extend(gaps + [text for part in folders for text in _missing_results(part)])
    summaries, shown = [one.summary for one in read], influences.shown(read, nodes)
    results = sections.read_sections(folders, run, notes)
    final = final_models.section(home, read)
    sections.explain_disagreement(results, final)
    sections.explain_points([*([final] if final else []), *results])
    process = manifest.get("process") or {}
    trusted_first = sorted(summaries, key=lambda one: not one.whole_run)
    scored = samples.samples(config, trusted_first, notes, folders[0], whole=not process)  # else only own batches
    shows = {section["name"]: True for section in results} | {"samples": scored}
    shows |= {"whole-run" if one.whole_run else "influence": True for one in summaries}
    recorded, present = bool(store.saved_rounds(folders[0])), [name for name, what in shows.items() if what]
    playable, own = config.rule is None and not gaps, unknown(config) if config.saved else ()
    run_of_all, processes = folders[0].parent if process else home, int(process.get("of", 1))
    offered = sections.commands(run_of_all, recorded, present, playable, own, processes)
    if config.saved and (ruled := _mixed_by_rule(folders[0])):
        offered = []
        notes.append(f"Commands compute nothing from this recording: {ruled}.")
    rounds = list(summaries[0].rounds) if summaries else list(range(max(length, 1)))
    hops = max((len(values) - 1 for one in summaries[:1] for values in one.by_hop.values()), default=1)
    network = Path(config.mixing).stem if config.mixing else config.topology
    defaults = to_json(Config())
    settings = [[name, value, value != defaults[name]] for name, value in to_json(config).items()]
    among = "" if config.saved else f" ({network} {'W' if config.mixing else 'graph'})"  # built in Python: no name
    return {
        "version": cascadice.__version__,
        "title": f"{nodes} participants train {config.model} on {config.data}{among}",
        "folder": home.name or str(home),
        "path": str(home),
        "nodes": nodes,
        "shown": shown,
        "members": _members(folders, nodes),
        "run": {**{name: manifest.get(name) for name in OF_RUN}, "settings": settings},
        "injected": {str(node): what for node, what in injected.items()},
        "flagged": sorted({node for section in results for node in section["flagged"] or ()}),
        "findings": sentences(config, nodes, length, metrics, summaries, manifest.get(TARGETS) == TOKENS),
        "final": final,
        "training": curves(metrics),
        "influence": influences.influence(read, shown),
        "mixing": mixing.mixing(folders[0], config, shown, rounds, hops, notes),
        "samples": scored,
        "sections": results,
        "commands": offered,
        "table": influences.table(read),
        "notes": notes,
    }


def _mixed_by_rule(folder: Path) -> str:
    with suppress(ValueError, OSError):  # damage is noted elsewhere
        return mixed_by_rule(folder)
    return ""


def _members(folders: Sequence[Path], nodes: int) -> list[int] | None:
    """The participants whose processes wrote these folders; None if that is everybody."""
    try:
        members = sorted({int(k) for folder in folders for k in members_of(folder)})
    except (ValueError, TypeError):
        return None
    return members if len(members) < nodes else None


def _stopped(home: Path, manifest: dict[str, Any], config: Config, rounds: int) -> list[str]:
    """A note that the run ended before its last round, and why; empty if it did not."""
    status = str(manifest.get("status", "finished"))
    if status in ("finished", "running"):
        return []
    planned = f" of {config.rounds}" if config.rounds else ""
    how = "" if status == "diverged" else f" Continue it with: {resuming(home, manifest)}"
    return [f"The run ended early: it {ENDINGS.get(status, f'is {status}')} after {rounds}{planned} rounds.{how}"]


class Run(NamedTuple):
    """A run as read from disk; `folders` are those of its processes, or its own."""

    folders: list[Path]
    config: Config
    manifest: dict[str, Any]
    fingerprint: str
    nodes: int
    metrics: list[RoundMetrics]
    injected: dict[int, str]
    influences: list[influences.Influences]


def read_run(home: Path, notes: list[str]) -> Run:
    """Read a run and all its influence; `notes` names what cannot be read. Raises ValueError if there is no run."""
    folders = places_of(home) or [home]
    config = read_run_config(folders[0])
    manifest, run = _read_manifest(folders, config, notes)
    nodes = int(manifest.get("nodes") or config.nodes or 0)
    metrics, faults = _read_metrics(folders, nodes, notes), (*config.corruptions, *config.behaviours)
    if len(folders) == 1 and manifest:  # a live page may be collected after the metrics and before the manifest
        metrics = [one for one in metrics if one.t < int(manifest.get("rounds", 0))]
    injected = kinds_by_participant(parse_fault(text, "behaviour") for text in faults)
    nodes = nodes or (len(metrics[0].train_loss) if metrics else 1)
    read = influences.read(folders, run, nodes, metrics, injected, sees_scale(config, nodes), notes)
    return Run(folders, config, manifest, run, nodes, metrics, injected, read)


def _missing_rounds(folders: Sequence[Path]) -> list[str]:
    """A note about each process that has no record of some rounds."""
    return [
        f"{folder.name} has no record of {len(away)} rounds between {away[0]} and {away[-1]}: it was away, or died "
        "before a checkpoint kept them. Nothing is known of its participants there, and influence covers only rounds "
        "that all processes recorded."
        for folder in folders
        if (away := read_departures(folder).away)
    ]


def _missing_results(home: Path) -> list[str]:
    """A note about each result that is listed but missing. A folder of results may be removed as a whole."""
    listing = checksums.list_for(home / checksums.LIST)
    paths = [] if listing is None else [home / name for name in listing.files if name.endswith(".json")]
    missing = [path for path in paths if path.parent.is_dir() and not path.exists()]
    return [f"{path.relative_to(home)} is missing: what it held is not shown." for path in missing]


def _read_manifest(folders: Sequence[Path], config: Config, notes: list[str]) -> tuple[dict[str, Any], str]:
    """The manifest, empty if it cannot be read, and the run's fingerprint."""
    try:
        if len(folders) > 1 and (wrong := mixed_up(folders)):
            notes.append(wrong)
        return gathered_manifest(folders), run_fingerprint(folders[0], config)
    except ValueError as error:
        notes.append(str(error))
        return {}, fingerprint(config)


def _read_metrics(folders: Sequence[Path], nodes: int, notes: list[str]) -> list[RoundMetrics]:
    try:
        return gathered_metrics(folders, nodes)
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
    measured = not all(bool(m.consensus.isnan()) for m in kept)  # a single process has not all models
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
