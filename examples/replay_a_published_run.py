"""Replay somebody else's run exactly: everything that is drawn can be given instead.

A run with random batches, random graphs and a decaying learning rate is published as five arrays: initial parameters,
batches by index, W of each round, learning rates, weights q. Read back, they give the same parameters bit for bit;
with one participant's batch of one round replaced, they do not. Prints both comparisons.
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import cascadice as cd

ROUNDS = 40
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,), seed=7)

# The original: seven participants that meet at random, participant 0 counting twice.
lr = cd.learning_rates.warmup(cd.learning_rates.cosine(0.2, ROUNDS), 5)
q = [2 / 8] + [1 / 8] * 6
original = cd.network(model, data, nodes=7, mixing="epidemic", init="own", lr=lr, q=q, local_steps=2, seed=7)
rounds = list(cd.simulate(original, ROUNDS))
published = {
    "theta": original.initial.theta,
    "batches": torch.stack([r.draw.batch for r in rounds]),
    "W": torch.stack([r.W for r in rounds]),
    "lr": torch.tensor([r.draw.lr for r in rounds], dtype=torch.float64),
    "q": original.q,
}
with tempfile.TemporaryDirectory() as folder:
    save_file(published, Path(folder, "run.safetensors"))
    given = load_file(Path(folder, "run.safetensors"))


def replayed(batches: torch.Tensor) -> torch.Tensor:
    """Everybody's parameters after the same rounds on these batches; nothing is drawn, so no seed is needed."""
    network = cd.network(
        model, data, init=given["theta"], batches=batches, mixing=cd.topology.cyclic(list(given["W"])),
        lr=lambda t: float(given["lr"][t]), q=given["q"],
    )  # fmt: skip
    return list(cd.simulate(network, ROUNDS))[-1].after.theta


final = rounds[-1].after.theta
print("same batches:", torch.equal(replayed(given["batches"]), final))
other = given["batches"].clone()
other[10, 3] = other[11, 3]
print("participant 3's batch of round 10 replaced:", torch.equal(replayed(other), final))
print("A run is a pure function of what was drawn for it.")
