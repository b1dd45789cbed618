"""Predict how much memory a computation takes, before it starts; `benchmarks/memory.py` checks the predictions.

Everything is counted in copies of all participants' parameters and in activations. The factors below are the numbers of
copies that the engine and torch hold at once.
"""

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from cascadice.engine.backwards import bytes_kept, bytes_of, segment
from cascadice.engine.metrics import CHUNK
from cascadice.engine.networks import Network
from cascadice.engine.step_memory import BACKWARD, TEMPORARY, activations_of, bytes_of_step, rows_at_once
from cascadice.influence import cascade, retraining
from cascadice.optimizers import Optimizer
from cascadice.runs.memory import Need
from cascadice.topology import links

if TYPE_CHECKING:
    from cascadice.runs.question import Question

LINK = 500  # bytes of a link in a graph, its matrix and its description
INDICES = 3 * 8  # bytes of a sample's place in a batch: as drawn, stacked and moved
ROUND = 1200  # bytes of a round's metrics, beside 8 for each participant
PERTURBED = 5  # copies of rows that are replayed: before, after, their differences, their mixture, their gradients

FEWER = "Use fewer participants (--nodes) or a smaller model (--model-options)"
SHORTER = "Use smaller batches (--batch-size) or fewer local steps (--local-steps)"
LESS = "Use fewer test samples (--eval-samples) or fewer participants"


def of_graph(topology: str, nodes: int, options: dict[str, Any]) -> list[Need]:
    """The memory of a topology's graph, by its number of links."""
    per_node = {"complete": nodes, "erdos-renyi": nodes * float(options.get("probability") or 0)}.get(topology, 0)
    degree = max(per_node, float(options.get("degree") or 0), nodes.bit_length())
    return [Need("its links", int(LINK * nodes * min(degree, nodes)), "Use a sparser topology or fewer participants")]


def state_of(optimizer: Optimizer) -> int:
    """How many numbers an optimizer keeps per parameter."""
    row = torch.zeros(1, optimizer.size or 64)
    return sum(value.numel() for value in optimizer.init(row).values()) // row.numel()


def of_network(
    nodes: int, parameters: int, state: int, size: int, steps: int, batch: int, own: bool = False
) -> list[Need]:
    """The memory of a network before it trains.

    `parameters` are those of one participant, `state` the numbers that its optimizer keeps for each, `size` the bytes
    of a number; `own`: whether each participant draws its own initial parameters.
    """
    # the model is copied to train and to evaluate; parameters that were drawn one by one are stacked, then copied
    carried = (nodes * (1 + state) + (2 * nodes if own else 4)) * parameters * size
    drawn = INDICES * nodes * steps * batch
    return [
        Need(f"the parameters of {nodes:,} participants, {parameters:,} each,", carried, FEWER),
        Need(f"the batches of {steps:,} local steps", drawn, SHORTER),
    ]


def of_training(network: Network, rounds: int, window: int = 0, recorded: bool = False) -> list[Need]:
    """The memory that training takes beside the network: rounds, local work, evaluation or saving, metrics."""
    theta = network.initial.theta
    once, everybody = bytes_of(network.initial), theta.nbytes
    saved = once + (once + everybody if recorded else 0)
    samples = min(CHUNK, len(network.data.test))
    together = min(rows_at_once(network, network.nodes), max(1, 2**17 // samples))
    evaluated = together * samples * activations_of(network).most * theta.element_size()
    work = Need("local work", bytes_of_step(network), SHORTER)
    either = (work, Need("evaluation", evaluated, FEWER), Need("copies to be saved", saved, FEWER))
    return [
        Need(f"{window + 2} rounds in memory", (window + 2) * (once + everybody), FEWER),
        max(either, key=lambda part: part.bytes),
        Need("metrics", rounds * (ROUND + 8 * network.nodes), "Use fewer rounds (--rounds)"),
    ]


def of_question(network: Network, question: "Question") -> list[Need]:
    """The memory that influence in recorded rounds takes: those rounds, one more being read, and the scoring."""
    read = (question.rounds_needed + 1) * (2 * bytes_of(network.initial) + network.initial.theta.nbytes)
    return [Need("recorded rounds", read, "Ask for fewer --hops"), *of_influence(network, question)]


def of_influence(network: Network, question: "Question") -> list[Need]:
    """The memory that scoring a round takes beside the rounds it looks at."""
    samples = question.eval_samples or len(network.data.test)
    held = Need("the test samples", 2 * samples * prod(network.data.test.shape) * 4, LESS)
    each = (_estimator(network, question, kind, samples) for kind in question.kinds)
    return [held, max(each, key=lambda part: part.bytes)]


def _estimator(network: Network, question: "Question", kind: str, samples: int) -> Need:
    theta, once, hops = network.initial.theta, bytes_of(network.initial), question.hops
    gradients = _gradients(network, samples)
    if kind == "shares" or (kind == "first-order" and question.samples):
        kept = (hops + 3) * theta.nbytes + 2 * once + (2 * hops * once if kind == "shares" else 0)
        return Need("adjoints and gradients", kept + max(gradients, 2 * bytes_of_step(network)), FEWER)
    together = min(len(question.sources or range(network.nodes)), max(1, cascade.MEMORY // theta.nbytes))
    reach = int(links(network.mixing(0)).sources.bincount().max())  # of those who hear one, itself too
    pairs, working = (together * min(network.nodes, reach**far) for far in (hops, max(0, hops - 1)))
    work = 2 * bytes_of_step(network, working) if hops > 1 else 0
    passes = max(gradients, _losses(network, pairs, samples) if kind == "truth" else 0, work)
    rows = PERTURBED * pairs * once // network.nodes
    return Need(f"{kind} influence of {together} sources at a time", rows + theta.nbytes + passes, LESS)


def _gradients(network: Network, eval_samples: int) -> int:
    size, together = network.initial.theta.element_size(), rows_at_once(network, network.nodes)
    return together * (BACKWARD * eval_samples * activations_of(network).all + TEMPORARY * network.learner.size) * size


def _losses(network: Network, rows: int, eval_samples: int) -> int:
    together = rows_at_once(network, rows)
    return together * eval_samples * activations_of(network).most * network.initial.theta.element_size()


def of_whole_run(network: Network, rounds: int, question: "Question") -> list[Need]:
    """The memory that whole-run influence takes: the rounds kept, a backward sweep, and the scores."""
    drawn = network.batches(0)[0].numel() if question.samples else 0
    scores = len(question.alphas) * rounds * network.nodes * (8 + 16 * drawn)
    gradients = _gradients(network, question.eval_samples or len(network.data.test))
    sweep = 4 * bytes_of(network.initial) + max(gradients, 2 * bytes_of_step(network))
    return [
        Need("rounds that are kept", bytes_kept(network, rounds, segment(network, rounds)), FEWER),
        Need("the sweep backwards", sweep, LESS),
        Need("scores", scores, "Leave out --samples"),
    ]


def of_retraining(network: Network, rounds: int, eval_samples: int, networks: int) -> list[Need]:
    """The memory of one call of `retrain` on this many networks, with as many side by side as it trains."""
    once = bytes_of(network.initial)
    count = min(networks, retraining.side_by_side(network))
    parts = of_training(network, rounds)
    return [
        Need("the parameters of networks trained together", count * once, FEWER),
        *(part._replace(bytes=part.bytes * count) for part in parts[:2]),
        Need("the loss on the test samples", _losses(network, network.nodes, eval_samples), LESS),
    ]
