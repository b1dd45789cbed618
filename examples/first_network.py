"""Sixteen participants learn to read digits without a server: the ten-line start.

Each holds a sixteenth of the data and exchanges parameters with four others. Prints the test accuracy of one
participant that trained alone and of the network, and how far apart the participants are.
"""

import cascadice as cd

ROUNDS = 150


def train(mixing: str) -> None:
    """Train on this topology and print how good the participants became."""
    network = cd.network(model, data, nodes=16, mixing=mixing, batch_size=16, lr=0.2)
    # only the last round is wanted, so the rounds may share their memory: window=0
    *_, last = cd.simulate(network, ROUNDS, window=0)
    accuracy = cd.evaluate(network, last.after).accuracy
    apart = float(cd.consensus(last.after.theta))
    print(f"{mixing:12} accuracy {accuracy.mean():.3f} (min {accuracy.min():.3f}), consensus distance {apart:.3f}")


data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(64, 64))
train("alone")
train("exponential")
print("Participants that gossip know more than their own data could teach them.")
