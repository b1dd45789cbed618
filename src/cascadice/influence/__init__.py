"""Whose update helped whom: ground truth by replay, first order forwards and backwards, integrated along the update.

| you want | use |
|---|---|
| the truth for some sources | `truth`: replay; for one source it is cheaper than any estimate |
| the truth for single samples | `truth_of_samples`: a replay each |
| who is reached, hop by hop, to first order | `first_order` (DICE-E) |
| an estimate that follows the truth where networks learn | `path_integrated` |
| every participant and every sample at once | `reverse_gossip`, then `by_participant`, `by_sample` |
| the same on the final models, for every round | `full_horizon` |
| fair parts of what a round really achieved | `shares`, `shares_of_samples`; of one update, `path_integrated_samples` |
| how far an integral is from converged | `with_error` |
| what each link carried, as its receiver can tell | `proximity` with `own_data` |
| any of these, as rounds come by | `score_rounds` |
| sums, slices and ratios of results | `readings`; tables on disk: `tables`; what to measure: `measures` |
"""

from cascadice.engine.evaluation import Evaluation, evaluate_on
from cascadice.influence import measures, readings, tables
from cascadice.influence.cascade import Cascade, hops_from
from cascadice.influence.estimators import ESTIMATORS, RoundInfluence, score_rounds
from cascadice.influence.first_order import first_order
from cascadice.influence.full_horizon import HorizonScores, full_horizon
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.proximity import Proximity, own_data, proximity
from cascadice.influence.quadrature import with_error
from cascadice.influence.readings import agreement, contributions
from cascadice.influence.reverse_gossip import RoundAdjoint, by_participant, by_sample, reverse_gossip
from cascadice.influence.shares import shares, shares_of_samples
from cascadice.influence.truth import truth, truth_of_samples

__all__ = [
    "ESTIMATORS",
    "Cascade",
    "Evaluation",
    "HorizonScores",
    "Proximity",
    "RoundAdjoint",
    "RoundInfluence",
    "agreement",
    "by_participant",
    "by_sample",
    "contributions",
    "evaluate_on",
    "first_order",
    "full_horizon",
    "hops_from",
    "measures",
    "own_data",
    "path_integrated",
    "path_integrated_samples",
    "proximity",
    "readings",
    "reverse_gossip",
    "score_rounds",
    "shares",
    "shares_of_samples",
    "tables",
    "truth",
    "truth_of_samples",
    "with_error",
]
