"""Confidence intervals by bootstrap. Whole groups are resampled, because points from one model are not independent."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cascadice import seeds
from cascadice.influence.agreement import Agreement, agreement

DRAWS = 300
ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


def bootstrap(
    truth: Float[Tensor, " points"], estimate: Float[Tensor, " points"], group: Int[Tensor, " points"], seed: int = 0
) -> dict[str, list[float]]:
    """Each measure of agreement with its 95 % interval, `[value, lower, upper]`.

    Each of 300 resamples draws as many groups as there are, with replacement. Cost: 300 times that of `agreement`.
    """
    members = [(group == g).nonzero()[:, 0] for g in sorted(set(group.tolist()))]
    generator = seeds.generator(seed, "bootstrap", len(truth))
    resampled = []
    for _ in range(DRAWS):
        chosen = torch.cat([members[i] for i in torch.randint(len(members), (len(members),), generator=generator)])
        resampled.append(torch.tensor(agreement(truth[chosen], estimate[chosen]), dtype=torch.float64))
    low, high = torch.nanquantile(torch.stack(resampled), ENDS, dim=0).tolist()
    value = agreement(truth, estimate)
    return {name: list(ends) for name, *ends in zip(Agreement._fields, value, low, high, strict=True)}
