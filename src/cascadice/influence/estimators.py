"""Estimators by name, and `score_rounds`, which applies them to rounds from training, a recording or any loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Evaluation, Network, Round
from cascadice.engine.operator import Exchange, Operator
from cascadice.influence.cascade import Cascade
from cascadice.influence.checks import (
    Sources,
    check_many,
    check_numbers,
    check_rounds,
    check_samples_are_separate,
    check_sources,
    numbers_of,
)
from cascadice.influence.first_order import first_order
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.reverse_gossip import by_participant, reverse_sweep
from cascadice.influence.shares import shares, shares_of_samples
from cascadice.influence.tables import Table, concatenate, table_of, table_of_participants, table_of_samples
from cascadice.influence.truth import truth, truth_of_samples
from cascadice.names import lookup


class RoundInfluence(NamedTuple):
    """The influence of the updates of one round."""

    round: Round
    cascades: tuple[Cascade, ...]
    """by hop and receiver"""
    participants: dict[str, Tensor]
    """kind -> [n], over all hops and receivers"""
    samples: dict[str, Tensor]
    """kind -> [n, batch], over all hops and receivers"""


class Request(NamedTuple):
    """What to estimate: the influence of the first round's updates, followed through all these rounds."""

    operator: Operator
    rounds: Sequence[Round]
    evaluation: Evaluation
    samples: bool
    points: int
    sources: list[int]

    @property
    def window(self) -> tuple[Network, Sequence[Round], Evaluation]:
        """The first arguments of every estimator."""
        return self.operator.network, self.rounds, self.evaluation


class Estimator(NamedTuple):
    """An estimator that `score_rounds` and `--kind` know by name."""

    estimate: Callable[[Request], RoundInfluence]
    description: str
    question: str = "what its updates did to everyone's test loss {hops} later"
    """The question that it answers about a round."""
    by_adjoints: bool = False
    """Whether it needs only adjoints, which neighbours pass on, so that separate processes can compute it together."""


def _truth(request: Request) -> RoundInfluence:
    cascade = truth(*request.window, request.sources, operator=request.operator)
    scores = {}
    if request.samples:
        each = [truth_of_samples(*request.window, j, operator=request.operator) for j in request.sources]
        scores["truth"] = _padded(request, [one.total for one in each], [one.samples or () for one in each])
    return RoundInfluence(request.rounds[0], (cascade,), {}, scores)


def _first_order(request: Request) -> RoundInfluence:
    first = request.rounds[0]
    if not request.samples and not request.operator.network.members:
        cascade = first_order(*request.window, request.sources, operator=request.operator)
        return RoundInfluence(first, (cascade,), {}, {})
    adjoint = reverse_sweep(*request.window, operator=request.operator)
    if not request.samples:
        scores = _of_sources(request, by_participant(first, adjoint))
        return RoundInfluence(first, (), {"first order": scores}, {})
    check_samples_are_separate(request.operator.network, first.draw, first.before)
    both = request.operator.scores_of_both(first, adjoint.pair)
    participants, samples = (_of_sources(request, scores) for scores in both)
    return RoundInfluence(first, (), {"first order": participants}, {"first order": samples})


def _path_integrated(request: Request) -> RoundInfluence:
    operator = request.operator
    cascade = path_integrated(*request.window, request.sources, request.points, operator=operator)
    scores = {}
    if request.samples:
        each = [path_integrated_samples(*request.window, j, request.points, operator=operator) for j in request.sources]
        scores[cascade.kind] = _padded(request, each, [range(len(one)) for one in each])
    return RoundInfluence(request.rounds[0], (cascade,), {}, scores)


def _shares(request: Request) -> RoundInfluence:
    kind = f"shares, {request.points} points"
    more: dict[str, Any] = {"points": request.points, "operator": request.operator}
    participants = {kind: _of_sources(request, shares(*request.window, **more))}
    samples = {}
    if request.samples:
        samples[kind] = _of_sources(request, shares_of_samples(*request.window, **more))
    return RoundInfluence(request.rounds[0], (), participants, samples)


def _hop_zero(kind: str, request: Request) -> RoundInfluence:
    """What updates did to the participants that made them, before gossip."""
    if request.samples or kind == "shares":
        raise ValueError("samples and shares need at least 1 hop; found 0. Ask for 1 hop, or for participants.")
    result = ESTIMATORS[kind].estimate(request)
    return result._replace(cascades=tuple(cascade._replace(value=cascade.value[:1]) for cascade in result.cascades))


def _of_sources(request: Request, scores: Tensor) -> Tensor:
    """These scores of all participants, with NaN for those that were not asked for."""
    others = [k for k in range(request.operator.network.nodes) if k not in request.sources]
    if others:
        scores[others] = torch.nan
    return scores


def _padded(request: Request, each: list[Tensor], positions: Sequence[Sequence[int]]) -> Tensor:
    """Scores of the sources' samples at their positions in the batch, one row per participant; NaN elsewhere."""
    batch = request.rounds[0].draw.batch
    rows = torch.full((len(batch), batch[0].numel()), torch.nan, dtype=torch.float64)
    for j, scores, own in zip(request.sources, each, positions, strict=True):
        rows[j, list(own)] = scores.double().cpu()
    return rows


ESTIMATORS: dict[str, Estimator] = {
    "truth": Estimator(
        _truth, "replay without the update: exact; one replay per source",
        "what its updates did to everyone's test loss {hops} later, by replay without them",
    ),
    "first-order": Estimator(
        _first_order, "DICE-E; with samples, one sweep of reverse gossip for all sources and samples",
        "what its updates did to everyone's test loss {hops} later, to first order", by_adjoints=True,
    ),
    "path-integrated": Estimator(
        _path_integrated, "first order integrated along each source's update: close to the truth also at large steps",
        "what its updates did to everyone's test loss {hops} later, integrated",
    ),
    "shares": Estimator(
        _shares, "Aumann–Shapley shares of what the round achieved; one sweep per quadrature point for everyone",
        "each participant's share of the change in everyone's test loss {hops} later", by_adjoints=True,
    ),
}  # fmt: skip


def check_part(kinds: Sequence[str], hops: int, sources: Sources = None) -> None:
    """Raise ValueError unless processes that each hold a part of the network can compute this together."""
    for kind in kinds:
        if not lookup(ESTIMATORS, kind, "kind").by_adjoints:
            names = ", ".join(name for name, estimator in ESTIMATORS.items() if estimator.by_adjoints)
            raise ValueError(
                f"{kind} needs every participant's model, and no single process has them all. With several processes, "
                f"use {names}, or whole-run kinds."
            )
    if not hops:
        raise ValueError("with several processes, influence needs at least 1 hop; found 0.")
    if sources is not None:
        raise ValueError("with several processes, all participants are scored at once. Leave out the sources.")


WHOLE_RUN_KINDS: dict[str, str] = {
    "whole-run": "how the final models' loss changes with the weight of each participant's data, at weight --at",
    "whole-run-shares": "each participant's share of what training did to the final models; shares add up",
}
"""Kinds that score a whole run, and the question that each answers; see `whole_run` and `whole_run_shares`."""
PAIRS: dict[str, str] = {
    "pairs": "who substitutes for whom: how a participant's whole-run influence changes when another is left out",
}
"""The kind that scores pairs of participants; see `interplay`."""


def score_rounds(
    network: Network,
    rounds: Iterable[Round],
    evaluation: Evaluation,
    *,
    hops: int = 1,
    kinds: Sequence[str] = ("first-order",),
    samples: bool = False,
    points: int = 2,
    sources: Sources = None,
    every: int = 1,
    exchange: Exchange | None = None,
) -> Iterator[RoundInfluence]:
    """Score the updates of every `every`-th round while the rounds arrive.

    Memory: `hops` rounds, and an evaluation gradient for each.

    Args:
        network: The network that makes the rounds.
        rounds: Rounds in order: live from `simulate(network, T, window=hops, taped=samples)`, from a recording, or
            from a `Recorder`.
        evaluation: What to measure, from `evaluate_on`.
        hops: How many hops to follow an update; 0 is its effect on the participant that made it.
        kinds: Names of `ESTIMATORS`.
        samples: Whether to score samples too.
        points: Quadrature points of estimators that integrate.
        sources: Participants whose updates to score; defaults to all.
        every: Score one round in `every`.
        exchange: The exchange that the rounds used; defaults to stacked averaging in memory. A process that holds a
            part of the network can only use kinds that are `by_adjoints`, summed over hops and receivers.

    Yields:
        One result for each scored round, once its `hops` rounds have arrived.

    Raises:
        ValueError: If there are fewer rounds than hops, or they are not this network's.

    Example:
        >>> rounds = simulate(network, 100, window=2, taped=True)
        >>> for result in score_rounds(network, rounds, evaluate_on(network), hops=2, samples=True):
        ...     print(result.round.t, result.participants["first order"])
    """
    check_many(rounds)
    if hops < 0 or every < 1:
        raise ValueError(f"hops must be at least 0 and every at least 1; found {hops} and {every}.")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    wanted = None if sources is None else numbers_of(sources)
    if not names or wanted == []:
        raise ValueError("score_rounds needs at least one kind and one source.")
    estimators = [lookup(ESTIMATORS, kind, "kind").estimate for kind in names]
    if network.members:
        check_part(names, hops, wanted)
    if not hops:
        estimators = [partial(_hop_zero, kind) for kind in names]
    chosen: list[int] | None = None
    window: deque[Round] = deque(maxlen=max(1, hops))
    operator, seen = Operator(network, exchange), -1
    for seen, round_ in enumerate(rounds):
        check_rounds([*list(window)[-1:], round_])
        window.append(round_)
        operator.drop_gradients(window[0].t)
        if len(window) == window.maxlen and (seen - len(window) + 1) % every == 0:
            if chosen is None:
                chosen = check_sources(network, list(window), wanted)
            request = Request(operator, list(window), evaluation, samples, points, chosen)
            result = _together([estimate(request) for estimate in estimators])
            _check_numbers(network, result, chosen)
            yield result
    if seen + 1 < hops:
        raise ValueError(
            f"{hops} hops need at least {hops} rounds; found {seen + 1}. Record more, or ask for fewer hops."
        )


def _check_numbers(network: Network, result: RoundInfluence, chosen: Sequence[int]) -> None:
    """Scores of the chosen sources must be numbers; those of others are NaN."""
    for cascade in result.cascades:
        check_numbers(result.round.t, cascade.value.transpose(0, 1), cascade.sources)
    nodes = [network.members[k] for k in chosen] if network.members else chosen
    for scores in result.participants.values():
        check_numbers(result.round.t, scores[list(chosen)], nodes)


def _together(parts: list[RoundInfluence]) -> RoundInfluence:
    cascades = tuple(cascade for part in parts for cascade in part.cascades)
    participants = {kind: value for part in parts for kind, value in part.participants.items()}
    scores = {kind: value for part in parts for kind, value in part.samples.items()}
    return RoundInfluence(parts[0].round, cascades, participants, scores)


def table(result: RoundInfluence) -> Table:
    """This result as one tidy table."""
    return concatenate(
        [
            *(table_of(cascade) for cascade in result.cascades),
            *(table_of_participants(kind, result.round.t, value) for kind, value in result.participants.items()),
            *(table_of_samples(kind, result.round, value) for kind, value in result.samples.items()),
        ]
    )
