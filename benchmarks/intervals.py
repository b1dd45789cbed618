"""How often do the intervals of contributions hold the mean over seeds? `python benchmarks/intervals.py [--seeds 14]`

The same data in the same hands, trained with other parameters and other batches. An honest interval of 95 % holds the
mean of all seeds in about 95 % of the cases.
"""

import argparse
from typing import Any

import torch

import cascadice as cd
from cascadice import influence
from cascadice.influence.uncertainty import bounds_of_totals

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seeds", type=int, default=14)
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
for lr in (0.1, 0.2):
    held = cd.network(model, digits, lr=lr, **setting).partition
    totals, lows, highs, accuracy = [], [], [], []
    for seed in range(args.seeds):
        network = cd.network(model, digits, lr=lr, partition=held, seed=seed, **setting)
        rounds = list(cd.simulate(network, args.rounds))
        scores = influence.whole_run(network, rounds, influence.evaluate_on(network), samples=False).by_round
        bounds = bounds_of_totals(scores.numpy())
        totals.append(scores.sum(0))
        lows.append(torch.tensor(bounds.low))
        highs.append(torch.tensor(bounds.high))
        accuracy.append(float(cd.engine.evaluate(network, rounds[-1].after).accuracy.mean()))
    total = torch.stack(totals)
    within = (torch.stack(lows) <= total.mean(0)) & (total.mean(0) <= torch.stack(highs))
    print(
        f"lr {lr}: {within.double().mean():.0%} of {within.numel()} intervals hold the mean over seeds "
        f"(the worst participant's {within.double().mean(0).min():.0%}); "
        f"test accuracy {sum(accuracy) / len(accuracy):.3f}"
    )
