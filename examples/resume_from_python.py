"""Record rounds to disk, read them back, and go on from a checkpoint as if nothing had happened.

Files are written under a temporary name and then renamed, so a process killed at any moment leaves whole files. Prints
which rounds were kept, how large participant 0's update was in each, and whether the resumed run ended with the same
bits.
"""

import tempfile
from pathlib import Path

import torch

import cascadice as cd
from cascadice.runs import store

ROUNDS, HALFWAY = 40, 20
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,))
network = cd.network(model, data, nodes=8, mixing="matching", optimizer="adam", lr=0.01, seed=3)
layout = store.layout(network.learner.training)  # names and shapes: another model's files are refused


def train_halfway(folder: Path) -> None:
    """Keep every fifth round, and a checkpoint in the middle."""
    for done in cd.simulate(network, HALFWAY):
        if done.t % 5 == 0:
            store.save_round(folder, done, layout=layout)
    store.save_checkpoint(folder, HALFWAY, done.after, layout=layout)


with tempfile.TemporaryDirectory() as name:
    train_halfway(Path(name))
    print("rounds on disk:", store.saved_rounds(name))
    for kept in store.load_rounds(name, layout=layout):
        print(f"round {kept.t:2}: participant 0 moved by {kept.update[0].norm():.4f}")
    t, participants = store.load_checkpoint(name, layout=layout)

*_, resumed = cd.simulate(network, ROUNDS, start=t, participants=participants, window=0)
*_, uninterrupted = cd.simulate(network, ROUNDS, window=0)
same = torch.equal(resumed.after.theta, uninterrupted.after.theta)
print(f"resumed at round {t}, same parameters at round {ROUNDS}: {same}")
print("Round t is drawn from (seed, t) alone, so a resumed run needs no generator state.")
