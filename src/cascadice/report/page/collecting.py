"""Everything a run's page shows, as plain data: JSON values only, and nothing left for a browser to compute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cascadice
from cascadice import files
from cascadice.applications.plain import Json
from cascadice.intervals import kinds_by_participant, parse_interval
from cascadice.report.page import influences, mixing, samples, sections, training
from cascadice.report.page.sentences import sentences
from cascadice.runs import store
from cascadice.runs.config import Config, to_json
from cascadice.runs.folder import read_manifest, read_run_config, run_fingerprint


def collect(folder: files.Folder) -> Json:
    """Collect what the page of a run shows, whether the run has ended or not.

    Only the run's settings are required; whatever else is missing or cannot be read is named in `notes`. The same
    folder always gives the same data, so a live page may ask again and again. Cost: one pass over the tables; no
    network is built.

    Args:
        folder: The folder that `cascadice run` wrote.

    Returns:
        Plain data for `page`.

    Raises:
        ValueError: If the folder holds no run.

    Example:
        >>> collect("runs/demo")["findings"][0]  # doctest: +SKIP
        '16 participants trained mlp on digits together for 320 rounds, with no server. ...'
    """
    home = Path(folder)
    config, notes = read_run_config(home), list[str]()
    manifest = read_manifest(home)
    metrics, injected, run = training.read_metrics(home, notes), _injected(config), run_fingerprint(home, config)
    nodes = int(manifest.get("nodes") or config.nodes or (len(metrics[0].train_loss) if metrics else 1))
    length = int(manifest.get("rounds", 0))
    read = influences.read(home, run, nodes, metrics, injected, notes)
    summaries, shown = [one.summary for one in read], influences.shown(read, nodes)
    results, scored = sections.read_sections(home, run, notes), samples.samples(config, summaries, notes)
    present = {"influence": read, "samples": scored, **{section["name"]: True for section in results}}
    rounds = list(summaries[0].rounds) if summaries else list(range(max(length, 1)))
    return {
        "version": cascadice.__version__,
        "title": _title(config, nodes),
        "folder": home.name or str(home),
        "path": str(home),
        "nodes": nodes,
        "shown": shown,
        "run": _run(config, manifest),
        "injected": {str(node): what for node, what in injected.items()},
        "flagged": sorted({node for section in results for node in section["flagged"] or ()}),
        "findings": sentences(config, nodes, length, metrics, summaries),
        "training": training.curves(metrics),
        "influence": influences.influence(read, shown),
        "mixing": mixing.mixing(home, config, shown, rounds, _hops(read), notes),
        "samples": scored,
        "sections": results,
        "commands": sections.commands(home, bool(store.saved_rounds(home)), [n for n, what in present.items() if what]),
        "table": influences.table(read),
        "notes": notes,
    }


def _title(config: Config, nodes: int) -> str:
    network = Path(config.mixing).stem if config.mixing else config.topology
    return f"{nodes} participants, {network}: {config.model} on {config.data}"


def _run(config: Config, manifest: dict[str, Any]) -> Json:
    names = ("status", "rounds", "seconds", "started", "finished", "device", "platform", "versions", "parameters")
    defaults = to_json(Config())
    settings = [[name, value, value != defaults[name]] for name, value in to_json(config).items()]
    return {**{name: manifest.get(name) for name in names}, "settings": settings}


def _injected(config: Config) -> dict[int, str]:
    """The faults that the settings injected, by participant."""
    return kinds_by_participant(parse_interval(text, "behaviour") for text in (*config.corruptions, *config.behaviours))


def _hops(read: Sequence[influences.Influences]) -> int:
    return max((len(values) - 1 for one in read[:1] for values in one.summary.by_hop.values()), default=1)
