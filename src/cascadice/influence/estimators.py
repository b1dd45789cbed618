"""Estimators by name, and influence as rounds come by: live while training, from a recording, or from any loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Evaluation, Network, Round
from cascadice.engine.operator import Exchange, Operator
from cascadice.influence.cascade import Cascade
from cascadice.influence.checks import Sources, check_many, check_rounds, check_sources, numbers_of
from cascadice.influence.first_order import first_order
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.reverse_gossip import by_both, by_participant, swept
from cascadice.influence.shares import shares, shares_of_samples
from cascadice.influence.tables import Table, concatenate, table_of, table_of_participants, table_of_samples
from cascadice.influence.truth import truth, truth_of_samples
from cascadice.names import lookup


class RoundInfluence(NamedTuple):
    """The influence of the updates of one round."""

    round: Round
    cascades: tuple[Cascade, ...]
    """By hop and receiver."""
    participants: dict[str, Tensor]
    """kind -> [n], over all hops and receivers"""
    samples: dict[str, Tensor]
    """kind -> [n, batch], over all hops and receivers"""


class Request(NamedTuple):
    """What to estimate: the updates of the first of these rounds, over all of them."""

    operator: Operator
    rounds: Sequence[Round]
    evaluation: Evaluation
    samples: bool
    points: int
    sources: list[int]

    @property
    def window(self) -> tuple[Network, Sequence[Round], Evaluation]:
        """What every estimator takes first."""
        return self.operator.network, self.rounds, self.evaluation


class Estimator(NamedTuple):
    """A way to measure influence."""

    estimate: Callable[[Request], RoundInfluence]
    description: str
    question: str = "what its updates did to everyone's test loss {hops} later"
    """What it answers about a round."""
    by_adjoints: bool = False
    """Whether it needs nothing but adjoints, which neighbours pass on: then processes can answer together."""


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
    adjoint = swept(*request.window, operator=request.operator)
    if not request.samples:
        scores = _of_sources(request, by_participant(first, adjoint))
        return RoundInfluence(first, (), {"first order": scores}, {})
    participants, samples = (_of_sources(request, scores) for scores in by_both(request.operator, first, adjoint))
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
    """What updates did to the participants that made them, before anybody received them."""
    if request.samples or kind == "shares":
        raise ValueError("samples and shares need at least 1 hop; found 0. Ask for 1 hop, or for participants.")
    result = ESTIMATORS[kind].estimate(request)
    return result._replace(cascades=tuple(cascade._replace(value=cascade.value[:1]) for cascade in result.cascades))


def _of_sources(request: Request, scores: Tensor) -> Tensor:
    """Scores of all at once, with NaN for participants that were not asked for."""
    others = [k for k in range(request.operator.network.nodes) if k not in request.sources]
    if others:
        scores[others] = torch.nan
    return scores


def _padded(request: Request, each: list[Tensor], places: Sequence[Sequence[int]]) -> Tensor:
    """Scores of the sources' samples at their places, one row a participant; NaN where there is none."""
    batch = request.rounds[0].draw.batch
    rows = torch.full((len(batch), batch[0].numel()), torch.nan, dtype=torch.float64)
    for j, scores, own in zip(request.sources, each, places, strict=True):
        rows[j, list(own)] = scores.double().cpu()
    return rows


ESTIMATORS: dict[str, Estimator] = {
    "truth": Estimator(
        _truth, "replay without the update: exact, a light cone for each source",
        "what its updates did to everyone's test loss {hops} later, by replay without them",
    ),
    "first-order": Estimator(
        _first_order, "DICE-E; with samples, all sources and samples in one sweep of reverse gossip",
        "what its updates did to everyone's test loss {hops} later, to first order", by_adjoints=True,
    ),
    "path-integrated": Estimator(
        _path_integrated, "integrated along each source's update: follows the truth where networks learn",
        "what its updates did to everyone's test loss {hops} later, integrated",
    ),
    "shares": Estimator(
        _shares, "Aumann–Shapley parts of what the round achieved, of everybody in one sweep a point",
        "each participant's share of the change in everyone's test loss {hops} later", by_adjoints=True,
    ),
}  # fmt: skip


def check_part(kinds: Sequence[str], hops: int, sources: Sources = None) -> None:
    """Raise ValueError unless processes that have a part of the network each can answer this."""
    for kind in kinds:
        if not lookup(ESTIMATORS, kind, "kind").by_adjoints:
            known = ", ".join(name for name, estimator in ESTIMATORS.items() if estimator.by_adjoints)
            raise ValueError(
                f"{kind} needs every participant's model, and no single process has them all. Between processes, use "
                f"{known}, or whole-run kinds."
            )
    if not hops:
        raise ValueError("between processes, influence is summed over hops, from 1 on; found 0 hops.")
    if sources is not None:
        raise ValueError("between processes, everybody is scored at once. Leave out the sources.")


WHOLE_RUN_KINDS: dict[str, str] = {
    "whole-run": "how the final models' loss changes with the weight of each participant's data, at weight --at",
    "whole-run-shares": "each participant's share of what training did to the final models; shares add up",
}
"""Kinds that look at a whole run at once, with what they answer; see `whole_run` and `whole_run_shares`."""
PAIRS: dict[str, str] = {
    "pairs": "who substitutes whom: how a participant's whole-run influence changes when another is left out",
}
"""The kind whose result is a number for each pair of participants; see `interplay`."""


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
    """The influence of the updates of every `every`-th round, as rounds come by.

    Memory: `hops` rounds and an evaluation gradient for each.

    Args:
        rounds: Rounds in order: live from `simulate(network, T, window=hops, taped=samples)`, from a recording, or
            from a `Recorder`.
        hops: How far an update is followed. Over 0 hops: its effect on the participant that made it.
        kinds: Names of `ESTIMATORS`.
        samples: Also score single samples.
        points: Points of the quadrature of estimators that integrate.
        sources: Whose updates; everybody's unless given.
        exchange: How what was sent was exchanged; in memory unless given. Of a part of a network, only what adjoints
            tell is known: kinds that go `by_adjoints`, summed over hops and receivers.

    Yields:
        One result for each scored round that has `hops` rounds to follow it.

    Raises:
        ValueError: Where there are fewer rounds than hops, or they are not this network's.

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
        raise ValueError("there must be at least one kind and one source to look at.")
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
        operator.forget(window[0].t)
        if len(window) == window.maxlen and (seen - len(window) + 1) % every == 0:
            if chosen is None:
                chosen = check_sources(network, list(window), wanted)
            request = Request(operator, list(window), evaluation, samples, points, chosen)
            yield _together([estimate(request) for estimate in estimators])
    if seen + 1 < hops:
        raise ValueError(
            f"{hops} hops need {hops} rounds to look at; found {seen + 1}. Record more, or ask for fewer hops."
        )


def _together(parts: list[RoundInfluence]) -> RoundInfluence:
    cascades = tuple(cascade for part in parts for cascade in part.cascades)
    participants = {kind: value for part in parts for kind, value in part.participants.items()}
    scores = {kind: value for part in parts for kind, value in part.samples.items()}
    return RoundInfluence(parts[0].round, cascades, participants, scores)


def table(result: RoundInfluence) -> Table:
    """All of it as rows of one tidy table."""
    return concatenate(
        [
            *(table_of(cascade) for cascade in result.cascades),
            *(table_of_participants(kind, result.round.t, value) for kind, value in result.participants.items()),
            *(table_of_samples(kind, result.round, value) for kind, value in result.samples.items()),
        ]
    )
