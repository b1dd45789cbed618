"""Who gives and who takes: reciprocity over time, and what to do about it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.applications.choose.groups import ALONE
from cascadice.influence.proximity import Proximity
from cascadice.influence.readings import neighbourhood_reciprocity, reciprocity


class Exchange(NamedTuple):
    """`given[i, j, k]`: the proximal influence of j on k, summed up to round `t[i]`. Negative helped."""

    t: tuple[int, ...]
    given: Float[Tensor, "times n n"]

    @property
    def pairs(self) -> Float[Tensor, "times n n"]:
        """`[i, k, j]`: what k has gained from j over what j has gained from k (Definition 5)."""
        return torch.stack([reciprocity(given) for given in self.given])

    @property
    def neighbourhoods(self) -> Float[Tensor, "times n"]:
        """`[i, j]`: what j's neighbours have gained from j over what j has gained from them."""
        return torch.stack([neighbourhood_reciprocity(given) for given in self.given])

    @property
    def gave(self) -> Float[Tensor, "times n"]:
        """How much j lowered its neighbours' losses so far; negative if it raised them."""
        return -_between(self.given).sum(2)

    @property
    def took(self) -> Float[Tensor, "times n"]:
        """How much its neighbours lowered j's loss so far."""
        return -_between(self.given).sum(1)


def _between(given: Float[Tensor, "times n n"]) -> Float[Tensor, "times n n"]:
    return given * (1 - torch.eye(given.shape[-1], dtype=given.dtype))


def exchange(found: Iterable[Proximity], every: int = 1) -> Exchange:
    """The exchange so far after every so many rounds, and after the last, as rounds come by."""
    if every < 1:
        raise ValueError(f"every must be at least 1; found {every}.")
    total, times, kept, last = None, [], [], None
    for count, one in enumerate(found, start=1):
        total = one.influence if total is None else total + one.influence
        last = one.t
        if count % every == 0:
            times.append(one.t)
            kept.append(total)
    if total is None or last is None:
        raise ValueError("there must be at least one round of influence; found none.")
    if not times or times[-1] != last:
        times.append(last)
        kept.append(total)
    return Exchange(tuple(times), torch.stack(kept).cpu())


class Advice(NamedTuple):
    """What to do about a participant, and why."""

    node: int
    verdict: str
    reason: str


def advise(
    helps: Bool[Tensor, "n n"],
    heard: Bool[Tensor, "n n"],
    group: Int[Tensor, " n"],
    gave: Float[Tensor, " n"],
    took: Float[Tensor, " n"],
) -> list[Advice]:
    """Admission and expulsion in plain words; `helps[k, j]`: whether j helps k, `heard[k, j]`: whether k hears j.

    Who helps nobody of those that hear it should go; who helps only its own group should be heard there alone.
    """
    return [_advice(j, helps[:, j], heard[:, j], group, float(gave[j]), float(took[j])) for j in range(len(group))]


def _advice(
    j: int, helps: Bool[Tensor, " n"], heard: Bool[Tensor, " n"], group: Int[Tensor, " n"], gave: float, took: float
) -> Advice:
    listeners, helped = int(heard.sum()), int((helps & heard).sum())
    balance = "gives more than it takes" if gave > max(took, 0) else "takes more than it gives"
    elsewhere = int((helps & ~heard).sum())
    if helped == 0 and elsewhere == 0:
        return Advice(j, "expel", "it helps nobody")
    if helped == 0:
        return Advice(j, "move", f"it helps none of the {listeners} that hear it, but would help {_listed(helps)}")
    if helped == listeners:
        return Advice(j, "keep", f"it helps all {listeners} that hear it; {balance}")
    mine, several = group == group[j], len(set(group.tolist()) - {ALONE}) > 1
    if several and int(group[j]) != ALONE and bool((mine | ~(helps & heard)).all()):
        return Advice(j, "keep in its group", f"it helps {helped} of the {listeners} that hear it, all of its group")
    return Advice(j, "keep", f"it helps {helped} of the {listeners} that hear it; {balance}")


def _listed(chosen: Bool[Tensor, " n"], most: int = 3) -> str:
    nodes: Sequence[int] = chosen.nonzero()[:, 0].tolist()
    return ", ".join(map(str, nodes[:most])) + (" and others" if len(nodes) > most else "")
