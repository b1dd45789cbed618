"""First-order influence of one source at a time (DICE-E): push its update forwards through the rounds.

    δ_j^{t+½} = Δ_j      δ^{t+1} = W^t δ^{t+½}      δ_k^{t+h+½} = (I − η H_k^{t+h}) δ_k^{t+h}
    E[0, j] = q_j ∇L(θ_j^t)ᵀ Δ_j        E[h, k] = q_k ∇L(θ_k^{t+h})ᵀ δ_k^{t+h}

Theorem 2 of Zhu et al. 2025. Departs from print: plus sign with Δ = O(θ) − θ, no further η, and the Hessian of the
participant that passes the change on (k_{s−1}, as in the proof).
"""

from collections.abc import Sequence
from functools import partial

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.influence.cascade import Cascade, Entries, at_pairs, cascade_of, scaled_updates
from cascadice.influence.checks import Sources, check_sources


def first_order(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources = None, *,
    operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The first-order influence of each source's update (DICE-E).

    One tangent per source follows all paths at once. Cost: for each source and round, one Hessian-vector product for
    each participant that the update has reached.

    Args:
        network: The network that made the rounds.
        rounds: Consecutive rounds, starting with that of the update; one hop per round.
        evaluation: What to measure, from `evaluate_on`.
        sources: Participants whose updates to score; defaults to all. For all of them, `reverse_gossip` is cheaper.
        operator: The operator to use; defaults to one with stacked averaging in memory.

    Returns:
        The cascade `value[hop, source, receiver]`; negative helped.

    Raises:
        ValueError: If the rounds do not join or are not this network's, or the optimizer has no derivative.

    Example:
        >>> first_order(network, rounds[10:11], evaluate_on(network)).value[1]
    """
    chosen = check_sources(network, rounds, evaluation, sources)
    pushed = partial(_pushed, operator or Operator(network), rounds, evaluation)
    return cascade_of("first order", network, rounds, chosen, pushed)


def _pushed(operator: Operator, rounds: Sequence[Round], evaluation: Evaluation, sources: list[int]) -> Entries:
    first, before = rounds[0], None
    change = scaled_updates(first, sources, 1.0)
    start = at_pairs(first.half, change, first.before.theta[change.nodes])
    gradient = operator.gradients_at(evaluation, start, change.nodes.tolist(), first.t)
    yield 0, change, (gradient * change.theta).sum(-1)
    for hop, round_ in enumerate(rounds, start=1):
        half = change if hop == 1 else operator.push(round_, change)
        change = before = operator.exchange(round_).push(round_, None, before, half)
        if not len(change.nodes):  # it reached nobody
            return
        gradient = operator.gradients_at(evaluation, round_.after, range(operator.network.nodes), round_.t + 1)
        yield hop, change, (gradient[change.nodes] * change.theta).sum(-1)
