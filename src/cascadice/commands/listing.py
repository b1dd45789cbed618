"""`cascadice list`: every name that commands accept, with a line about it; modules are imported when listed."""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from cascadice.names import lookup
from cascadice.runs.recipes import RECIPES, describe


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"any of: {', '.join(LISTS)} (all of them)")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    chosen = [(name, lookup(LISTS, name, "list")) for name in args.what or LISTS]
    console = Console()
    for title, descriptions in chosen:
        table = Table("name", "what it is", title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name, description in descriptions().items():
            table.add_row(name, description)
        console.print(table)
        console.print()


def _entries(module: str, table: str) -> dict[str, str]:

    def description(entry: Any) -> str:  # an entry is its description, or has one, or is (function, description)
        return str(entry if isinstance(entry, str) else getattr(entry, "description", None) or entry[1])

    entries = getattr(import_module(f"cascadice.{module}"), table)
    return {name: description(entry) for name, entry in entries.items()}


def _topologies() -> Mapping[str, str]:
    from cascadice.topology import TOPOLOGIES

    options = {name: f" (options: {', '.join(t.options)})" if t.options else "" for name, t in TOPOLOGIES.items()}
    return {name: t.description + options[name] for name, t in TOPOLOGIES.items()}


def _estimates() -> Mapping[str, str]:
    from cascadice.applications.validate.estimates import ESTIMATES

    return {name: kind.description + " (only if named)" * (not kind.unasked) for name, kind in ESTIMATES.items()}


LISTS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "recipes": lambda: {name: describe(name) for name in RECIPES},
    "topologies": _topologies,
    "datasets": partial(_entries, "data", "DATASETS"),
    "models": partial(_entries, "models", "MODELS"),
    "losses": partial(_entries, "losses", "LOSSES"),
    "optimizers": partial(_entries, "optimizers", "OPTIMIZERS"),
    "schedules": lambda: {
        form.text: form.description for form in import_module("cascadice.learning_rates").SCHEDULES.values()
    },
    "partitions": partial(_entries, "data.partition", "PARTITIONS"),
    "corruptions": partial(_entries, "data.corruption", "CORRUPTIONS"),
    "behaviours": partial(_entries, "engine.behaviours", "BEHAVIOURS"),
    "compressions": partial(_entries, "engine.compression", "COMPRESSIONS"),
    "rules": partial(_entries, "influence.trust", "RULES"),
    "strategies": lambda: {"auto": "chosen by model, batch and device"} | _entries("engine.assembly", "STRATEGIES"),
    "kinds": lambda: (
        _entries("influence.estimators", "WHOLE_RUN_KINDS")
        | _entries("influence.estimators", "PAIRS")
        | _entries("influence.estimators", "ESTIMATORS")
    ),
    "contributions": partial(_entries, "applications.reward.contributions", "CONTRIBUTIONS"),
    "payouts": partial(_entries, "applications.reward.payouts", "PAYOUT_RULES"),
    "levels": partial(_entries, "applications.forget.idea", "LEVELS"),
    "estimates": _estimates,
}
