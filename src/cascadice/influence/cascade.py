"""The cascade of an update: whom it influenced, by how much, and how many hops away."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Network, Participants
from cascadice.engine.rounds import Perturbation, Round
from cascadice.influence.checks import check_many

MEMORY = 2**30  # bytes of perturbations held at once; larger groups of cases are faster


class Cascade(NamedTuple):
    """`value[h, s, k]` is the influence of case s on participant k, h hops away. Negative helped.

    Case s is the update of `sources[s]` in round t. If `samples` is given, case s is only the part of that update that
    comes from the sample at position `samples[s]` of the batch.
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


Entries = Iterator[tuple[int, Perturbation, Tensor]]
"""(hop, pairs of source and receiver, one value per pair), for a group of cases."""


def cascade_of(
    kind: str, network: Network, rounds: Sequence[Round], sources: Sequence[int],
    entries: Callable[[list[int]], Entries], samples: Sequence[int] | None = None,
) -> Cascade:  # fmt: skip
    """The entries of all cases (sources, or samples), weighted by q, for as many at a time as memory allows."""
    cases = list(sources if samples is None else samples)
    value = torch.zeros(len(rounds) + 1, len(cases), network.nodes, dtype=torch.float64)
    group = max(1, MEMORY // (network.nodes * network.learner.size * rounds[0].loss.element_size()))
    for start in range(0, len(cases), group):
        for hop, pairs, numbers in entries(cases[start : start + group]):
            receivers, rows = pairs.nodes.cpu(), pairs.sources.cpu() + start
            value[hop].index_put_((rows, receivers), network.q[receivers] * numbers.double().cpu(), accumulate=True)
    return Cascade(kind, rounds[0].t, tuple(sources), value, None if samples is None else tuple(samples))


def scaled_updates(first: Round, sources: list[int], scale: float) -> Perturbation:
    """Each source's own update of the round, times `scale`; −1 takes the update back."""
    nodes = torch.tensor(sources, device=first.loss.device)
    before, half = first.before, first.half
    theta = scale * (half.theta[nodes] - before.theta[nodes])
    state = {name: scale * (value[nodes] - before.state[name][nodes]) for name, value in half.state.items()}
    return Perturbation(nodes, torch.arange(len(sources), device=nodes.device), theta, state)


def at_pairs(here: Participants, pairs: Perturbation, theta: Tensor) -> Participants:
    """One row per pair, with these parameters and the receiver's own buffers."""
    return Participants(theta, {}, {name: value[pairs.nodes] for name, value in here.buffers.items()})


def hops_from(rounds: Iterable[Round], t: int, hops: int) -> list[Round]:
    """The rounds in which an update of round t travels its first `hops` hops.

    Args:
        rounds: Rounds in order, from a run or a recording.
        t: The round of the update.
        hops: How many hops, at least 1.

    Returns:
        The rounds t to t + hops − 1.

    Raises:
        ValueError: If some of these rounds are missing.

    Example:
        >>> truth(network, hops_from(simulate(network, 50), t=20, hops=3), evaluation)
    """
    check_many(rounds)
    if hops < 1:
        raise ValueError(f"an update travels at least 1 hop; found {hops}. Hop 0 is part of every cascade: value[0].")
    window: list[Round] = []
    for round_ in rounds:
        if t <= round_.t < t + hops:
            window.append(round_)
        if round_.t >= t + hops - 1:
            break
    if [round_.t for round_ in window] != list(range(t, t + hops)):
        numbers = ", ".join(str(round_.t) for round_ in window) or "none of them"
        raise ValueError(
            f"{hops} hops from round {t} need rounds {t} to {t + hops - 1}; found {numbers}. "
            "Ask for fewer hops or an earlier round, or record more rounds."
        )
    return window
