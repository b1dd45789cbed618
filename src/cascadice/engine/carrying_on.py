"""Training in step with other processes, some of which may be slow, dead, or new."""

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
    """`simulate` among other processes; rounds that the others finished without this one are left out.

    A process that was held up would otherwise stay behind, and nobody would use what it sends.

    Args:
        network: The part of this process.
        rounds: Where to stop.
        exchange: Its exchange, with the policy "carry-on".
        start: The number of the first round.
        participants: What they carry before it; the initial parameters if None.
        how: Further arguments of `simulate`.

    Yields:
        The rounds from `start` up to, not including, `rounds`, in which this process took part.

    Example:
        >>> joined = exchange.listen(mine.initial, timeout=10.0)
        >>> for round in carry_on(mine, 100, exchange, start=joined.start, participants=joined.participants):
        ...     print(round.t, float(round.loss.mean()))
    """
    operator, here = Operator(network, exchange), participants or network.initial
    exchange.begin(start)
    while start < rounds:
        for round_ in simulate(network, rounds, start=start, participants=here, operator=operator, **how):
            missed = exchange.behind()  # before the caller takes its time
            yield round_
            start, here = round_.t + 1, round_.after
            if missed:
                exchange.skip(missed)
                start += missed
                break
