"""The wrong labels that a page shows for samples are those that participants trained with."""

from collections import Counter

import torch

import cascadice as cd
from cascadice.engine import draw, load
from cascadice.engine.groups import uniform_parts
from cascadice.report.page import collect

EVEN = [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]], [[12, 13, 14], [15, 16, 17]]]
UNEVEN = [[[0, 1, 2], [3]], [[6], [9, 10, 11]], []]  # in two phases


def test_labels_of_even_and_uneven_rounds(tmp_path):
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0)
    data = cd.data.from_tensors(x[:36], y[:36], x[36:], y[36:], classes=["a", "b", "c"])
    liar = cd.Corruption("flip-labels", nodes=(1,), strength=0.9)
    network = cd.network(
        cd.models.build("mlp", (4,), 3, hidden=(4,)), data, mixing="complete", nodes=3, corruptions=[liar], lr=0.1,
        batches=lambda t: UNEVEN if t % 2 else EVEN,
    )  # fmt: skip
    cd.report(network, cd.simulate(network, 24), tmp_path / "run", samples=True)
    trained = {sample: Counter() for sample in range(6, 12)}
    for t in range(24):
        for phase, group in uniform_parts(network, draw(network, t)):
            if 1 not in group.nodes:
                continue
            labels, used = load(network, phase, [1], group=group).y, phase.batch[1, : group.steps, : group.size]
            for sample, label in zip(used.flatten().tolist(), labels.flatten().tolist(), strict=True):
                if label != int(y[sample]):
                    trained[sample][data.classes[label]] += 1
    shown = collect(tmp_path / "run")["samples"]
    became = {one["sample"]: dict(one["became"]) for one in (*shown["helped"], *shown["harmed"]) if "became" in one}
    assert became
    assert all(labels == dict(trained[sample]) for sample, labels in became.items())
