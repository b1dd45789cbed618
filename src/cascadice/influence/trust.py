"""Mixing rules that trust by influence on the receiver's own data: of one round, or of all rounds so far.

    proximal:   c[k, j] = ∇L_k(θ_k^{t+½})ᵀ Δ_j^t           Definition 4, but for factors that k's neighbours share
    whole run:  c[k, j] = ∂L_k(θ_k^t)/∂α_j                 α_j weights every update of j in the rounds so far

Both drop neighbours as `cosine_trust` does, which computes no influence: it compares the directions of updates.
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

SAMPLES = 64  # of everybody's own, where it holds as many


def proximal_trust(
    network: Network,
    *,
    samples: int | None = None,
    memory: float = EVIDENCE,
    degree: int | None = None,
    explore: bool = True,
) -> TrustRule:
    """A mixing rule by which participants drop neighbours whose updates do not lower the loss on their own data.

    k scores j's update by its inner product with the gradient of k's own loss (Definition 4), divided by two lengths
    that all of k's neighbours share: of the gradient, and of the median update that k receives. Scores accumulate, and
    neighbours are dropped and let in, as by `cosine_trust`; updates far larger than usual are not let in either. Cost:
    one gradient on `samples` of everybody's own data per round.

    Args:
        samples: How many of its own samples each participant evaluates on in a round, others in each; 64 by default.
        memory: Weight of evidence to keep.
        degree: Greatest number of neighbours to listen to.
        explore: Whether each participant also receives one stranger's update a round; see `cosine_trust`.

    Returns:
        A rule for `simulate(network, rounds, rule=...)`.

    Raises:
        ValueError: If participants have no data of their own, or fewer samples.

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

    After every `every` rounds, each participant learns ∂L_k/∂α_j on its own data, through all paths and rounds from the
    first to this one, and listens to the neighbours for which it is negative. Cost: each time, for each participant,
    one sweep back over the rounds so far, about two trainings; so (T / every) · n / 2 times two trainings over T rounds
    in all, and all rounds are kept in memory. It takes a whole network's data: use it to learn what such knowledge is
    worth, not in the field.

    Args:
        every: Rounds between two sweeps.
        samples: How many of its own samples each participant evaluates on; 64 by default.

    Raises:
        ValueError: If participants have no data of their own, or `every` is not positive.

    Example:
        >>> *_, last = cascadice.simulate(network, 100, rule=whole_run_trust(network, every=25))
    """
    if every < 1:
        raise ValueError(f"every must be at least one round; found {every}.")
    evaluation, kept, sent = _own(network, samples), list[Round](), list[tuple[Draw, Participants, Participants]]()

    def learn(trust: Trust, draw: Draw, before: Participants, half: Participants, received: Tensor) -> Trust:
        if sent:
            drawn, was, worked = sent.pop()
            assert rule.mixing is not None  # the rule chose one after the round was sent
            loss = before.theta.new_zeros(network.nodes)
            kept.append(Round(drawn._replace(W=rule.mixing), was, worked, tree_map(torch.clone, before), loss))
        sent.append((draw, *tree_map(torch.clone, (before, half))))
        return trust if not kept or len(kept) % every else _over_all(network, kept, evaluation, trust)

    rule = _with_small_trust(TrustRule(network, learn, degree, explore=False))
    return rule


def _over_all(network: Network, rounds: list[Round], evaluation: Evaluation, trust: Trust) -> Trust:
    """What everybody's updates did to everybody over these rounds; the n-th participants of all networks at once."""
    size = network.nodes // network.blocks
    total = torch.zeros_like(trust.total)
    for place in range(size):
        on = torch.zeros_like(network.q)
        on[place::size] = 1
        scores = whole_run(replace(network, q=on), rounds, evaluation, samples=False).participants
        for first in range(0, network.nodes, size):
            total[first + place, first : first + size] = scores[first : first + size]
    places = torch.arange(network.nodes)
    others = (places[:, None] // size == places // size) & (places[:, None] != places)
    return trust._replace(total=total * others, weight=others.to(total), trusted=(total < 0) | ~others)


def _own(network: Network, samples: int | None) -> Evaluation:
    least = min((len(part) for part in network.partition or ()), default=SAMPLES)  # without one, own_data refuses
    return evaluate_on(network, own_data(network, samples or min(4 * SAMPLES, least)))


def _with_small_trust(rule: TrustRule) -> TrustRule:
    """The rule without room for sums of updates, which it does not need."""
    rule.trust = rule.trust._replace(recent=rule.trust.recent[:, :0])
    return rule


RULES: Mapping[str, NamedRule] = {
    **rules.RULES,
    "proximal-trust": NamedRule(
        proximal_trust, True, True, "listen to those whose updates lower the loss on the receiver's own data"
    ),
    "whole-run-trust": NamedRule(
        whole_run_trust, True, True, "listen to those whose updates helped over all rounds so far; many times the cost"
    ),
}


def build(name: str, network: Network) -> MixingRule:
    """Make the named rule for a run of this network; an unknown name raises ValueError and lists the known ones."""
    return lookup(RULES, name, "rule").make(network)
