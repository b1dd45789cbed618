"""Train in step with other processes, some of which may be slow, dead or new."""

from collections.abc import Iterator
from typing import Any

from cascadice.engine.exchange.messages import Messages
from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.operator import Operator
from cascadice.engine.rounds import Round
from cascadice.engine.simulation import simulate


def carry_on(
    network: Network, rounds: int, exchange: Messages, *, start: int = 0, participants: Participants | None = None,
    **how: Any,
) -> Iterator[Round]:  # fmt: skip
    """`simulate` among other processes, skipping rounds that the others have finished without this one.

    A process that was delayed would otherwise stay behind, and nobody would use what it sends. `how` takes the further
    arguments of `simulate`; the policy of the exchange must be "carry-on".

    Example:
        >>> joined = exchange.listen(mine.initial, timeout=10.0)
        >>> for round in carry_on(mine, 100, exchange, start=joined.start, participants=joined.participants):
        ...     print(round.t, float(round.loss.mean()))
    """
    operator, here = Operator(network, exchange), participants or network.initial
    exchange.begin(start)
    while start < rounds:
        for round_ in simulate(network, rounds, start=start, participants=here, operator=operator, **how):
            missed = exchange.behind()  # asked before the caller uses the round, which may take long
            yield round_
            start, here = round_.t + 1, round_.after
            if missed:
                exchange.skip(missed)
                start += missed
                break
