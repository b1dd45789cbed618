"""What each client of a Flower run contributed: FedAvg of eight clients, one of which has wrong labels.

The strategy is Flower's own; `Watched` stands around it. What clients did in a round needs nothing of them; what they
contributed to the final model needs them to tell their steps. Needs Flower (`make flower`). Prints both for each
client: its share of what the rounds did to the test loss, and of what training achieved (negative helped).
"""

import logging

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import cascadice as cd
from cascadice.adapters.flower import InProcess, Steps, Watched

CLIENTS, ROUNDS, BATCH, LR = 8, 8, 20, 0.1
logging.getLogger("flwr").setLevel(logging.ERROR)
digits = cd.data.digits()
x, y = digits.train.take(torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(0))[: CLIENTS * 160])
x, y = x.flatten(1).view(CLIENTS, 160, -1), y.view(CLIENTS, 160).clone()
y[3] = (y[3] + 1) % 10
test = cd.data.Samples(digits.test.take(torch.arange(len(digits.test)))[0].flatten(1), digits.test.y)

torch.manual_seed(0)
start = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
app = ClientApp()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """An epoch of SGD, as clients do it; the two lines with `steps` are added."""
    k, steps = int(context.node_config["partition-id"]), Steps()
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for inputs, labels in zip(x[k].view(-1, BATCH, 64), y[k].view(-1, BATCH), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps.add(inputs, labels, LR)
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y[k])})}
    return Message(RecordDict({**reply, "cascadice": steps.record(client=k)}), reply_to=message)


strategy = Watched(
    FedAvg(fraction_evaluate=0.0), start, F.cross_entropy, test, optimizer=lambda p: torch.optim.SGD(p, LR)
)
strategy.start(InProcess(app, CLIENTS), ArrayRecord(start.state_dict()), num_rounds=ROUNDS)

by_round, network = strategy.watch.shares().sum(0).tolist(), strategy.watch.network
evaluation = cd.influence.evaluate_on(network)
final = cd.influence.contributions(network, strategy.watch.rounds, evaluation, points=6).tolist()
for k in range(CLIENTS):
    print(f"client {k}: {by_round[k]:+.4f} over all rounds, {final[k]:+.4f} of the final model's loss")
print(f"The data of client {final.index(max(final))} did most harm.")
