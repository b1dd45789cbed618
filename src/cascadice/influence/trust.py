"""Mixing rules that trust neighbours by their influence on the receiver's own data.

    proximal:   c[k, j] = ∇L_k(θ_k^{t+½})ᵀ Δ_j^t           Definition 4, up to factors that all of k's neighbours share
    whole run:  c[k, j] = ∂L_k(θ_k^t)/∂α_j                 α_j weights every update of j in the rounds so far

Both drop neighbours as `cosine_trust` does, which compares the directions of updates and computes no influence.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cascadice.engine import Draw, Evaluation, MixingRule, Network, Operator, Participants, Round, evaluate_on
from cascadice.engine.exchange import rules
from cascadice.engine.exchange.cosine_trust import EVIDENCE, Trust, TrustRule, weigh
from cascadice.engine.exchange.geometry import inner_products, norms
from cascadice.engine.exchange.rules import NamedRule
from cascadice.influence.proximity import in_turn, own_data
from cascadice.influence.whole_run import whole_run
from cascadice.names import lookup

SAMPLES = 64  # default number of own samples to evaluate on, if a participant has so many


def proximal_trust(
    network: Network, *, samples: int | None = None, memory: float = EVIDENCE, degree: int | None = None,
    explore: bool = True,
) -> TrustRule:  # fmt: skip
    """A mixing rule by which participants drop neighbours whose updates do not lower the loss on their own data.

    k scores j's update by its inner product with the gradient of k's own loss (Definition 4), divided by two lengths
    that all of k's neighbours share: of the gradient, and of the median update that k receives. Scores accumulate, and
    neighbours are dropped and readmitted, as by `cosine_trust`; updates far larger than usual are also rejected. Cost:
    one gradient per participant and round, on `samples` of its own samples.

    Args:
        network: The network to train.
        samples: How many of its own samples each participant evaluates on per round, in rotation; 64 by default.
        memory: Weight of evidence to keep.
        degree: Greatest number of neighbours to listen to.
        explore: Whether each participant also receives one stranger's update per round; see `cosine_trust`.

    Returns:
        A rule for `simulate(network, rounds, rule=...)`.

    Raises:
        ValueError: If the network has no partition, or a participant holds fewer samples.

    Example:
        >>> *_, last = cascadice.simulate(network, 100, rule=proximal_trust(network))
    """
    evaluation, operator, everyone = _own(network, samples), Operator(network), range(network.nodes)
    size = samples or min(SAMPLES, *(len(y) for y in evaluation.y))

    def learn(trust: Trust, draw: Draw, before: Participants, half: Participants, received: Tensor) -> Trust:
        _, gradient = operator.gradients(in_turn(evaluation, draw.t, size), half, everyone)
        update = half.theta - before.theta
        usual = torch.where(received, norms(update).cpu(), torch.nan).nanmedian(1).values
        shared = (norms(gradient).cpu() * usual)[:, None]
        return weigh(trust, (inner_products(gradient, update).cpu() / shared).nan_to_num(0, 0, 0), received, memory)

    return _with_small_trust(TrustRule(network, learn, degree, explore))


def whole_run_trust(
    network: Network, *, every: int = 50, samples: int | None = None, degree: int | None = None
) -> TrustRule:
    """A mixing rule by which participants drop those whose updates harmed them over all rounds so far.

    Every `every` rounds, each participant computes ∂L_k/∂α_j on its own data, through all paths and rounds so far, and
    listens to the neighbours for which it is negative. Cost: each time, for each participant, one backward sweep over
    the rounds so far, about two trainings; over T rounds (T / every) · n / 2 times two trainings. All rounds stay in
    memory. It needs the whole network's data: use it to learn what such knowledge would bring, not in deployment.

    Args:
        network: The network to train.
        every: Rounds between two sweeps.
        samples: How many of its own samples each participant evaluates on; 64 by default.
        degree: Greatest number of neighbours to listen to.

    Returns:
        A rule for `simulate(network, rounds, rule=...)`.

    Raises:
        ValueError: If the network has no partition, or `every` is less than 1.

    Example:
        >>> *_, last = cascadice.simulate(network, 100, rule=whole_run_trust(network, every=25))
    """
    if every < 1:
        raise ValueError(f"every must be at least one round; found {every}.")
    evaluation, rounds = _own(network, samples), list[Round]()
    latest: list[tuple[Draw, Participants, Participants]] = []

    def learn(trust: Trust, draw: Draw, before: Participants, half: Participants, received: Tensor) -> Trust:
        if latest:  # it is complete now: the rule has chosen its W, and `before` is its result
            drawn, start, sent = latest.pop()
            assert rule.mixing is not None
            loss = before.theta.new_zeros(network.nodes)
            rounds.append(Round(drawn._replace(W=rule.mixing), start, sent, tree_map(torch.clone, before), loss))
        latest.append((draw, *tree_map(torch.clone, (before, half))))
        return trust if not rounds or len(rounds) % every else _trust_by_whole_run(network, rounds, evaluation, trust)

    rule = _with_small_trust(TrustRule(network, learn, degree, explore=False))
    return rule


def _trust_by_whole_run(network: Network, rounds: list[Round], evaluation: Evaluation, trust: Trust) -> Trust:
    """Trust by everyone's whole-run influence on everyone; one sweep per participant, for all networks of a fleet."""
    size = network.nodes // network.blocks
    total = torch.zeros_like(trust.total)
    for k in range(size):
        q = torch.zeros_like(network.q)
        q[k::size] = 1
        scores = whole_run(replace(network, q=q), rounds, evaluation, samples=False).participants
        for first in range(0, network.nodes, size):
            total[first + k, first : first + size] = scores[first : first + size]
    nodes = torch.arange(network.nodes)
    others = (nodes[:, None] // size == nodes // size) & (nodes[:, None] != nodes)
    return trust._replace(total=total * others, weight=others.to(total), trusted=(total < 0) | ~others)


def _own(network: Network, samples: int | None) -> Evaluation:
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # own_data raises without a partition
    return evaluate_on(network, own_data(network, samples or min(4 * SAMPLES, least)))


def _with_small_trust(rule: TrustRule) -> TrustRule:
    """The rule without the buffer for sums of updates, which it does not need."""
    rule.trust = rule.trust._replace(recent=rule.trust.recent[:, :0])
    return rule


RULES: Mapping[str, NamedRule] = {
    **rules.RULES,
    "proximal-trust": NamedRule(
        proximal_trust, True, True, "listen to those whose updates lower the loss on the receiver's own data"
    ),
    "whole-run-trust": NamedRule(
        whole_run_trust, True, True, "listen to those whose updates helped over all rounds so far; costs many trainings"
    ),
}


def build(name: str, network: Network) -> MixingRule:
    """Make the named rule for a run of this network; an unknown name raises ValueError and lists the known ones."""
    return lookup(RULES, name, "rule").make(network)
