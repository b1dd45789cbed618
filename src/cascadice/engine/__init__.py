"""Algorithm 1 of the paper: participants that train locally and gossip, one pure round at a time."""

from cascadice.engine.assembly import network
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.fast.rows import STRATEGIES
from cascadice.engine.learner import Learner, Participants
from cascadice.engine.networks import Network, draw, load, module_of
from cascadice.engine.rounds import Draw, MixingRule, Round, consensus, mix
from cascadice.engine.simulation import DivergedError, Metrics, evaluate, play, simulate

__all__ = [
    "STRATEGIES",
    "Behaviour",
    "DivergedError",
    "Draw",
    "Learner",
    "Metrics",
    "MixingRule",
    "Network",
    "Participants",
    "Round",
    "consensus",
    "draw",
    "evaluate",
    "load",
    "mix",
    "module_of",
    "network",
    "play",
    "simulate",
]
