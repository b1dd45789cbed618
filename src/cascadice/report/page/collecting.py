"""All that a run's page shows, as plain data: what JSON can say, and nothing that a browser would have to compute."""

from pathlib import Path
from typing import Any

import cascadice
from cascadice import files
from cascadice.intervals import parse_interval
from cascadice.report.page import asking, influences, mixing, samples, sections, training
from cascadice.report.page.numbers import Json
from cascadice.report.page.sentences import sentences
from cascadice.runs import store
from cascadice.runs.config import Config, fingerprint, to_json
from cascadice.runs.folder import CONFIG, MANIFEST, read_config
from cascadice.runs.summary import InfluenceSummary


def collect(folder: files.Folder) -> Json:
    """What there is to show of the run in a folder, whether it has ended or not.

    Anything but its settings may be absent; what cannot be read is told in `notes`. Pure: the same folder, the same
    data, so that a page may ask again and again. Cost: a pass over the tables; no network is built.
    """
    place = Path(folder)
    if not (place / CONFIG).exists():
        raise ValueError(f"{place} holds no run: {CONFIG} is not there. Name the folder that `cascadice run` wrote.")
    config, notes = read_config(place), list[str]()
    manifest = files.read_json(place / MANIFEST) if (place / MANIFEST).exists() else {}
    measures = training.measures(place, notes)
    known, run = _known(config), fingerprint(config)
    nodes = int(manifest.get("nodes") or config.nodes or (len(measures[0].train_loss) if measures else 1))
    asked = influences.read(place, run, nodes, measures, known, notes)
    shown = influences.shown(asked, nodes)
    told = sections.read(place, run, notes)
    length, scored = int(manifest.get("rounds", 0)), samples.samples(config, [one.findings for one in asked], notes)
    there = [*(["influence"] if asked else []), *(["samples"] if scored else []), *(one["name"] for one in told)]
    return {
        "version": cascadice.__version__,
        "title": _title(config, nodes),
        "folder": place.name or str(place),
        "path": str(place),
        "nodes": nodes,
        "shown": shown,
        "run": _run(config, manifest),
        "known": {str(node): what for node, what in known.items()},
        "flagged": sections.flagged(told),
        "findings": sentences(config, nodes, length, measures, [found.findings for found in asked]),
        "training": training.curves(measures),
        "influence": influences.influence(asked, shown),
        "mixing": mixing.mixing(place, config, shown, _rounds_shown(asked, length), _hops(asked), notes),
        "samples": scored,
        "sections": told,
        "commands": asking.commands(place, bool(store.recorded(place)), there),
        "table": influences.table(asked),
        "notes": notes,
    }


def _title(config: Config, nodes: int) -> str:
    network = Path(config.mixing).stem if config.mixing else config.topology
    return f"{nodes} participants, {network}: {config.model} on {config.data}"


def _run(config: Config, manifest: dict[str, Any]) -> Json:
    names = ("status", "rounds", "seconds", "started", "finished", "device", "platform", "versions", "parameters")
    usual = to_json(Config())
    settings = [[name, value, value != usual[name]] for name, value in to_json(config).items()]
    return {**{name: manifest.get(name) for name in names}, "settings": settings}


def _known(config: Config) -> dict[int, str]:
    """What participants were told to do wrong, from the settings alone."""
    found: dict[int, list[str]] = {}
    for text in (*config.corruptions, *config.behaviours):
        spell = parse_interval(text, "behaviour")
        for node in spell.nodes:
            found.setdefault(node, []).append(spell.kind)
    return {node: ", ".join(kinds) for node, kinds in found.items()}


def _rounds_shown(asked: list[influences.Asked], length: int) -> list[int]:
    """The rounds whose network the page draws: those that were asked about, or some from all over the run."""
    found: InfluenceSummary | None = asked[0].findings if asked else None
    return list(found.rounds) if found is not None else list(range(max(length, 1)))


def _hops(asked: list[influences.Asked]) -> int:
    return max((len(values) - 1 for found in asked[:1] for values in found.findings.by_hop.values()), default=1)
