"""A network in which some participants carry more weight: one is dominant, two are subdominant."""

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.topology.weights import keeping_the_rest

FEWEST = 4


def dominant(nodes: int) -> Float[Tensor, "n n"]:
    """W with participant 0 dominant, ⌊7n/16⌋ and ⌊10n/16⌋ subdominant (7 and 10 of 16), the rest ordinary.

    Every participant gives itself 0.5 (the dominant one 0.7) and its predecessor on a ring 0.1. Ordinary participants
    give 0.24 to the dominant and 0.08 to each subdominant one; a subdominant one gives 0.3 to the dominant and 0.1 to
    the other; the dominant one gives each of them 0.1. Row-stochastic, strongly connected.

    Raises:
        ValueError: There are fewer than 4 participants.
    """
    if nodes < FEWEST:
        raise ValueError(f"dominant needs at least {FEWEST} participants; found nodes={nodes}. Use topology 'star'.")
    leaders = sub, other = 7 * nodes // 16, 10 * nodes // 16
    given = [(k, (k - 1) % nodes, 0.1) for k in range(nodes)]
    given += [(k, 0, 0.24) for k in range(1, nodes) if k not in leaders]
    given += [(k, leader, 0.08) for k in range(1, nodes) if k not in leaders for leader in leaders]
    given += [(sub, 0, 0.3), (other, 0, 0.3), (sub, other, 0.1), (other, sub, 0.1), (0, sub, 0.1), (0, other, 0.1)]
    receivers, sources, weights = zip(*given, strict=True)
    return keeping_the_rest(
        nodes, torch.tensor(receivers), torch.tensor(sources), torch.tensor(weights, dtype=torch.float64)
    )
