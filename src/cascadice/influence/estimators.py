"""Influence as rounds come by: live while training, from a recording, or from a loop that is not ours. Same numbers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence.cascades import (
    Cascade,
    check_rounds,
    check_sources,
    first_order,
    path_integrated,
    truth,
    truth_of_samples,
)
from cascadice.influence.evaluation import Evaluation
from cascadice.influence.reverse_gossip import Slopes, by_both, reverse_gossip
from cascadice.influence.shares import path_integrated_samples, shares, shares_of_samples
from cascadice.influence.tables import Table, concatenate, table_of, table_of_participants, table_of_samples
from cascadice.names import lookup


class RoundInfluence(NamedTuple):
    """What was found about the updates of one round."""

    round: Round
    cascades: tuple[Cascade, ...]
    """By hop and receiver."""
    participants: dict[str, Tensor]
    """kind -> [n], over all hops and receivers"""
    samples: dict[str, Tensor]
    """kind -> [n, batch], over all hops and receivers"""


class Look(NamedTuple):
    """What to look at: the rounds of the updates and of their hops, by whom they are judged, and how finely."""

    network: Network
    rounds: Sequence[Round]
    evaluation: Evaluation
    samples: bool
    points: int
    sources: list[int]
    slopes: Slopes


class Estimator(NamedTuple):
    """A way to measure influence."""

    look: Callable[[Look], RoundInfluence]
    description: str


def _true(look: Look) -> RoundInfluence:
    cascade = truth(look.network, look.rounds, look.evaluation, look.sources)
    scores = {}
    if look.samples:
        each = [truth_of_samples(look.network, look.rounds, look.evaluation, j).total for j in look.sources]
        scores["truth"] = _in_their_rows(look, each)
    return RoundInfluence(look.rounds[0], (cascade,), {}, scores)


def _to_first_order(look: Look) -> RoundInfluence:
    if not look.samples:
        return RoundInfluence(
            look.rounds[0], (first_order(look.network, look.rounds, look.evaluation, look.sources),), {}, {}
        )
    worth = reverse_gossip(look.network, look.rounds, look.evaluation, known=look.slopes)
    whole, scores = (_of_sources(look, found) for found in by_both(look.network, look.rounds[0], worth))
    return RoundInfluence(look.rounds[0], (), {"first order": whole}, {"first order": scores})


def _integrated(look: Look) -> RoundInfluence:
    cascade = path_integrated(look.network, look.rounds, look.evaluation, look.sources, look.points)
    scores = {}
    if look.samples:
        each = [
            path_integrated_samples(look.network, look.rounds, look.evaluation, j, look.points) for j in look.sources
        ]
        scores[cascade.kind] = _in_their_rows(look, each)
    return RoundInfluence(look.rounds[0], (cascade,), {}, scores)


def _shared_out(look: Look) -> RoundInfluence:
    kind, arguments = f"shares, {look.points} points", (look.network, look.rounds, look.evaluation, look.points)
    whole = {kind: _of_sources(look, shares(*arguments))}
    scores = {kind: _of_sources(look, shares_of_samples(*arguments))} if look.samples else {}
    return RoundInfluence(look.rounds[0], (), whole, scores)


def _at_home(kind: str, samples: bool, look: Look) -> RoundInfluence:
    """Zero hops: what updates did to those who made them, before anybody heard of it."""
    if samples or kind == "shares":
        raise ValueError("over 0 hops there are only cascades, and not of samples. Ask for 1 hop, or for participants.")
    found = ESTIMATORS[kind].look(look)
    return found._replace(cascades=tuple(cascade._replace(value=cascade.value[:1]) for cascade in found.cascades))


def _of_sources(look: Look, found: Tensor) -> Tensor:
    """What is found for all at once; NaN for participants that were not asked for."""
    others = [k for k in range(look.network.nodes) if k not in look.sources]
    if others:
        found[others] = torch.nan
    return found


def _in_their_rows(look: Look, each: list[Tensor]) -> Tensor:
    """Scores of the sources' samples; NaN for participants that were not looked at."""
    found = torch.full((look.network.nodes, len(each[0])), torch.nan, dtype=torch.float64)
    for j, scores in zip(look.sources, each, strict=True):
        found[j] = scores.double().cpu()
    return found


ESTIMATORS: dict[str, Estimator] = {
    "truth": Estimator(_true, "replay without the update: exact, a light cone for each source"),
    "first-order": Estimator(
        _to_first_order, "DICE-E; with samples, all sources and samples in one sweep of reverse gossip"
    ),
    "path-integrated": Estimator(
        _integrated, "integrated along each source's update: follows the truth where networks learn"
    ),
    "shares": Estimator(
        _shared_out, "Aumann–Shapley parts of what the round achieved, of everybody in one sweep a point"
    ),
}


def score_rounds(
    network: Network,
    rounds: Iterable[Round],
    evaluation: Evaluation,
    *,
    hops: int = 1,
    kinds: Sequence[str] = ("first-order",),
    samples: bool = False,
    points: int = 2,
    sources: Sequence[int] | None = None,
    every: int = 1,
) -> Iterator[RoundInfluence]:
    """What was found about the updates of every `every`-th round that has `hops` rounds to look at.

    Over 0 hops, what updates did to those who made them, before anybody heard of it.

    `rounds` come in order, live from `simulate(network, T, window=hops, taped=samples)`, from
    `store.load_rounds(folder)` or from a `Recorder`. Memory: `hops` rounds and an evaluation gradient for each.
    """
    if hops < 0 or every < 1:
        raise ValueError(f"hops must be at least 0 and every at least 1; found {hops} and {every}.")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if not names or (sources is not None and not len(sources)):
        raise ValueError("there must be at least one kind and one source to look at.")
    ways = [lookup(ESTIMATORS, kind, "kind").look for kind in names]
    if not hops:
        ways = [partial(_at_home, kind, samples) for kind in names]
    chosen: list[int] | None = None
    kept: deque[Round] = deque(maxlen=max(1, hops))
    slopes = Slopes()
    seen = -1
    for seen, done in enumerate(rounds):
        check_rounds([*list(kept)[-1:], done])
        kept.append(done)
        slopes.forget(kept[0].t)
        if len(kept) == kept.maxlen and (seen - len(kept) + 1) % every == 0:
            if chosen is None:
                chosen = check_sources(network, list(kept), sources)
            look = Look(network, list(kept), evaluation, samples, points, chosen, slopes)
            yield _together([way(look) for way in ways])
    if seen + 1 < hops:
        raise ValueError(
            f"{hops} hops need {hops} rounds to look at; found {seen + 1}. Record more, or ask for fewer hops."
        )


def _together(parts: list[RoundInfluence]) -> RoundInfluence:
    cascades = tuple(cascade for part in parts for cascade in part.cascades)
    participants = {kind: value for part in parts for kind, value in part.participants.items()}
    scores = {kind: value for part in parts for kind, value in part.samples.items()}
    return RoundInfluence(parts[0].round, cascades, participants, scores)


def table(found: RoundInfluence) -> Table:
    """All of it as rows of one tidy table."""
    return concatenate(
        [
            *(table_of(cascade) for cascade in found.cascades),
            *(table_of_participants(kind, found.round.t, value) for kind, value in found.participants.items()),
            *(table_of_samples(kind, found.round, value) for kind, value in found.samples.items()),
        ]
    )
