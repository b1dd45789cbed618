"""How far any sum of scores can go: what sums made from retraining itself predict.

Networks that were trained without each participant give exact leave-one-out scores, which no estimate can improve on as
such. A least-squares fit to the very networks that are to be predicted is about the best that any sum could do, and has
seen the answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cascadice.influence.agreement import Agreement, agreement
from cascadice.influence.retraining import random_subsets

EXACT, BEST = "exact leave-one-out, summed", "best sum in hindsight"


def sums(retrained: Sequence[dict[str, Any]], nodes: int) -> Iterator[tuple[str, str, int, Agreement]]:
    """(condition, estimate, seed, agreement) for the subsets of participants in what a study keeps.

    Example:
        >>> list(sums(result["retrained"], nodes=16))
    """
    alone = {one["seed"]: torch.tensor(one["found"]).double() for one in retrained if one["subsets"] is None}
    for one in retrained:
        if one["condition"].startswith("participants"):
            subsets, found = random_subsets(nodes, **one["subsets"]), torch.tensor(one["found"]).double()
            everybody, *without = alone[one["seed"]]
            exact = subsets @ (everybody - torch.stack(without))
            for name, predicted in ((EXACT, exact), (BEST, _fitted(subsets, found))):
                yield one["condition"], name, one["seed"], agreement(found, predicted)


def _fitted(subsets: Tensor, found: Tensor) -> Tensor:
    """What the least-squares sum of scores predicts for the networks that it was fitted to."""
    inputs = torch.cat([subsets, torch.ones(len(subsets), 1, dtype=torch.float64)], 1)
    scores: Tensor = torch.linalg.lstsq(
        inputs, found[:, None], driver="gelsd"
    ).solution  # a column for each is dependent
    return (inputs @ scores)[:, 0]
