"""What each client of a Flower run contributed: FedAvg of eight clients, one of which has wrong labels.

The strategy is Flower's own; `Watched` stands around it. What clients did in a round needs nothing of them; what they
contributed to the final model needs them to tell their steps. Needs Flower (`make flower`). Prints each client's share
of what the rounds did to the test loss, and of what training achieved, with 95 % intervals (negative helped).
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
from cascadice.influence.uncertainty import bounds_of_totals

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


fedavg = FedAvg(fraction_evaluate=0.0)
strategy = Watched(fedavg, start, F.cross_entropy, test, optimizer=lambda parameters: torch.optim.SGD(parameters, LR))
strategy.start(InProcess(app, CLIENTS), ArrayRecord(start.state_dict()), num_rounds=ROUNDS)

watch, shares = strategy.watch, strategy.watch.shares().numpy()
low, high = bounds_of_totals(shares)
final = cd.score(watch.network, watch.rounds, kind="whole-run-shares", points=6).participants
for k, one in enumerate(shares.sum(0)):
    print(f"client {k}: {one:+.4f} over all rounds, 95 % interval {low[k]:+.4f} to {high[k]:+.4f}")
print(f"of what training did to the final model's loss:\n{final}\nClient {final['participant'][-1]} did most harm.")
