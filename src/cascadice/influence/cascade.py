"""The cascade of an update: who is influenced, by how much, how many hops away."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cascadice.engine import Network, Participants
from cascadice.engine.rounds import Perturbation, Round
from cascadice.influence.checks import check_many

MEMORY = 2**30  # bytes of perturbations held at once; more cases together are faster


class Cascade(NamedTuple):
    """`value[h, s, k]`: influence of case s on participant k, h hops away; negative helped.

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


Entries = Iterator[tuple[int, Perturbation, Tensor]]
"""(hop, pairs, a value for each pair), for a group of cases."""


def cascade_values(
    network: Network, rounds: Sequence[Round], cases: list[int], entries: Callable[[list[int]], Entries]
) -> Float[Tensor, "hops s n"]:
    """The entries of all cases, as many at a time as memory allows, weighted by q."""
    value = torch.zeros(len(rounds) + 1, len(cases), network.nodes, dtype=torch.float64)
    together = max(1, MEMORY // (network.nodes * network.learner.size * rounds[0].loss.element_size()))
    for start in range(0, len(cases), together):
        for hop, pairs, numbers in entries(cases[start : start + together]):
            nodes, places = pairs.nodes.cpu(), pairs.sources.cpu() + start
            value[hop].index_put_((places, nodes), network.q[nodes] * numbers.double().cpu(), accumulate=True)
    return value


def scaled_updates(first: Round, sources: list[int], scale: float) -> Perturbation:
    """What each source's own local work did to it in the round, times `scale`: −1 takes the update back."""
    nodes = torch.tensor(sources, device=first.loss.device)
    before, half = first.before, first.half
    theta = scale * (half.theta[nodes] - before.theta[nodes])
    state = {name: scale * (value[nodes] - before.state[name][nodes]) for name, value in half.state.items()}
    return Perturbation(nodes, torch.arange(len(sources), device=nodes.device), theta, state)


def at_pairs(here: Participants, pairs: Perturbation, theta: Tensor) -> Participants:
    """Rows with these parameters and the buffers that the participants of the pairs have here."""
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
        ValueError: Where some of them are missing.

    Example:
        >>> truth(network, hops_from(simulate(network, 50), t=20, hops=3), evaluation)
    """
    check_many(rounds)
    if hops < 1:
        raise ValueError(f"an update travels at least 1 hop; found {hops}. Hop 0 is part of every cascade: value[0].")
    kept: list[Round] = []
    for round_ in rounds:
        if t <= round_.t < t + hops:
            kept.append(round_)
        if round_.t >= t + hops - 1:
            break
    if [round_.t for round_ in kept] != list(range(t, t + hops)):
        numbers = ", ".join(str(round_.t) for round_ in kept) or "none of them"
        raise ValueError(
            f"{hops} hops from round {t} need rounds {t} to {t + hops - 1}; found {numbers}. "
            "Ask for fewer hops or an earlier round, or record more rounds."
        )
    return kept
