"""What to forget, and which part of a round that is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from cascadice.engine import Draw, Network


@dataclass(frozen=True)
class Removal:
    """What to forget: whole updates of participants, or training samples.

    Attributes:
        nodes: Participants whose updates are forgotten; with `samples`, only those participants' uses of them.
        samples: Training samples, by their index in the training data, whichever participant drew them.
        rounds: The consecutive rounds in which they are forgotten (None: all).

    Example:
        >>> participant = Removal(nodes=(3,))
        >>> batch = Removal(nodes=(3,), rounds=range(7, 8))
        >>> sample = Removal(samples=(41,))
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
    """The part of one round to forget: whole updates, and samples by their positions in the batches."""

    updates: Bool[Tensor, " n"]
    samples: Bool[Tensor, "n steps batch"]

    @property
    def nodes(self) -> Bool[Tensor, " n"]:
        """The participants whose local work changes."""
        return self.updates | self.samples.flatten(1).any(1)


def part_of(removal: Removal, draw: Draw, nodes: int, members: Sequence[int] = ()) -> Part:
    """The part to forget of the round with this draw. No data are read: the draw has the indices of the samples.

    `members` are the participants, of `nodes`, whose rows the draw has; empty if it has all.
    """
    batch = draw.batch.cpu()
    concerned = torch.full((nodes,), not removal.nodes)
    concerned[list(removal.nodes)] = True
    concerned = concerned[list(members)] if members else concerned
    if removal.rounds is not None and draw.t not in removal.rounds:
        concerned.zero_()
    if not removal.samples:
        return Part(concerned, torch.zeros(batch.shape, dtype=torch.bool))
    # participants that did no local work (free-riders, the absent) drew samples but used none
    used = concerned & (draw.conduct[0].cpu() > 0) if draw.conduct else concerned
    return Part(torch.zeros_like(concerned), torch.isin(batch, torch.tensor(removal.samples)) & used[:, None, None])


def forgotten_samples(
    removal: Removal, draws: Iterable[Draw], nodes: int, members: Sequence[int] = ()
) -> Int[Tensor, " samples"]:
    """The training samples that the forgotten updates and samples of these rounds used.

    Args:
        removal: What is forgotten.
        draws: The draws of the rounds.
        nodes: The number of participants.
        members: The participants whose rows the draws have; empty if they have all.

    Returns:
        The samples' numbers, each once, in ascending order.

    Example:
        >>> forgotten_samples(Removal(nodes=(3,)), (one.draw for one in rounds), network.nodes)  # doctest: +SKIP
    """
    used = [torch.zeros(0, dtype=torch.int64)]
    for draw in draws:
        part, batch = part_of(removal, draw, nodes, members), draw.batch.cpu()
        used.append(torch.cat([batch[part.samples], batch[part.updates].flatten()]))
    samples: Tensor = torch.unique(torch.cat(used))
    return samples[samples >= 0]  # smaller batches are padded


def check_removal(network: Network, removal: Removal) -> None:
    """Raise ValueError if the network has no such participants or samples."""
    for what, numbers, count in (
        ("participants", removal.nodes, network.whole),
        ("training samples", removal.samples, len(network.data.train)),
    ):
        if unknown := [number for number in numbers if not 0 <= number < count]:
            raise ValueError(f"{what} are numbered 0 to {count - 1}; found {unknown[0]}.")
