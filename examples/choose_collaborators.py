"""Choose whom to average with, by the influence of neighbours' updates on each participant's own data.

Two groups have labels that contradict each other. Prints the accuracy when everyone averages with all neighbours,
trains alone, chooses by influence, and knows its own group; then the groups found in the influence, and the links kept.
"""

from dataclasses import replace

import torch

import cascadice as cd
from cascadice.applications.choose.groups import find_groups
from cascadice.engine.exchange import robust
from cascadice.engine.exchange.cosine_trust import cosine_trust
from cascadice.engine.exchange.geometry import neighbours
from cascadice.engine.rounds import MixingRule

NODES, SECOND = 12, (1, 2, 5, 7, 8, 11)  # the second group calls a nine zero, an eight one, and so on
data = cd.data.digits()
network = cd.network(
    cd.models.build("mlp", data.train.shape, len(data.classes), hidden=(32,)),
    data,
    nodes=NODES,
    batch_size=16,
    lr=0.2,
    corruptions=[cd.Corruption("mirror-labels", SECOND)],
)
mirrored = replace(data.test, y=9 - data.test.y)
group = torch.tensor([node in SECOND for node in range(NODES)]).long()


def accuracy(rule: MixingRule | None = None) -> float:
    """Mean accuracy of everybody on test data with the labels of its own group, after 100 rounds."""
    *_, last = cd.simulate(network, 100, rule=rule, window=0)
    first, second = (cd.evaluate(network, last.after, test).accuracy for test in (data.test, mirrored))
    return float(torch.where(group == 0, first, second).mean())


chooser = cosine_trust(network)
print(f"everyone averages with its neighbours  {accuracy():.3f}")
print(f"everyone trains alone                  {accuracy(robust.alone):.3f}")
print(f"everyone chooses by influence          {accuracy(chooser):.3f}")
print(f"everyone knows its own group           {accuracy(robust.within(group)):.3f}")
print(f"groups in the influence: {find_groups(chooser.given).tolist()}")
heard = neighbours(network.mixing(0))
kept, same = heard & chooser.trust.trusted, group[:, None] == group
print(f"of {int(heard.sum())} links {int(kept.sum())} are kept, {int((kept & same).sum())} of them within a group.")
