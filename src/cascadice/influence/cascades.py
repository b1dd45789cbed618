"""The cascade of an update, source by source: who is influenced, by how much, how many hops on. Truth and estimates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.learner import Participants
from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence.carrying import (
    SOME,
    Carried,
    check_replays,
    check_samples_are_apart,
    push,
    replay,
    spread,
    without_samples,
)
from cascadice.influence.evaluation import Evaluation, slopes, values

MEMORY = 2**30  # bytes of parameters carried at once; more cases together are faster


class Cascade(NamedTuple):
    """`value[h, s, k]`: influence of case s on participant k, h hops on; negative helped.

    A case is the update of `sources[s]` in round t or, where `samples` are given, of the sample at place `samples[s]`
    of its batch alone.
    """

    kind: str
    t: int
    sources: tuple[int, ...]
    value: Float[Tensor, "hops s n"]
    samples: tuple[int, ...] | None = None

    @property
    def total(self) -> Float[Tensor, " s"]:
        """The r-hop influence of each case (Definition 3): the sum over hops and receivers."""
        return self.value.sum((0, 2))


def truth(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sequence[int] | None = None
) -> Cascade:
    """DICE-GT (Definitions 1 and 2): each source skips its local step, and its light cone is replayed.

        truth[0, j] = q_j (L(θ_j^{t+½}) − L(θ_j^t))        truth[h, k] = q_k (L(θ_k^{t+h}) − L(θ_{k∖j}^{t+h}))

    `rounds` are consecutive, from the round of the update on; their number is the number of hops. Cost: for each
    source, a training step for everyone it reached in each round, and an evaluation. Buffers (running statistics of
    BatchNorm) are held as they were.
    """
    chosen = check_sources(network, rounds, sources)

    def entries(group: list[int]) -> Entries:
        return _losses(network, rounds, evaluation, _updates(rounds[0], group, -1.0))

    return Cascade("truth", rounds[0].t, tuple(chosen), _collected(network, rounds, chosen, entries))


def truth_of_samples(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, source: int, samples: Sequence[int] | None = None
) -> Cascade:
    """The truth for single samples of a source's batch, by their places in it (all): one term fewer in its step.

        g_{∖i} = (1/B) Σ_{s≠i} ∇ℓ_s        divided by the same B, so that to first order the parts add up to the batch's

    The step is made again from (θ, state) with any optimizer, and the light cone replayed. Cost: as `truth`, each
    sample a source.
    """
    check_sources(network, rounds, [source])
    check_samples_are_apart(network)
    _, steps, size = rounds[0].draw.batch.shape
    if steps != 1:
        raise ValueError(f"removing a sample needs one local step a round; found {steps}. Remove participants instead.")
    places = list(range(size)) if samples is None else list(samples)
    for place in places:
        if not 0 <= place < size:
            raise ValueError(f"samples must be places in the batch, from 0 to {size - 1}; found {place}.")

    def entries(group: list[int]) -> Entries:
        return _losses(network, rounds, evaluation, without_samples(network, rounds[0], source, group))

    value = _collected(network, rounds, places, entries)
    return Cascade("truth", rounds[0].t, (source,) * len(places), value, tuple(places))


def first_order(
    network: Network, rounds: Sequence[Round], evaluation: Evaluation, sources: Sequence[int] | None = None
) -> Cascade:
    """DICE-E (Proposition 1, Theorem 2), pushed forward: one tangent a source, never a list of paths.

        E[0, j] = q_j ∇L(θ_j^t)ᵀ Δ_j        E[h, k] = q_k ∇L(θ_k^{t+h})ᵀ δ_k^{t+h}

    Departs from print: plus sign with Δ = O(θ) − θ, no further η, and the Hessian of the participant that passes the
    change on (k_{s−1}, as in the proof). Cost: for each source, a Hessian-vector product for everyone it reached.
    """
    chosen = check_sources(network, rounds, sources)

    def entries(group: list[int]) -> Entries:
        first = rounds[0]
        change = _updates(first, group, 1.0)
        start, nodes = first.before.theta[change.nodes], change.nodes.tolist()
        _, slope = slopes(network, evaluation, start, _at(first.half.buffers, change), nodes)
        yield 0, change, (slope * change.theta).sum(-1)
        everyone = list(range(network.nodes))
        for hop, done in enumerate(rounds, start=1):
            still = change._replace(theta=torch.zeros_like(change.theta), state=_zeros(change.state))
            change = spread(done.W, change if hop == 1 else push(network, done, still, change))
            _, slope = slopes(network, evaluation, done.after.theta, done.after.buffers, everyone)
            yield hop, change, (slope[change.nodes] * change.theta).sum(-1)

    return Cascade("first order", rounds[0].t, tuple(chosen), _collected(network, rounds, chosen, entries))


def path_integrated(
    network: Network,
    rounds: Sequence[Round],
    evaluation: Evaluation,
    sources: Sequence[int] | None = None,
    points: int = 2,
) -> Cascade:
    """∫₀¹ Φ'(α) dα by Gauss–Legendre, Φ(α) = Σ q L with the source's update scaled by α: sums to the truth.

    Along α the light cone is replayed and one tangent pushed through it. Cost: `points` × (truth + first order).
    """
    chosen, places = check_sources(network, rounds, sources), gauss_legendre(points)

    def entries(group: list[int]) -> Entries:
        first = rounds[0]
        for alpha, weight in places:
            away, change = _updates(first, group, alpha - 1), _updates(first, group, 1.0)
            at, nodes = first.half.theta[away.nodes] + away.theta, away.nodes.tolist()
            _, slope = slopes(network, evaluation, at, _at(first.half.buffers, away), nodes)
            yield 0, change, weight * (slope * change.theta).sum(-1)
            for hop, done in enumerate(rounds, start=1):
                if hop > 1:
                    change, away = push(network, done, away, change), replay(network, done, away)
                change, away = spread(done.W, change), spread(done.W, away)
                at, nodes = done.after.theta[away.nodes] + away.theta, away.nodes.tolist()
                _, slope = slopes(network, evaluation, at, _at(done.after.buffers, away), nodes)
                yield hop, change, weight * (slope * change.theta).sum(-1)

    kind, value = f"path-integrated, {points} points", _collected(network, rounds, chosen, entries)
    return Cascade(kind, rounds[0].t, tuple(chosen), value)


def gauss_legendre(points: int) -> list[tuple[float, float]]:
    """Places and weights on [0, 1], exact for polynomials up to degree 2 · points − 1."""
    if points < 1:
        raise ValueError(f"a quadrature needs at least 1 point; found {points}. Use points=2.")
    places, weights = np.polynomial.legendre.leggauss(points)
    return [((1 + float(x)) / 2, float(w) / 2) for x, w in zip(places, weights, strict=True)]


def _updates(first: Round, group: list[int], scale: float) -> Carried:
    """What each source's own local work did to it, times `scale`."""
    nodes = torch.tensor(group, device=first.loss.device)
    theta = scale * (first.half.theta[nodes] - first.before.theta[nodes])
    state = {name: scale * (value[nodes] - first.before.state[name][nodes]) for name, value in first.half.state.items()}
    return Carried(nodes, torch.arange(len(group), device=nodes.device), theta, state)


Entries = Iterator[tuple[int, Carried, Tensor]]
"""(hop, pairs, a value for each pair), for a group of cases."""


def _losses(network: Network, rounds: Sequence[Round], evaluation: Evaluation, gone: Carried) -> Entries:
    """What everyone's loss is more than if, after the first local step, `gone` had been added; replayed."""
    yield 0, gone, _more(network, evaluation, rounds[0].half, gone)
    for hop, done in enumerate(rounds, start=1):
        gone = spread(done.W, gone if hop == 1 else replay(network, done, gone))
        yield hop, gone, _more(network, evaluation, done.after, gone)


def _more(network: Network, evaluation: Evaluation, here: Participants, gone: Carried) -> Tensor:
    own, buffers, nodes = here.theta[gone.nodes], _at(here.buffers, gone), gone.nodes.tolist()
    kept = values(network, evaluation, own, buffers, nodes)
    return kept - values(network, evaluation, own + gone.theta, buffers, nodes)


def _collected(
    network: Network, rounds: Sequence[Round], cases: list[int], entries: Callable[[list[int]], Entries]
) -> Tensor:
    """The entries of all cases, as many at a time as memory allows, weighted by q."""
    found = torch.zeros(len(rounds) + 1, len(cases), network.nodes, dtype=torch.float64)
    together = max(1, MEMORY // (network.nodes * network.learner.size * rounds[0].loss.element_size()))
    for start in range(0, len(cases), together):
        for hop, rows, value in entries(cases[start : start + together]):
            nodes, places = rows.nodes.cpu(), rows.sources.cpu() + start
            found[hop].index_put_((places, nodes), network.q[nodes] * value.double().cpu(), accumulate=True)
    return found


def hops_from(rounds: Iterable[Round], t: int, hops: int) -> list[Round]:
    """Of a run or a recording, the rounds in which an update of round t travels `hops` hops."""
    if hops < 1:
        raise ValueError(f"an update travels at least 1 hop; found {hops}. Hop 0 is part of every cascade: value[0].")
    found: list[Round] = []
    for done in rounds:
        if t <= done.t < t + hops:
            found.append(done)
        if done.t >= t + hops - 1:
            break
    if [done.t for done in found] != list(range(t, t + hops)):
        there = ", ".join(str(done.t) for done in found) or "none of them"
        raise ValueError(
            f"{hops} hops from round {t} need rounds {t} to {t + hops - 1}; found {there}. "
            "Ask for fewer hops or an earlier round, or record more rounds."
        )
    return found


def check_rounds(rounds: Sequence[Round]) -> None:
    """There must be at least the round of the update, and the others must follow it one by one."""
    if not rounds:
        raise ValueError("at least one round is needed: that of the update; found none.")
    if any(later.t != earlier.t + 1 for earlier, later in pairwise(rounds)):
        raise ValueError(f"rounds must follow one another; found {[done.t for done in rounds]}.")


def check_recording(network: Network, rounds: Sequence[Round], many: int = SOME) -> None:
    """Rounds must be this network's: of its form, made of numbers, and what its local work makes of them again."""
    check_rounds(rounds)
    for done in rounds:
        check_form(network, done)
        for theta in (done.before.theta, done.half.theta, done.after.theta):
            broken = ~theta.sum(1, dtype=torch.float64).isfinite()
            if bool(broken.any()):
                raise ValueError(
                    f"rounds must be made of numbers; parameters of participant {int(broken.nonzero()[0])} are NaN or "
                    f"infinite in round {done.t}. Take earlier rounds, or train at a lower learning rate."
                )
    check_replays(network, rounds[0], many)


def check_form(network: Network, done: Round) -> None:
    """A round must have the participants, parameters and optimizer state that the network has. Costs nothing."""
    if (found := _form(done.before)) != (own := _form(network.initial)):
        raise ValueError(
            f"round {done.t} must be of this network, {own}; found {found}. Build the network that was recorded."
        )


def _form(people: Participants) -> str:
    nodes, size = people.theta.shape
    state = f" with state {', '.join(people.state)}" if people.state else ""
    return f"{nodes} participants of {size} parameters, {people.theta.dtype} on {people.theta.device}{state}"


def check_sources(network: Network, rounds: Sequence[Round], sources: Sequence[int] | None) -> list[int]:
    """The sources, which must be participants (all, unless said) of the network that made these rounds."""
    check_recording(network, rounds)
    chosen = list(range(network.nodes)) if sources is None else list(sources)
    for source in chosen:
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    return chosen


def _at(buffers: dict[str, Tensor], rows: Carried) -> dict[str, Tensor]:
    return {name: value[rows.nodes] for name, value in buffers.items()}


def _zeros(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in state.items()}
