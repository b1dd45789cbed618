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

__version__ = "0.2.0"

__all__ = [
    "Behaviour", "Corruption", "DivergedError", "Network", "Participants", "Recorder", "Round", "consensus", "data",
    "evaluate", "influence", "learning_rates", "losses", "models", "module_of", "network", "optimizers", "simulate",
    "store", "topology",
]  # fmt: skip

_MODULES = {"store": "runs.store"} | {
    name: name for name in ("data", "influence", "learning_rates", "losses", "models", "optimizers", "topology")
}
_HOMES = {"Corruption": "data.corruption"}  # the others live in `engine`


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, and `cascadice --help` should not."""
    if name not in __all__:
        raise AttributeError(f"module 'cascadice' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"cascadice.{_MODULES[name]}")
    value = getattr(import_module(f"cascadice.{_HOMES.get(name, 'engine')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
