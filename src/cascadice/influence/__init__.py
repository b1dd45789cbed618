"""Whose data helped: its effect on the final models, and the effect of each update on every participant.

| you want | use |
|---|---|
| how the final models depend on each participant's and each sample's data, all at once | `whole_run` |
| each participant's share of what training achieved | `whole_run_shares`; without samples, `contributions` |
| the same by training again | `retrain` with `retraining.random_subsets`; `leave_one_out` |
| how well scores predict that | `datamodeling_score` |
| who can substitute whom | `interplay` |
| the exact effect of some sources' updates | `truth`: replay; for one source it is cheaper than any estimate |
| the exact effect of single samples | `truth_of_samples`: a replay each |
| the effect of an update hop by hop, to first order | `first_order` (DICE-E) |
| an estimate close to the truth also at large steps | `path_integrated` |
| every participant and every sample of a round at once | `reverse_gossip`, then `by_participant`, `by_sample` |
| the effect of every sample of a round on each receiver | `samples_by_receiver` |
| the effect of every round's updates on the final models | `full_horizon` |
| fair shares of what a round achieved | `shares`, `shares_of_samples`; of one update, `path_integrated_samples` |
| the error of an integral | `quadrature.with_error` |
| what a receiver can tell about each of its neighbours | `proximity` with `own_data` |
| any of these estimates for round after round | `score_rounds` |
| sums, slices and ratios of results | `readings`; tables on disk: `tables`; what to measure: `measures` |
"""

from cascadice.engine.evaluation import Evaluation, evaluate_on
from cascadice.influence import measures, readings, tables
from cascadice.influence.agreement import agreement
from cascadice.influence.cascade import hops_from
from cascadice.influence.estimators import score_rounds
from cascadice.influence.first_order import first_order
from cascadice.influence.full_horizon import full_horizon
from cascadice.influence.interplay import interplay
from cascadice.influence.path_integrated import path_integrated, path_integrated_samples
from cascadice.influence.proximity import own_data, proximity
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
