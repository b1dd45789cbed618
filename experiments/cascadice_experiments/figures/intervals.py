"""How sure a figure is: bootstrap intervals in which whole groups are drawn, since what shares a model is not apart."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.influence import Agreement, agreement

DRAWS = 300
ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


def bootstrap(
    truth: Float[Tensor, " points"], estimate: Float[Tensor, " points"], group: Int[Tensor, " points"], seed: int = 0
) -> dict[str, list[float]]:
    """Each measure of agreement with the ends of its 95 % interval, `[value, lower, upper]`.

    Groups are drawn with replacement as often as there are. Cost: 300 times that of the agreement.
    """
    members = [(group == g).nonzero()[:, 0] for g in sorted(set(group.tolist()))]
    draw = seeds.generator(seed, "bootstrap", len(truth))
    drawn = []
    for _ in range(DRAWS):
        chosen = torch.cat([members[i] for i in torch.randint(len(members), (len(members),), generator=draw)])
        drawn.append(torch.tensor(agreement(truth[chosen], estimate[chosen]), dtype=torch.float64))
    low, high = torch.nanquantile(torch.stack(drawn), ENDS, dim=0).tolist()
    value = agreement(truth, estimate)
    return {name: list(ends) for name, *ends in zip(Agreement._fields, value, low, high, strict=True)}
