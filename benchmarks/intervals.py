"""How often do 95 % intervals hold the mean over seeds? `python benchmarks/intervals.py [--seeds 14] [--first 0]`

Of participants' and samples' contributions to the final models, and of payments by them. The same data in the same
hands, trained with other parameters and other batches. An honest interval of 95 % holds the mean of all seeds in about
95 % of the cases.
"""

import argparse
from typing import Any

import numpy as np

import cascadice as cd
from cascadice import influence
from cascadice.applications.reward.payouts import Terms, pay, payment_bounds
from cascadice.influence.uncertainty import Bounds, bounds_of_sums, bounds_of_totals

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seeds", type=int, default=14)
parser.add_argument("--first", type=int, default=0, help="the first seed")
parser.add_argument("--rounds", type=int, default=100)
args = parser.parse_args()

digits = cd.data.digits()
model = cd.models.build("mlp", digits.train.shape, len(digits.classes), hidden=(64, 64))
setting: dict[str, Any] = {
    "nodes": 16,
    "mixing": "exponential",
    "batch_size": 16,
    "corruptions": [cd.Corruption("flip-labels", (3,))],
}


def estimates(network: cd.Network, rounds: list[cd.Round]) -> dict[str, tuple[np.ndarray, Bounds]]:
    """What -> its estimate and its interval."""
    found = influence.whole_run(network, rounds, influence.evaluate_on(network))
    values, used = found.samples.double().numpy().ravel(), found.drawn.numpy().ravel()
    when, who = (place.ravel() for place in np.indices(found.drawn.shape)[:2])
    owner = np.zeros(used.max() + 1, dtype=int)
    owner[used] = who
    return {
        "participants": (found.participants.numpy(), bounds_of_totals(found.by_round.numpy())),
        "samples": (np.bincount(used, values), bounds_of_sums(values, used, when, owner)),
        "payments": (pay(found.by_round, 1000).payment.numpy(), payment_bounds(found.by_round, Terms(1000))),
    }


for lr in (0.1, 0.2):
    held = cd.network(model, digits, lr=lr, **setting).partition
    seeds, accuracy = [], []
    for seed in range(args.first, args.first + args.seeds):
        network = cd.network(model, digits, lr=lr, partition=held, seed=seed, **setting)
        rounds = list(cd.simulate(network, args.rounds))
        seeds.append(estimates(network, rounds))
        accuracy.append(float(cd.engine.evaluate(network, rounds[-1].after).accuracy.mean()))
    print(f"learning rate {lr}, test accuracy {sum(accuracy) / len(accuracy):.3f}")
    for what in seeds[0]:
        mean = np.mean([one[what][0] for one in seeds], 0)
        within = np.array([(one[what][1].low <= mean) & (mean <= one[what][1].high) for one in seeds])
        print(f"  {what}: {within.mean():.0%} of {within.size:,} intervals hold the mean over seeds "
              f"(those of the worst of the {what} in {within.mean(0).min():.0%})")  # fmt: skip
