"""Data influence in decentralised learning: whose data helped whom, by how much, and how many hops away."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascadice import data, influence, learning_rates, loggers, losses, models, optimizers, topology
    from cascadice.data.corruption import Corruption
    from cascadice.engine import (
        Behaviour,
        DivergedError,
        Network,
        Participants,
        Recorder,
        Round,
        consensus,
        evaluate,
        module_of,
        network,
        simulate,
    )
    from cascadice.report.from_python import report
    from cascadice.runs import store
    from cascadice.runs.saving import save
    from cascadice.runs.scores import score

__version__ = "0.2.0"

__all__ = [
    "Behaviour", "Corruption", "DivergedError", "Network", "Participants", "Recorder", "Round", "consensus", "data",
    "evaluate", "influence", "learning_rates", "loggers", "losses", "models", "module_of", "network", "optimizers",
    "report", "save", "score", "simulate", "store", "topology",
]  # fmt: skip

_MODULES = ("data", "influence", "learning_rates", "loggers", "losses", "models", "optimizers", "report", "topology")
_HOMES = {"Corruption": "data.corruption", "save": "runs.saving", "score": "runs.scores"}  # others live in `engine`

# names of version 0.1.0; those of `cascadice.influence` and of the applications are in CHANGELOG.md
_RENAMED = {
    "configuration": "cascadice.runs.config", "recipes": "cascadice.runs.recipes",
    "recordings": "cascadice.runs.recording", "experiments": "cascadice_experiments",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, and `cascadice --help` should not."""
    if name in _RENAMED:  # not an AttributeError, whose text `from cascadice import name` would not show
        raise ImportError(f"cascadice.{name} was renamed to {_RENAMED[name]} in 0.2.0; see CHANGELOG.md.")
    if name not in __all__:
        raise AttributeError(f"module 'cascadice' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"cascadice.{name}")
    if name == "store":
        return import_module("cascadice.runs.store")
    value = getattr(import_module(f"cascadice.{_HOMES.get(name, 'engine')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
