"""Three ways to score what every participant contributed in each round. Negative contributions helped."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from cascadice.engine import Evaluation, Network, Operator, Round
from cascadice.engine.operator import Exchange
from cascadice.influence import by_participant, by_sample, full_horizon, whole_run_shares
from cascadice.influence.checks import check_recording
from cascadice.influence.readings import samples_of
from cascadice.influence.shares import mean_adjoint
from cascadice.influence.tables import ALL
from cascadice.influence.weighted_run import Rounds
from cascadice.influence.whole_run import WholeRun
from cascadice.influence.whole_run_shares import POINTS

DTYPES = {"round": np.int32, "participant": np.int32, "sample": np.int64, "value": np.float64}
Columns = dict[str, NDArray[Any]]

CONTRIBUTIONS: Mapping[str, str] = {
    "whole-run-shares": "shares of what the whole run did to the loss of the final models",
    "shares": "shares of what the updates of a round did to everyone's loss over the next hops",
    "horizon": "how the final models' loss changes with the weight of each update",
}


class Entry(NamedTuple):
    """Everyone's contribution in one round: of whole updates and, optionally, of each sample in `draw`, by index.

    `nodes` are the numbers of the participants; empty if all are there.
    """

    round: int
    participants: Float[Tensor, " n"]
    samples: Float[Tensor, "n samples"] | None = None
    draw: Int[Tensor, "n samples"] | None = None
    nodes: tuple[int, ...] = ()


def columns_of(entry: Entry) -> Columns:
    """The rows of an entry in a ledger: one for each participant's whole update, then one for each sample drawn."""
    values = entry.participants.detach().cpu().double().numpy()
    nodes, samples = np.array(entry.nodes or range(len(values))), np.full(len(values), ALL)
    if entry.samples is not None and entry.draw is not None:
        drawn = entry.draw.reshape(-1).numpy()
        used = drawn >= 0  # smaller batches are padded
        nodes = np.concatenate([nodes, np.repeat(nodes, entry.draw.shape[1])[used]])
        samples = np.concatenate([samples, drawn[used]])
        values = np.concatenate([values, entry.samples.detach().cpu().double().reshape(-1).numpy()[used]])
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise ValueError(f"contributions must be finite to enter a ledger; found {wrong} in round {entry.round}.")
    columns = {"round": np.full(len(values), entry.round), "participant": nodes, "sample": samples, "value": values}
    return {name: column.astype(DTYPES[name]) for name, column in columns.items()}


def by_whole_run(
    network: Network, rounds: Rounds, evaluation: Evaluation, *, points: int = POINTS, samples: bool = False,
    played: Callable[[], None] | None = None,
) -> list[Entry]:  # fmt: skip
    """Share out what the whole run did to the final models, among participants and rounds.

    These are `influence.whole_run_shares`: over all rounds they sum to f(1) − f(0), up to the error of the quadrature.
    Cost: `points` × (a run with smaller learning rates, a sweep backwards).

    Args:
        rounds: How many rounds were trained, to replay them; or all rounds of a recording.
        points: Points of the quadrature over the learning rate.
        samples: Whether to score each sample too.
        played: Called after each round that was replayed or scored.

    Returns:
        An entry for each round.

    Example:
        >>> [entry.participants for entry in by_whole_run(network, 100, evaluate_on(network))]
    """
    shares = whole_run_shares(network, rounds, evaluation, points=points, samples=samples, played=played)
    return entries_of(shares, samples)


def entries_of(shares: WholeRun, samples: bool, nodes: tuple[int, ...] = ()) -> list[Entry]:
    """Whole-run shares as one entry per round, with the shares of samples if `samples`."""
    none = [None] * len(shares.by_round)
    rows = zip(shares.by_round, *((shares.samples, shares.drawn) if samples else (none, none)), strict=True)
    return [Entry(t, scores, of, drawn, nodes) for t, (scores, of, drawn) in enumerate(rows, shares.first)]


def by_shares(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, *, points: int = 2, samples: bool = False,
    exchange: Exchange | None = None,
) -> Entry:  # fmt: skip
    """Share out what the updates of the first round did to everyone's loss after gossip, summed over all the rounds.

        share_j = ∫₀¹ (A_j(α) − q_j ∇L(θ_j(α)))ᵀ Δ_j dα
        Σ_j share_j = Σ_{h≥1} Σ_k q_k (L(θ_k^{t+h}) − L(θ_k^{t+h} had nobody worked in round t))

    These are the Aumann–Shapley shares of `influence.shares` without hop 0: an update's effect on its own participant
    before gossip is not paid for. Over one round, the effects of work and of gossip add up to the change of the loss.
    Cost: `points` × (a replay of the rounds, a sweep of reverse gossip, an evaluation gradient).

    Args:
        rounds: Consecutive rounds, one for each hop; the updates of the first are scored.
        points: Points of the quadrature over α.
        samples: Whether to score each sample too.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Returns:
        Everyone's contribution in the first round.

    Example:
        >>> by_shares(network, rounds[:2], evaluation).participants
    """
    check_recording(network, rounds)
    operator = Operator(network, exchange)
    first, adjoint = rounds[0], mean_adjoint(network, rounds, evaluation, points, direct=False, operator=operator)
    entry = Entry(first.t, by_participant(first, adjoint), nodes=network.members)
    if not samples:
        return entry
    scores = by_sample(network, first, adjoint)
    return entry._replace(samples=scores, draw=samples_of(first, scores))


def by_horizon(
    network: Network, backwards: Iterable[Round], evaluation: Evaluation, *, samples: bool = False,
    exchange: Exchange | None = None,
) -> Iterator[Entry]:  # fmt: skip
    """Score the effect of every round's updates on the final models, to first order, from the last round back.

    See `influence.full_horizon`. Cost: about two training passes a round, samples included.

    Args:
        backwards: Every round of the run, the last one first.
        samples: Whether to score each sample too.
        exchange: The exchange to use; defaults to stacked averaging in memory.

    Yields:
        Everyone's contribution in each round, from the last one back.

    Example:
        >>> [entry.participants for entry in by_horizon(network, reversed(rounds), evaluation)]
    """
    batches: list[Tensor] = []

    def remembered() -> Iterator[Round]:
        for round_ in backwards:
            batches.append(round_.draw.batch.cpu().flatten(1))
            yield round_

    operator = Operator(network, exchange)
    for scored in full_horizon(network, remembered(), evaluation, samples=samples, operator=operator):
        batch = batches.pop()
        entry = Entry(scored.t, scored.participants, nodes=network.members)
        yield entry._replace(samples=scored.samples, draw=batch) if samples else entry
