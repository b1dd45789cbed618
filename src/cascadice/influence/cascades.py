"""The cascade of an update, source by source: who is influenced, by how much, how many hops on. Truth and estimates."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine.networks import Network
from cascadice.engine.rounds import Round
from cascadice.influence.carrying import Carried, push, replay, spread
from cascadice.influence.judging import Judge, slopes, values

MEMORY = 2**30  # bytes of parameters carried at once; more sources together are faster


class Cascade(NamedTuple):
    """`value[h, s, k]`: influence of source s's update in round t on participant k, h hops on; negative helped."""

    kind: str
    t: int
    sources: tuple[int, ...]
    value: Float[Tensor, "hops s n"]

    @property
    def total(self) -> Float[Tensor, " s"]:
        """The r-hop influence of each source (Definition 2): the sum over hops and receivers."""
        return self.value.sum((0, 2))


def truth(network: Network, rounds: Sequence[Round], judge: Judge, sources: Sequence[int] | None = None) -> Cascade:
    """DICE-GT (Definitions 1 and 2): each source skips its local step, and its light cone is replayed.

        truth[0, j] = q_j (L(θ_j^{t+½}) − L(θ_j^t))        truth[h, k] = q_k (L(θ_k^{t+h}) − L(θ_{k∖j}^{t+h}))

    `rounds` are consecutive, from the round of the update on; their number is the number of hops. Cost: for each
    source, a training step for everyone it reached in each round, and an evaluation. Buffers (running statistics of
    BatchNorm) are held as they were.
    """

    def entries(group: list[int]) -> Iterator[tuple[int, Carried, Tensor]]:
        first = rounds[0]
        gone = _updates(first, group, -1.0)
        nodes, buffers = gone.nodes.tolist(), _at(first.half.buffers, gone)
        kept = values(network, judge, first.half.theta[gone.nodes], buffers, nodes)
        yield 0, gone, kept - values(network, judge, first.before.theta[gone.nodes], buffers, nodes)
        for hop, done in enumerate(rounds, start=1):
            gone = spread(done.W, gone if hop == 1 else replay(network, done, gone))
            own, nodes = done.after.theta[gone.nodes], gone.nodes.tolist()
            buffers = _at(done.after.buffers, gone)
            kept = values(network, judge, own, buffers, nodes)
            yield hop, gone, kept - values(network, judge, own + gone.theta, buffers, nodes)

    return _collected("truth", network, rounds, sources, entries)


def first_order(
    network: Network, rounds: Sequence[Round], judge: Judge, sources: Sequence[int] | None = None
) -> Cascade:
    """DICE-E (Proposition 1, Theorem 2), pushed forward: one tangent a source, never a list of paths.

        E[0, j] = q_j ∇L(θ_j^t)ᵀ Δ_j        E[h, k] = q_k ∇L(θ_k^{t+h})ᵀ δ_k^{t+h}

    Departs from print: plus sign with Δ = O(θ) − θ, no further η, and the Hessian of the participant that passes the
    change on (k_{s−1}, as in the proof). Cost: for each source, a Hessian-vector product for everyone it reached.
    """

    def entries(group: list[int]) -> Iterator[tuple[int, Carried, Tensor]]:
        first = rounds[0]
        change = _updates(first, group, 1.0)
        start, nodes = first.before.theta[change.nodes], change.nodes.tolist()
        _, slope = slopes(network, judge, start, _at(first.half.buffers, change), nodes)
        yield 0, change, (slope * change.theta).sum(-1)
        everyone = list(range(network.nodes))
        for hop, done in enumerate(rounds, start=1):
            still = change._replace(theta=torch.zeros_like(change.theta), state=_zeros(change.state))
            change = spread(done.W, change if hop == 1 else push(network, done, still, change))
            _, slope = slopes(network, judge, done.after.theta, done.after.buffers, everyone)
            yield hop, change, (slope[change.nodes] * change.theta).sum(-1)

    return _collected("first order", network, rounds, sources, entries)


def path_integrated(
    network: Network, rounds: Sequence[Round], judge: Judge, sources: Sequence[int] | None = None, points: int = 2
) -> Cascade:
    """∫₀¹ Φ'(α) dα by Gauss–Legendre, Φ(α) = Σ q L with the source's update scaled by α: sums to the truth.

    Along α the light cone is replayed and one tangent pushed through it. Cost: `points` × (truth + first order).
    """

    def entries(group: list[int]) -> Iterator[tuple[int, Carried, Tensor]]:
        first = rounds[0]
        for alpha, weight in gauss_legendre(points):
            away, change = _updates(first, group, alpha - 1), _updates(first, group, 1.0)
            at, nodes = first.half.theta[away.nodes] + away.theta, away.nodes.tolist()
            _, slope = slopes(network, judge, at, _at(first.half.buffers, away), nodes)
            yield 0, change, weight * (slope * change.theta).sum(-1)
            for hop, done in enumerate(rounds, start=1):
                if hop > 1:
                    change, away = push(network, done, away, change), replay(network, done, away)
                change, away = spread(done.W, change), spread(done.W, away)
                at, nodes = done.after.theta[away.nodes] + away.theta, away.nodes.tolist()
                _, slope = slopes(network, judge, at, _at(done.after.buffers, away), nodes)
                yield hop, change, weight * (slope * change.theta).sum(-1)

    return _collected(f"path-integrated, {points} points", network, rounds, sources, entries)


def gauss_legendre(points: int) -> list[tuple[float, float]]:
    """Places and weights on [0, 1], exact for polynomials up to degree 2 · points − 1."""
    if points < 1:
        raise ValueError(f"a quadrature needs at least 1 point; found {points}.")
    places, weights = np.polynomial.legendre.leggauss(points)
    return [((1 + float(x)) / 2, float(w) / 2) for x, w in zip(places, weights, strict=True)]


def _updates(first: Round, group: list[int], scale: float) -> Carried:
    """What each source's own local work did to it, times `scale`."""
    nodes = torch.tensor(group, device=first.loss.device)
    theta = scale * (first.half.theta[nodes] - first.before.theta[nodes])
    state = {name: scale * (value[nodes] - first.before.state[name][nodes]) for name, value in first.half.state.items()}
    return Carried(nodes, torch.arange(len(group), device=nodes.device), theta, state)


Entries = Callable[[list[int]], Iterator[tuple[int, Carried, Tensor]]]


def _collected(
    kind: str, network: Network, rounds: Sequence[Round], sources: Sequence[int] | None, entries: Entries
) -> Cascade:
    """The entries (hop, pairs, value) of all sources, as many at a time as memory allows, weighted by q."""
    chosen = _check(network, rounds, sources)
    found = torch.zeros(len(rounds) + 1, len(chosen), network.nodes, dtype=torch.float64)
    together = max(1, MEMORY // (network.nodes * network.learner.size * rounds[0].loss.element_size()))
    for start in range(0, len(chosen), together):
        for hop, rows, value in entries(chosen[start : start + together]):
            nodes, places = rows.nodes.cpu(), rows.sources.cpu() + start
            found[hop].index_put_((places, nodes), network.q[nodes] * value.double().cpu(), accumulate=True)
    return Cascade(kind, rounds[0].t, tuple(chosen), found)


def check_rounds(rounds: Sequence[Round]) -> None:
    """There must be at least the round of the update, and the others must follow it one by one."""
    if not rounds:
        raise ValueError("at least one round is needed: that of the update; found none.")
    if any(later.t != earlier.t + 1 for earlier, later in pairwise(rounds)):
        raise ValueError(f"rounds must follow one another; found {[done.t for done in rounds]}.")


def _check(network: Network, rounds: Sequence[Round], sources: Sequence[int] | None) -> list[int]:
    check_rounds(rounds)
    chosen = list(range(network.nodes)) if sources is None else list(sources)
    for source in chosen:
        if not 0 <= source < network.nodes:
            raise ValueError(f"sources must be from 0 to {network.nodes - 1}; found {source}.")
    return chosen


def _at(buffers: dict[str, Tensor], rows: Carried) -> dict[str, Tensor]:
    return {name: value[rows.nodes] for name, value in buffers.items()}


def _zeros(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in state.items()}
