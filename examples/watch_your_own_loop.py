"""Your own training loop, with your own modules, optimizers and gossip, and whose data helped whom in it.

The loop is plain PyTorch; a recorder watches it. It takes three lines: one to make it, one around a round, one after
each optimizer step. Participant 3 has wrong labels. Prints who helped the final models and the highest score among
participant 3's samples, and saves a run on which every command works.
"""

from copy import deepcopy
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from torch import nn

import cascadice as cd

NODES, ROUNDS, BATCH = 8, 40, 16
draw = torch.Generator().manual_seed(0)
digits = cd.data.digits()
x, y = digits.train.take(torch.randperm(len(digits.train), generator=draw)[: NODES * 160])
x, y = x.flatten(1).view(NODES, 160, -1), y.view(NODES, 160).clone()
y[3] = (y[3] + 1) % 10
W = cd.topology.build("ring", NODES)(0).float()

first = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
with torch.no_grad():
    for parameter in first.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)
models = [deepcopy(first) for _ in range(NODES)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5) for model in models]
schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * ROUNDS) for optimizer in optimizers]

test = cd.data.Samples(digits.test.take(torch.arange(len(digits.test)))[0].flatten(1), digits.test.y)
recorder = cd.Recorder(models, optimizers, F.cross_entropy, test=test)
for _ in range(ROUNDS):
    with recorder.round(W) as step:
        for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            chosen = torch.randperm(160, generator=draw)[:BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[k, chosen]), y[k, chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedulers[k].step()
            step(k, x[k, chosen], y[k, chosen], loss, index=160 * k + chosen)
        with torch.no_grad():
            for same in zip(*(model.parameters() for model in models), strict=True):
                for parameter, mean in zip(same, torch.einsum("kj,j...->k...", W, torch.stack(same)), strict=True):
                    parameter.copy_(mean)

network, rounds = recorder.network, recorder.rounds
scores = cd.score(network, rounds, samples=True)
print(scores)
of_liar = scores.samples["participant"] == 3
worst, verdict = int(scores.samples["sample"][of_liar][-1]), scores.samples["verdict"][of_liar][-1]
print(f"Highest of participant 3's samples: number {worst % 160} of its own, called {y[3, worst % 160]}: {verdict}.")
folder = cd.save(network, rounds, Path(mkdtemp()) / "run")
print(f"cascadice report, detect, choose, reward and forget work on the run in {folder.name}/, given --model.")
