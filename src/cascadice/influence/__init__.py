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
| what each link carried, as its receiver can judge it | `proximity` with `own_data` |
| any of these, as rounds come by | `score_rounds` |
| any of these, of a training loop of your own | `Recorder` |
"""

from cascadice.engine.recorder import Recorder
from cascadice.influence import measures
from cascadice.influence.cascades import Cascade, first_order, hops_from, path_integrated, truth, truth_of_samples
from cascadice.influence.estimators import ESTIMATORS, RoundInfluence, score_rounds, table
from cascadice.influence.evaluation import Evaluation, evaluate_on
from cascadice.influence.proximity import Proximity, own_data, proximity
from cascadice.influence.pulling import Adjoint
from cascadice.influence.readings import (
    Agreement,
    Contributions,
    Extremes,
    accumulate,
    agreement,
    by_hop,
    by_receiver,
    contributions,
    extremes,
    neighbourhood_reciprocity,
    one_hop,
    proximal,
    r_hop,
    reciprocity,
    sample_contributions,
)
from cascadice.influence.reverse_gossip import HorizonScores, by_participant, by_sample, full_horizon, reverse_gossip
from cascadice.influence.shares import path_integrated_samples, shares, shares_of_samples, with_error
from cascadice.influence.tables import (
    Table,
    concatenate,
    load_array,
    parts,
    read_note,
    read_table,
    save_array,
    table_of,
    table_of_participants,
    table_of_samples,
    write_part,
)

__all__ = [
    "ESTIMATORS",
    "Adjoint",
    "Agreement",
    "Cascade",
    "Contributions",
    "Evaluation",
    "Extremes",
    "HorizonScores",
    "Proximity",
    "Recorder",
    "RoundInfluence",
    "Table",
    "accumulate",
    "agreement",
    "by_hop",
    "by_participant",
    "by_receiver",
    "by_sample",
    "concatenate",
    "contributions",
    "evaluate_on",
    "extremes",
    "first_order",
    "full_horizon",
    "hops_from",
    "load_array",
    "measures",
    "neighbourhood_reciprocity",
    "one_hop",
    "own_data",
    "parts",
    "path_integrated",
    "path_integrated_samples",
    "proximal",
    "proximity",
    "r_hop",
    "read_note",
    "read_table",
    "reciprocity",
    "reverse_gossip",
    "sample_contributions",
    "save_array",
    "score_rounds",
    "shares",
    "shares_of_samples",
    "table",
    "table_of",
    "table_of_participants",
    "table_of_samples",
    "truth",
    "truth_of_samples",
    "with_error",
    "write_part",
]
