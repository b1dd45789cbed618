"""Your own training loop, with your own modules, optimizers and gossip, and whose data helped whom in it.

The loop is plain PyTorch; a recorder watches it. It takes three lines: one to make it, one around a round, one after
each optimizer step. Participant 3 has wrong labels. Prints who helped the final models and the highest score among
participant 3's samples, writes the page of the run, and prints a command that works on its folder.
"""

from copy import deepcopy
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import cascadice as cd

NODES, ROUNDS, BATCH = 8, 40, 16


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = cd.data.digits()
    x, y = digits.train.take(torch.randperm(len(digits.train))[: NODES * 160])
    x, y = x.flatten(1).view(NODES, 160, -1), y.view(NODES, 160).clone()
    y[3] = (y[3] + 1) % 10
    first, W = make(), cd.topology.build("ring", NODES)(0).float()
    models = [deepcopy(first) for _ in range(NODES)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5) for model in models]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * ROUNDS) for optimizer in optimizers]
    test = cd.data.Samples(digits.test.take(torch.arange(len(digits.test)))[0].flatten(1), digits.test.y)
    recorder = cd.Recorder(models, optimizers, F.cross_entropy, test=test)
    for _ in range(ROUNDS):
        with recorder.round(W) as step:
            for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                chosen = torch.randperm(160)[:BATCH]
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[k, chosen]), y[k, chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedulers[k].step()
                step(k, x[k, chosen], y[k, chosen], loss, index=160 * k + chosen)
            sent = torch.stack([parameters_to_vector(model.parameters()).detach() for model in models])
            for model, mixed in zip(models, W @ sent, strict=True):
                vector_to_parameters(mixed, model.parameters())
    network, rounds = recorder.network, recorder.rounds
    scores = cd.score(network, rounds, samples=True)
    print(scores)
    own = scores.samples["participant"] == 3
    worst, verdict = int(scores.samples["sample"][own][-1]) % 160, scores.samples["verdict"][own][-1]
    print(f"Highest of participant 3's samples: number {worst} of its own, called {y[3, worst]}: {verdict}.")
    page = cd.report(network, rounds, Path(mkdtemp()) / "run", model="watch_your_own_loop:make")
    print(f"The page is {page}. Commands work on its folder; in that of this script, try:")
    print(f"cascadice detect {page.parent}\nThe others are choose, reward, forget and validate.")
