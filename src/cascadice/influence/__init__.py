"""Whose data helped: what the final models owe to it, and whom each update helped on its way.

| you want | use |
|---|---|
| what the final models would be without this data, of everybody and every sample at once | `whole_run` |
| everybody's part of what training achieved | `whole_run_shares`; of participants alone, `contributions` |
| the same by training again | `retrain` with `retraining.random_subsets`; `leave_one_out` |
| how well scores predict that | `datamodeling_score` |
| who substitutes whom | `interplay` |
| the truth of one round for some sources | `truth`: replay; for one source it is cheaper than any estimate |
| the truth for single samples | `truth_of_samples`: a replay each |
| who is reached, hop by hop, to first order | `first_order` (DICE-E) |
| an estimate that follows the truth of a round where networks learn | `path_integrated` |
| every participant and every sample of a round at once | `reverse_gossip`, then `by_participant`, `by_sample` |
| what every sample of a round did to each receiver | `samples_by_receiver` |
| the same on the final models, for every round | `full_horizon` |
| fair parts of what a round achieved | `shares`, `shares_of_samples`; of one update, `path_integrated_samples` |
| how far an integral is from converged | `quadrature.with_error` |
| what each link carried, as its receiver can tell | `proximity` with `own_data` |
| any estimate of rounds, as they come by | `score_rounds` |
| sums, slices and ratios of results | `readings`; tables on disk: `tables`; what to measure: `measures` |
"""

from cascadice.engine.evaluation import Evaluation, evaluate_on
from cascadice.influence import measures, readings, tables
from cascadice.influence.cascade import hops_from
from cascadice.influence.estimators import score_rounds
from cascadice.influence.first_order import first_order
from cascadice.influence.full_horizon import full_horizon
from cascadice.influence.interplay import interplay
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.proximity import own_data, proximity
from cascadice.influence.readings import agreement
from cascadice.influence.retraining import datamodeling_score, leave_one_out, retrain
from cascadice.influence.reverse_gossip import by_participant, by_sample, reverse_gossip, samples_by_receiver
from cascadice.influence.shares import shares, shares_of_samples
from cascadice.influence.truth import truth, truth_of_samples
from cascadice.influence.whole_run import whole_run
from cascadice.influence.whole_run_shares import contributions, whole_run_shares

__all__ = [
    "Evaluation", "agreement", "by_participant", "by_sample", "contributions", "datamodeling_score", "evaluate_on",
    "first_order", "full_horizon", "hops_from", "interplay", "leave_one_out", "measures", "own_data",
    "path_integrated", "path_integrated_samples", "proximity", "readings", "retrain", "reverse_gossip",
    "samples_by_receiver", "score_rounds", "shares", "shares_of_samples", "tables", "truth", "truth_of_samples",
    "whole_run", "whole_run_shares",
]  # fmt: skip
