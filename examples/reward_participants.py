"""Share a budget by what everyone contributed, from a ledger that reveals every change.

Prints what each of eight participants is paid out of 1000: 0 does nothing, 1 has wrong labels, 2 holds few samples.
Then one part of the ledger is damaged: the ledger names it, and the other rounds still count.
"""

import tempfile
from pathlib import Path

import torch

import cascadice as cd
from cascadice.applications.reward.contributions import by_shares
from cascadice.applications.reward.ledger import by_round, enter, read_ledger
from cascadice.applications.reward.payouts import pay

data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,))
order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(1))
parts = [order[100 * k : 100 * k + (20 if k == 2 else 100)] for k in range(8)]
network = cd.network(
    model,
    data,
    nodes=8,
    partition=parts,
    batch_size=16,
    lr=0.2,
    corruptions=[cd.Corruption("flip-labels", (1,), strength=0.8)],
    behaviours=[cd.Behaviour("free-rider", (0,))],
)
evaluation = cd.influence.evaluate_on(network)
rounds = list(cd.simulate(network, 60))
accuracy = cd.evaluate(network, rounds[-1].after).accuracy.mean()

with tempfile.TemporaryDirectory() as folder:
    note = {"run": "example", "kind": "shares, 2 hops"}
    enter(folder, note, (by_shares(network, rounds[t : t + 2], evaluation) for t in range(0, 58, 4)))
    payment = pay(by_round(read_ledger(folder, note)), 1000.0, floor=20.0).payment
    for node, name in enumerate(["free-rider", "wrong labels", "few samples", *["plain"] * 5]):
        print(f"participant {node}  {name:12}  {payment[node]:6.1f}")
    print(f"all together {payment.sum():.1f}; test accuracy {accuracy:.3f}")

    part = Path(folder, "part-00000008.parquet")
    part.write_bytes(part.read_bytes()[:100])
    ledger = read_ledger(folder, note)
    print(f"{ledger.problems[8]}; {len(ledger.rounds)} rounds still count")
print("Participants that did nothing or harm get the floor; the others are paid by how much they lowered the loss.")
