"""Data influence in decentralised learning: whose data helped whom, by how much, how many hops away."""

from cascadice import data, learning_rates, losses, models, optimizers, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import (
    Behaviour,
    DivergedError,
    Network,
    Participants,
    Round,
    consensus,
    evaluate,
    module_of,
    network,
    simulate,
)

__version__ = "0.1.0"

__all__ = [
    "Behaviour",
    "Corruption",
    "DivergedError",
    "Network",
    "Participants",
    "Round",
    "consensus",
    "data",
    "evaluate",
    "learning_rates",
    "losses",
    "models",
    "module_of",
    "network",
    "optimizers",
    "simulate",
    "topology",
]
