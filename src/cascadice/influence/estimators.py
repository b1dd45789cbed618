"""Estimators by name, and `score_rounds`, which applies them to rounds from training, a recording or any loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cascadice.engine import Evaluation, Network, Round
from cascadice.engine.evaluation import check_asked
from cascadice.engine.operator import Exchange, Operator
from cascadice.influence import checks
from cascadice.influence.cascade import Cascade
from cascadice.influence.first_order import first_order
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.reverse_gossip import by_participant, by_sample, reverse_sweep
from cascadice.influence.shares import mean_adjoint
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
    def of_samples(j: int) -> tuple[Tensor, Any]:
        one = truth_of_samples(*request.window, j, operator=request.operator)
        return one.total, one.samples

    return _with_samples(request, truth(*request.window, request.sources, operator=request.operator), of_samples)


def _path_integrated(request: Request) -> RoundInfluence:
    points, operator = request.points, request.operator

    def of_samples(j: int) -> tuple[Tensor, Any]:
        scores = path_integrated_samples(*request.window, j, points, operator=operator)
        return scores, range(len(scores))

    cascade = path_integrated(*request.window, request.sources, points, operator=operator)
    return _with_samples(request, cascade, of_samples)


def _with_samples(
    request: Request, cascade: Cascade, of_samples: Callable[[int], tuple[Tensor, Any]]
) -> RoundInfluence:
    """The cascade and, if requested, the scores of each source's samples at their positions in the batch."""
    first, samples = request.rounds[0], {}
    if request.samples:
        rows = torch.full_like(first.draw.batch.flatten(1), torch.nan, dtype=torch.float64, device="cpu")
        for j in request.sources:
            scores, positions = of_samples(j)
            rows[j, list(positions)] = scores.double().cpu()
        samples[cascade.kind] = rows
    return RoundInfluence(first, (cascade,), {}, samples)


def _first_order(request: Request) -> RoundInfluence:
    first, kind = request.rounds[0], "first order"
    if not request.samples and not request.operator.network.members:
        cascade = first_order(*request.window, request.sources, operator=request.operator)
        return RoundInfluence(first, (cascade,), {}, {})
    adjoint = reverse_sweep(*request.window, operator=request.operator)
    if not request.samples:
        return RoundInfluence(first, (), {kind: by_participant(first, adjoint)}, {})
    checks.check_samples_are_separate(request.operator.network, first.draw, first.before)
    participants, samples = request.operator.scores_of_both(first, adjoint.pair)
    return RoundInfluence(first, (), {kind: participants}, {kind: samples})


def _shares(request: Request) -> RoundInfluence:
    first, network, kind = request.rounds[0], request.operator.network, f"shares, {request.points} points"
    checks.check_recording(network, request.rounds)
    adjoint = mean_adjoint(*request.window, request.points, operator=request.operator)
    samples = {kind: by_sample(network, first, adjoint)} if request.samples else {}
    return RoundInfluence(first, (), {kind: by_participant(first, adjoint)}, samples)


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


def check_part(kinds: Sequence[str], hops: int, sources: checks.Sources = None) -> None:
    """Raise ValueError unless processes that each hold a part of the network can compute this together."""
    for kind in kinds:
        if not lookup(ESTIMATORS, kind, "kind").by_adjoints:
            names = ", ".join(name for name, estimator in ESTIMATORS.items() if estimator.by_adjoints)
            why = "needs every participant's model, and no single process has them all"
            raise ValueError(f"{kind} {why}. With several processes, use {names}, or whole-run kinds.")
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
    network: Network, rounds: Iterable[Round], evaluation: Evaluation, *, hops: int = 1,
    kinds: Sequence[str] = ("first-order",), samples: bool = False, points: int = 2, sources: checks.Sources = None,
    every: int = 1, exchange: Exchange | None = None,
) -> Iterator[RoundInfluence]:  # fmt: skip
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
    check_asked(network, evaluation)
    checks.check_many(rounds)
    if hops < 0 or every < 1:
        raise ValueError(f"hops must be at least 0 and every at least 1; found {hops} and {every}.")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    wanted = None if sources is None else checks.numbers_of(sources)
    if not names or wanted == []:
        raise ValueError("score_rounds needs at least one kind and one source.")
    for kind in names:
        lookup(ESTIMATORS, kind, "kind")
    if network.members:
        check_part(names, hops, wanted)
    if not hops and (samples or "shares" in names):
        raise ValueError("samples and shares need at least 1 hop; found 0. Ask for 1 hop, or for participants.")
    chosen: list[int] | None = None
    window: deque[Round] = deque(maxlen=max(1, hops))
    operator, seen = Operator(network, exchange), -1
    for seen, round_ in enumerate(rounds):
        checks.check_rounds([*list(window)[-1:], round_])
        window.append(round_)
        operator.drop_gradients(window[0].t)
        if len(window) == window.maxlen and (seen - len(window) + 1) % every == 0:
            if chosen is None:
                chosen = checks.check_sources(network, list(window), evaluation, wanted)
            yield _estimated(names, Request(operator, list(window), evaluation, samples, points, chosen), hops)
    if seen + 1 < hops:
        few = f"found {seen + 1}. Record more, or ask for fewer hops."
        raise ValueError(f"{hops} hops need at least {hops} rounds; {few}")


def _estimated(kinds: Sequence[str], request: Request, hops: int) -> RoundInfluence:
    """All these kinds together, checked to be numbers; NaN for participants that are not among the sources."""
    parts = [ESTIMATORS[kind].estimate(request) for kind in kinds]
    first, network, sources = request.rounds[0], request.operator.network, request.sources
    cascades = tuple(one._replace(value=one.value[: hops + 1]) for part in parts for one in part.cascades)
    participants = {kind: value for part in parts for kind, value in part.participants.items()}
    samples = {kind: value for part in parts for kind, value in part.samples.items()}
    others = [k for k in range(network.nodes) if k not in sources]
    for scores in (*participants.values(), *samples.values()) if others else ():
        scores[others] = torch.nan
    for cascade in cascades:
        checks.check_numbers(first.t, cascade.value.transpose(0, 1), cascade.sources)
    names = [network.members[k] for k in sources] if network.members else sources
    for scores in participants.values():
        checks.check_numbers(first.t, scores[sources], names)
    return RoundInfluence(first, cascades, participants, samples)


def table(result: RoundInfluence) -> Table:
    """This result as one tidy table."""
    tables = [table_of(cascade) for cascade in result.cascades]
    tables += [table_of_participants(kind, result.round.t, value) for kind, value in result.participants.items()]
    tables += [table_of_samples(kind, result.round, value) for kind, value in result.samples.items()]
    return concatenate(tables)
