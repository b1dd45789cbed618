"""Who gives and who takes: reciprocity over time, and advice on whom to keep."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cascadice.applications.choose.groups import ALONE
from cascadice.influence.proximity import Proximity
from cascadice.influence.readings import neighbourhood_reciprocity, reciprocity
from cascadice.influence.uncertainty import Bounds, bounds_of_totals, half_width

EVEN = "gives about as much as it takes, within noise"
DISAGREE = "it helps nobody, but its data clearly helped the final models"
NEITHER = "what it gave and took did not help"


class Balance(NamedTuple):
    """`given[i, j, k]`: the proximal influence of j on k, summed up to round `t[i]`. Negative helped.

    The intervals come from `by_round`, what everyone gave and took in each round, and `squares`, the sum over rounds of
    the squared influence of each pair.
    """

    t: tuple[int, ...]
    given: Float[Tensor, "times n n"]
    by_round: Float[Tensor, "rounds 2 n"]
    squares: Float[Tensor, "n n"]

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
        return -_between(self.given).sum(2)

    @property
    def took(self) -> Float[Tensor, "times n"]:
        """How much j's neighbours have lowered j's loss so far."""
        return -_between(self.given).sum(1)

    @property
    def half_widths(self) -> Float[Tensor, "3 n"]:
        """Half of the 95 % intervals of what everyone gave, took, and the difference; NaN after a single round."""
        gave, took = self.by_round.unbind(1)
        sums = [bounds_of_totals(values.numpy()) for values in (gave, took, gave - took)]
        return torch.stack([torch.from_numpy(ends.high - ends.low) / 2 for ends in sums])

    @property
    def link_bounds(self) -> Bounds:
        """`[j, k]`: the 95 % interval of the influence of j on k, by how much it varies between rounds."""
        rounds, total = len(self.by_round), self.given[-1].double()
        variance = (self.squares - total.square() / rounds).clamp(min=0) / max(rounds - 1, 1)
        half = half_width(rounds) * variance.sqrt()
        return Bounds((total - half).numpy(), (total + half).numpy())


def balance_over_time(proximities: Iterable[Proximity], every: int = 1) -> Balance:
    """Sum proximal influence over rounds; keep the sum after every N-th round and after the last.

    Args:
        proximities: What `influence.proximity` returns, round by round.
        every: N.

    Returns:
        The sums, and from them who gave and who took.

    Raises:
        ValueError: If there is no round.

    Example:
        >>> rounds = [Proximity(t, torch.tensor([[0.0, -1.0], [-2.0, 0.0]]), torch.zeros(2, 2)) for t in (0, 1)]
        >>> balance_over_time(rounds).gave[-1]
        tensor([2., 4.])
    """
    if every < 1:
        raise ValueError(f"every must be at least 1; found {every}.")
    total, t, sums, by_round, squares = None, -1, dict[int, Tensor](), list[Tensor](), torch.zeros(())
    for count, round_ in enumerate(proximities, start=1):
        total, t = round_.influence if total is None else total + round_.influence, round_.t
        one = round_.influence.double().cpu()
        between, squares = _between(one), squares + one.square()
        by_round.append(-torch.stack([between.sum(1), between.sum(0)]))
        if count % every == 0:
            sums[t] = total
    if total is None:
        raise ValueError("there must be at least one round of influence; found none.")
    sums[t] = total
    return Balance(tuple(sums), torch.stack(list(sums.values())).cpu(), torch.stack(by_round), squares)


def _between(given: Float[Tensor, "*times n n"]) -> Float[Tensor, "*times n n"]:
    """Set the influence of participants on themselves to 0."""
    return given * (1 - torch.eye(given.shape[-1], dtype=given.dtype))


class Advice(NamedTuple):
    """What to do about a participant, and why."""

    node: int
    verdict: str
    reason: str


def advise(
    helps: Bool[Tensor, "n n"], heard: Bool[Tensor, "n n"], group: Int[Tensor, " n"], gave: Float[Tensor, " n"],
    took: Float[Tensor, " n"], sure: Bool[Tensor, " n"] | None = None, helped: Collection[int] = (),
) -> list[Advice]:  # fmt: skip
    """Whom to keep, move or expel: advice on each participant, in their order.

    Expel those who help nobody; move those who help none of their receivers but would help others; keep in their group
    those who help only their group.

    Args:
        helps: `[k, j]`: whether j helps k, heard or not.
        heard: `[k, j]`: whether k hears j.
        group: As `find_groups` numbers them.
        gave: As in `Balance`, in the end.
        took: As in `Balance`, in the end.
        sure: Whether gave and took differ by more than noise; by default they do.
        helped: Participants who clearly helped the final models; none of these is expelled.

    Returns:
        Advice on each participant, in their order: keep, keep in its group, move or expel, and why.

    Example:
        >>> helps = heard = torch.tensor([[False, True], [False, False]])  # 0 hears 1, which helps it
        >>> [one.verdict for one in advise(helps, heard, torch.tensor([0, 0]), torch.zeros(2), torch.zeros(2))]
        ['expel', 'keep']
    """
    advice = []
    for j, (given, taken) in enumerate(zip(gave.tolist(), took.tolist(), strict=True)):
        balance = EVEN
        if sure is None or sure[j]:
            takes = "takes more than it gives" if taken > 0 else NEITHER
            balance = "gives more than it takes" if given > max(taken, 0) else takes
        one = Advice(j, *_advice(helps[:, j], heard[:, j], group, int(group[j]), balance))
        advice.append(Advice(j, "keep", DISAGREE) if one.verdict == "expel" and j in helped else one)
    return advice


def _advice(
    helps: Bool[Tensor, " n"], heard: Bool[Tensor, " n"], group: Int[Tensor, " n"], own: int, balance: str
) -> tuple[str, str]:
    """The verdict about a participant, and why: whom it helps, and whether it gives more than it takes."""
    listeners, helped, everybody = int(heard.sum()), helps & heard, helps.nonzero()[:, 0].tolist()
    count = int(helped.sum())
    if not everybody:
        return "expel", "it helps nobody"
    if not count:
        whom = ", ".join(map(str, everybody[:3])) + " and others" * (len(everybody) > 3)
        return "move", f"it helps none of its {listeners} receivers, but would help {whom}"
    several = len(set(group.tolist()) - {ALONE}) > 1
    if count < listeners and several and own != ALONE and bool((group[helped] == own).all()):
        return "keep in its group", f"it helps {count} of its {listeners} receivers, all of its group"
    whom = f"all {listeners}" if count == listeners else f"{count} of its {listeners}"
    return "keep", f"it helps {whom} receivers; {balance}"
