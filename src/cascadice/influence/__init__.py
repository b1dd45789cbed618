"""Whose update helped whom: ground truth by replay, first order forwards and backwards, integrated along the update.

| you want | use |
|---|---|
| the truth for some sources | `truth`: replay; for one source it is cheaper than any estimate |
| who is reached, hop by hop, to first order | `first_order` (DICE-E) |
| an estimate that follows the truth where networks learn | `path_integrated` |
| every participant and every sample at once | `reverse_gossip`, then `by_participant`, `by_sample` |
| fair parts of what a round really achieved | `shares` |
"""

from cascadice.influence.cascades import Cascade, first_order, path_integrated, truth
from cascadice.influence.integrated import shares
from cascadice.influence.judging import Judge, judge
from cascadice.influence.reverse import Sensitivity, by_participant, by_sample, reverse_gossip

__all__ = [
    "Cascade",
    "Judge",
    "Sensitivity",
    "by_participant",
    "by_sample",
    "first_order",
    "judge",
    "path_integrated",
    "reverse_gossip",
    "shares",
    "truth",
]
