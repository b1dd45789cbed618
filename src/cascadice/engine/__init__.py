"""Algorithm 1 of the paper: participants that train locally and gossip, one pure round at a time.

`operator` says what a round is; everything else draws, records, measures or differentiates rounds.
"""

from cascadice.engine.assembly import network
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.evaluation import Evaluation, evaluate_on
from cascadice.engine.exchange.stacked import mix
from cascadice.engine.fleets import blocks, by_network, fleet
from cascadice.engine.learner import Learner, Participants
from cascadice.engine.metrics import Metrics, evaluate
from cascadice.engine.networks import Network, draw, load, module_of
from cascadice.engine.operator import STRATEGIES, Operator
from cascadice.engine.recorder import Recorder
from cascadice.engine.rounds import Draw, MixingRule, Round, consensus
from cascadice.engine.simulation import DivergedError, simulate
from cascadice.engine.weighting import with_weights

__all__ = [
    "STRATEGIES", "Behaviour", "DivergedError", "Draw", "Evaluation", "Learner", "Metrics", "MixingRule", "Network",
    "Operator", "Participants", "Recorder", "Round", "blocks", "by_network", "consensus", "draw", "evaluate",
    "evaluate_on", "fleet", "load", "mix", "module_of", "network", "simulate", "with_weights",
]  # fmt: skip
