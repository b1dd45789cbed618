"""Who gossips with whom: a networkx graph, a matrix, a schedule, lossy links, participants that leave and return.

Prints the accuracy and the distance from consensus that eight participants reach with each, on the same data.
"""

import networkx as nx
import torch
from torch import Tensor

import cascadice as cd

NODES, ROUNDS = 8, 100
data = cd.data.digits()
model = cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,))

# W[k, j] is the weight k gives to what it receives from j; every row sums to 1.
friends = cd.topology.metropolis(nx.barbell_graph(4, 0))
chain = torch.eye(NODES) * 0.5 + torch.eye(NODES).roll(1, dims=0) * 0.5


def weekly(t: int) -> Tensor:
    """Everyone averages with everyone in every seventh round; there is no exchange in between."""
    return everyone if t % 7 == 6 else cd.topology.identity(NODES)


everyone = cd.topology.uniform(cd.topology.complete(NODES))
ring = cd.topology.build("ring", NODES)
present = cd.topology.absences([([2, 5], range(20, 60))], NODES)
cases = {
    "two cliques and a bridge": friends,
    "one-way chain": chain,
    "all, every 7th round": weekly,
    "ring": ring,
    "ring, half the links fail": cd.topology.link_loss(ring, 0.5),
    "ring, 2 and 5 away a while": cd.topology.presence(ring, present),
}
for name, mixing in cases.items():
    network = cd.network(model, data, mixing=mixing, partition="dirichlet", batch_size=16, lr=0.1)
    *_, last = cd.simulate(network, ROUNDS, window=0)
    accuracy = cd.evaluate(network, last.after).accuracy.mean()
    print(f"{name:26} accuracy {accuracy:.3f}, consensus distance {cd.consensus(last.after.theta):.3f}")

print()
print(cd.topology.describe(friends))
print("A schedule is a function of the round number: whatever you can compute from t, you can train on.")
