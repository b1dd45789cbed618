"""Who gives and who takes: reciprocity over time, and advice on whom to keep."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.applications.choose.groups import ALONE
from cascadice.influence.proximity import Proximity
from cascadice.influence.readings import neighbourhood_reciprocity, reciprocity


class Balance(NamedTuple):
    """`given[i, j, k]`: the proximal influence of j on k, summed up to round `t[i]`. Negative helped."""

    t: tuple[int, ...]
    given: Float[Tensor, "times n n"]

    @property
    def pairs(self) -> Float[Tensor, "times n n"]:
        """`[i, k, j]`: what k has gained from j divided by what j has gained from k (Definition 5)."""
        return torch.stack([reciprocity(given) for given in self.given])

    @property
    def neighbourhoods(self) -> Float[Tensor, "times n"]:
        """`[i, j]`: what j's neighbours have gained from j divided by what j has gained from them."""
        return torch.stack([neighbourhood_reciprocity(given) for given in self.given])

    @property
    def gave(self) -> Float[Tensor, "times n"]:
        """How much j has lowered its neighbours' losses so far; negative if it raised them."""
        return -self._between.sum(2)

    @property
    def took(self) -> Float[Tensor, "times n"]:
        """How much j's neighbours have lowered j's loss so far."""
        return -self._between.sum(1)

    @property
    def _between(self) -> Float[Tensor, "times n n"]:
        return self.given * (1 - torch.eye(self.given.shape[-1], dtype=self.given.dtype))


def balance_over_time(proximities: Iterable[Proximity], every: int = 1) -> Balance:
    """Sum proximal influence over rounds; keep the sum after every so many rounds and after the last."""
    if every < 1:
        raise ValueError(f"every must be at least 1; found {every}.")
    total, t, sums = None, -1, dict[int, Tensor]()
    for count, round_ in enumerate(proximities, start=1):
        total, t = round_.influence if total is None else total + round_.influence, round_.t
        if count % every == 0:
            sums[t] = total
    if total is None:
        raise ValueError("there must be at least one round of influence; found none.")
    sums[t] = total
    return Balance(tuple(sums), torch.stack(list(sums.values())).cpu())


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
    """Whom to keep, move or expel: advice on each participant, in their order.

    Expel those who help nobody, move those who would help only others than hear them, and keep in their group those
    who help nobody else.

    Args:
        helps: `[k, j]`: whether j helps k, heard or not.
        heard: `[k, j]`: whether k hears j.
        group: As `find_groups` numbers them.
        gave: As in `Balance`, in the end.
        took: As in `Balance`, in the end.
    """
    generous = gave > took.clamp(min=0)
    return [
        Advice(j, *_advice(helps[:, j], heard[:, j], group, int(group[j]), bool(generous[j])))
        for j in range(len(group))
    ]


def _advice(
    helps: Bool[Tensor, " n"], heard: Bool[Tensor, " n"], group: Int[Tensor, " n"], own: int, generous: bool
) -> tuple[str, str]:
    listeners, helped, all_helped = int(heard.sum()), helps & heard, helps.nonzero()[:, 0].tolist()
    count = int(helped.sum())
    if not all_helped:
        return "expel", "it helps nobody"
    if not count:
        whom = ", ".join(map(str, all_helped[:3])) + (" and others" if len(all_helped) > 3 else "")
        return "move", f"it helps none of its {listeners} receivers, but would help {whom}"
    several = len(set(group.tolist()) - {ALONE}) > 1
    if count < listeners and several and own != ALONE and bool((group[helped] == own).all()):
        return "keep in its group", f"it helps {count} of its {listeners} receivers, all of its group"
    whom = f"all {listeners}" if count == listeners else f"{count} of its {listeners}"
    balance = "gives more than it takes" if generous else "takes more than it gives"
    return "keep", f"it helps {whom} receivers; {balance}"
