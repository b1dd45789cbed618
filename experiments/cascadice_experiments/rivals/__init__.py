"""Contribution estimators of others, adapted to gossip, to compare ours with.

| function | of | what it costs |
|---|---|---|
| `fedsv` | Wang et al. 2020 | coalitions of updates of each round, evaluated |
| `trip_shapley` | Anada et al. 2025 | as `fedsv` |
| `gtg_shapley` | Liu et al. 2022 | permutations of each round until they agree, truncated |
| `comfedsv` | Fan et al. 2022 | a part of the coalitions of each round; the rest is completed |
| `retrained_shapley` | Shapley 1953; Castro et al. 2009 | a training for each coalition |
| `tracin`, `tracin_samples` | Pruthi et al. 2020 | a gradient a participant and round |
| `tracin_checkpoints` | Pruthi et al. 2020 (TracInCP) | two gradients a participant and checkpoint |

Each takes (network, rounds, evaluation, seed) and gives an `Estimate`: scores in units of the loss, of which negative
helped, and what they cost. `rounds` is how many rounds to train, or rounds that were kept. `every` looks at one round
in so many, and scales what it sees to the whole run.

Methods that reconstruct models from a round's updates were made for a server with one global model. Gossip has none, so
all of them play the same game here: what would everyone have after the exchange, had only the coalition S worked?

    θ_k^{t+1}(S) = Σ_j W[k, j] (θ_j^t + 1[j ∈ S] Δ_j)        f_t(S) = Σ_k q_k L(θ_k^{t+1}(S))

Updates of others are left out, and weights are not scaled up to make good for them, as a server would do that averages
the members only. What the exchange alone does, f_t(∅) compared with the models before, is nobody's.
"""

from cascadice_experiments.rivals.comfedsv import comfedsv
from cascadice_experiments.rivals.estimate import Estimate
from cascadice_experiments.rivals.fedsv import fedsv
from cascadice_experiments.rivals.gtg_shapley import gtg_shapley
from cascadice_experiments.rivals.retrained_shapley import retrained_shapley
from cascadice_experiments.rivals.tracin import tracin, tracin_checkpoints, tracin_samples
from cascadice_experiments.rivals.trip_shapley import trip_shapley

__all__ = [
    "Estimate",
    "comfedsv",
    "fedsv",
    "gtg_shapley",
    "retrained_shapley",
    "tracin",
    "tracin_checkpoints",
    "tracin_samples",
    "trip_shapley",
]
