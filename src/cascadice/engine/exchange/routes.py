"""What a mixing matrix asks of one process: to whom it sends, and from whom it hears."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Routes(NamedTuple):
    """What a mixing matrix asks of one process.

    Attributes:
        W, mine: The matrix, and the rows of own participants.
        sends: The processes that hear the same own participants, by these.
        awaited: The processes that own participants hear.
        sources: Everybody whom own participants hear.
    """

    W: Float[Tensor, "n n"]
    mine: Float[Tensor, "m n"]
    sends: dict[tuple[int, ...], list[int]]
    awaited: list[int]
    sources: frozenset[int]


def routes(W: Float[Tensor, "n n"], parts: Sequence[Tensor], rank: int) -> Routes:
    """What W, a dense matrix, asks of the process with this rank; `parts` are the participants of each."""
    own, mine, sends = parts[rank], W[parts[rank]], dict[tuple[int, ...], list[int]]()
    peers = [peer for peer in range(len(parts)) if peer != rank]
    for peer in peers:
        heard = own[(W[parts[peer]][:, own] != 0).any(0)]
        if len(heard):
            sends.setdefault(tuple(heard.tolist()), []).append(peer)
    awaited = [peer for peer in peers if any_weight(mine[:, parts[peer]])]
    return Routes(W, mine, sends, awaited, frozenset((mine != 0).any(0).nonzero().flatten().tolist()))


def any_weight(weights: Tensor) -> bool:
    """Whether any of these entries of W is not zero."""
    return bool((weights != 0).any())
