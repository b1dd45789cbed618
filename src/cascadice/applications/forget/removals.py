"""What is to be forgotten, and which part of a round that is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cascadice.engine.networks import Network
from cascadice.engine.rounds import Draw
from cascadice.influence.carrying import check_samples_are_apart


@dataclass(frozen=True)
class Removal:
    """What is to be forgotten, in `rounds` (all): whole updates of `nodes`, or `samples` by whomever they were drawn.

    A participant is `Removal(nodes=(3,))`, a batch one update of it, `Removal(nodes=(3,), rounds=range(7, 8))`, and a
    sample `Removal(samples=(41,))`, by its place in the training data. With both, samples are forgotten as `nodes` drew
    them.
    """

    nodes: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    rounds: range | None = None

    def __post_init__(self) -> None:
        if not self.nodes and not self.samples:
            raise ValueError("something must be forgotten: participants (nodes), samples, or both; found neither.")
        if self.rounds is not None and (not self.rounds or self.rounds.step != 1 or self.rounds.start < 0):
            raise ValueError(f"rounds must be consecutive, from 0 on, at least one; found {self.rounds}.")


class Part(NamedTuple):
    """What of one round is forgotten: whole updates, and samples by their places in the batches."""

    updates: Bool[Tensor, " n"]
    samples: Bool[Tensor, "n steps batch"]

    @property
    def nodes(self) -> Bool[Tensor, " n"]:
        """Whose local work it changes."""
        return self.updates | self.samples.flatten(1).any(1)


def part_of(removal: Removal, drawn: Draw, nodes: int) -> Part:
    """What of the round that was drawn is forgotten. Needs no data: who drew what is known by index."""
    batch = drawn.batch.cpu()
    concerned = torch.full((nodes,), not removal.nodes)
    concerned[list(removal.nodes)] = True
    if removal.rounds is not None and drawn.t not in removal.rounds:
        concerned.zero_()
    if not removal.samples:
        return Part(concerned, torch.zeros(batch.shape, dtype=torch.bool))
    # whoever did no local work (free-riders, the absent) drew samples, and used none
    used = concerned & (drawn.conduct[0].cpu() > 0) if drawn.conduct else concerned
    return Part(torch.zeros_like(concerned), torch.isin(batch, torch.tensor(removal.samples)) & used[:, None, None])


def samples_of(removal: Removal, draws: Iterable[Draw], nodes: int) -> Int[Tensor, " samples"]:
    """The training samples whose traces are to go: those that were used in what is forgotten, each once."""
    found = [torch.zeros(0, dtype=torch.int64)]
    for drawn in draws:
        part = part_of(removal, drawn, nodes)
        batch = drawn.batch.cpu()
        found.append(torch.cat([batch[part.samples], batch[part.updates].flatten()]))
    each: Tensor = torch.unique(torch.cat(found))
    return each


def check(network: Network, removal: Removal) -> None:
    """Who and what is to be forgotten must be there, and samples must have parts of their own in updates."""
    for node in removal.nodes:
        if not 0 <= node < network.nodes:
            raise ValueError(f"participants are numbered 0 to {network.nodes - 1}; found {node}.")
    for sample in removal.samples:
        if not 0 <= sample < len(network.data.train):
            raise ValueError(f"training samples are numbered 0 to {len(network.data.train) - 1}; found {sample}.")
    if removal.samples:
        check_samples_are_apart(network)
