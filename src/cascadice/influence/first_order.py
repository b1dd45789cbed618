"""First order, source by source (DICE-E): push the update forwards through the rounds.

    δ_j^{t+½} = Δ_j      δ^{t+1} = W^t δ^{t+½}      δ_k^{t+h+½} = (I − η H_k^{t+h}) δ_k^{t+h}
    E[0, j] = q_j ∇L(θ_j^t)ᵀ Δ_j        E[h, k] = q_k ∇L(θ_k^{t+h})ᵀ δ_k^{t+h}

Theorem 2 of Zhu et al. 2025. Departs from print: plus sign with Δ = O(θ) − θ, no further η, and the Hessian of the
participant that passes the change on (k_{s−1}, as in the proof).
"""

from collections.abc import Sequence

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.influence.cascade import Cascade, Entries, at_pairs, cascade_values, scaled_updates
from cascadice.influence.checks import Sources, check_sources


def first_order(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sources = None, *,
    operator: Operator | None = None,
) -> Cascade:  # fmt: skip
    """The first-order influence of each source's update (DICE-E): a tangent is pushed through the rounds.

    One tangent for each source follows all paths at once. Cost: for each source, a Hessian-vector product for everyone
    it reached, in each round.

    Args:
        rounds: Consecutive rounds, from the one of the update on; their number is the number of hops.
        sources: Whose updates; everybody's unless given. For all sources at once `reverse_gossip` is cheaper.
        operator: The operator to use, where its exchange is not the one in memory.

    Returns:
        The cascade `value[hop, source, receiver]`; negative helped.

    Example:
        >>> first_order(network, rounds[10:11], evaluate_on(network)).value[1]
    """
    chosen, op = check_sources(network, rounds, sources), operator or Operator(network)

    def entries(group: list[int]) -> Entries:
        first, before = rounds[0], None
        change = scaled_updates(first, group, 1.0)
        start = at_pairs(first.half, change, first.before.theta[change.nodes])
        gradient = op.gradients_at(evaluation, start, change.nodes.tolist(), first.t)
        yield 0, change, (gradient * change.theta).sum(-1)
        for hop, round_ in enumerate(rounds, start=1):
            half = change if hop == 1 else op.push(round_, change)
            change = before = op.exchange(round_).push(round_, None, before, half)
            if not len(change.nodes):  # it reached nobody
                return
            gradient = op.gradients_at(evaluation, round_.after, range(network.nodes), round_.t + 1)
            yield hop, change, (gradient[change.nodes] * change.theta).sum(-1)

    return Cascade("first order", rounds[0].t, tuple(chosen), cascade_values(network, rounds, chosen, entries))
