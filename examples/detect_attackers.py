"""Find the participants that behave unlike the others, while the network trains.

Every participant evaluates the updates it receives on its own data. Prints whom the receivers flag, and why, as soon as
half of them agree; and in the end what one participant thinks of its neighbours, without asking anybody.
"""

import torch

import cascadice as cd
from cascadice.applications.detect.idea import detect, votes
from cascadice.applications.detect.signals import SIGNALS

data = cd.data.digits()
network = cd.network(
    cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,)),
    data,
    nodes=16,
    batch_size=32,
    lr=0.1,
    corruptions=[cd.Corruption("flip-labels", (5,))],
    behaviours=[cd.Behaviour("free-rider", (10,))],
)
own = cd.influence.evaluate_on(network, cd.influence.own_data(network, 80))

reported: set[int] = set()
# 90 samples each are few, so honest participants differ more than usual: allow more than the default of 0.5
for verdict in detect(network, cd.simulate(network, 60), own, rate=0.01, allowance=0.7):
    for node in torch.nonzero(votes(verdict) >= 0.5).flatten().tolist():
        if node not in reported:
            flagged = verdict.flagged[node]
            signal = list(SIGNALS)[int(verdict.deviation[:, node, flagged].abs().mean(1).argmax())]
            reported.add(node)
            print(f"round {verdict.t:2}: {int(flagged.sum())} receivers flag participant {node:2} by its {signal}")

print("participant 3 thinks of those it hears (above 1 it flags them):")
for node in torch.nonzero(verdict.heard[:, 3]).flatten().tolist():
    print(f"  {node:2}  {verdict.strength[node, 3]:.2f}")
print(f"Suspected by half of their receivers: {sorted(reported)}.")
