"""Data influence in decentralised learning: whose data helped whom, by how much, how many hops away."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascadice import data, influence, learning_rates, losses, models, optimizers, topology
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
    from cascadice.runs import store

__version__ = "0.1.0"

__all__ = [
    "Behaviour",
    "Corruption",
    "DivergedError",
    "Network",
    "Participants",
    "Recorder",
    "Round",
    "consensus",
    "data",
    "evaluate",
    "influence",
    "learning_rates",
    "losses",
    "models",
    "module_of",
    "network",
    "optimizers",
    "simulate",
    "store",
    "topology",
]

_MODULES = ("data", "influence", "learning_rates", "losses", "models", "optimizers", "topology")


def __getattr__(name: str) -> Any:
    """Load what is used when it is used: torch takes seconds, and `cascadice --help` should not."""
    if name not in __all__:
        raise AttributeError(f"module 'cascadice' has no attribute {name!r}")
    if name == "store":
        return import_module("cascadice.runs.store")
    if name in _MODULES:
        return import_module(f"cascadice.{name}")
    found = getattr(import_module("cascadice.data.corruption" if name == "Corruption" else "cascadice.engine"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
