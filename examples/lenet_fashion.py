"""A LeNet with dropout, on clothes, among eight participants that trust each other unequally.

Everything is your own: the model, the data, the weighted directed graph. The labels of participant 5 are wrong.
Fashion-MNIST is Debian's `dataset-fashion-mnist`; where it is not installed, scikit-learn's digits stand in for it.
Prints whose data helped the final models, writes the page of the run, and prints a command that works on its folder.
"""

from pathlib import Path
from tempfile import mkdtemp

import networkx as nx
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import cascadice as cd
from cascadice.data.mnist_files import FILES, read_idx

FASHION = Path("/usr/share/datasets/fashion-mnist")
NODES, EACH, TEST = 8, 60, 100


class LeNet(nn.Sequential):
    """LeNet-5 with dropout before its last layer."""

    def __init__(self) -> None:
        features = (nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh())
        classifier = (nn.Linear(400, 84), nn.Tanh(), nn.Dropout(0.2), nn.Linear(84, 10))
        super().__init__(*features, nn.AvgPool2d(2), nn.Flatten(), *classifier)


def images() -> tuple[Tensor, Tensor]:
    """Images 1×28×28, and their labels."""
    if FASHION.exists():
        x, y = (
            read_idx(FASHION / f"{name}.gz", dimensions) for name, dimensions in zip(FILES[:2], (3, 1), strict=True)
        )
        return x[: NODES * EACH + TEST, None] / 255 - 0.5, y[: NODES * EACH + TEST].long()
    print(f"{FASHION} is not here (apt install dataset-fashion-mnist): digits instead.")
    digits = cd.data.digits().train
    return interpolate(digits.x[: NODES * EACH + TEST], size=28), digits.y[: NODES * EACH + TEST]


if __name__ == "__main__":
    x, y = images()
    held = NODES * EACH
    labels = torch.where(torch.arange(held) // EACH == 5, (y[:held] + 1) % 10, y[:held])
    data = cd.data.from_tensors(x[:held], labels, x[held:], y[held:], name="clothes", classes=10)
    trust = nx.DiGraph([(j, (j + 1) % NODES, {"weight": 0.4}) for j in range(NODES)])
    trust.add_weighted_edges_from((j, (j + 3) % NODES, 0.1 + 0.02 * j) for j in range(NODES))  # the rest: for oneself
    owners = list(torch.split(torch.arange(held), EACH))
    network = cd.network(LeNet, data, mixing=trust, partition=owners, batch_size=20, lr=0.1)
    rounds = list(cd.simulate(network, 25))
    print(cd.score(network, rounds))
    print(f"mean test accuracy: {cd.evaluate(network, rounds[-1].after).accuracy.mean():.3f}")
    page = cd.report(network, rounds, Path(mkdtemp()) / "run", model="lenet_fashion:LeNet")  # to build the model again
    print(f"The page is {page}. Commands work on its folder; in that of this script, try:")
    print(f"cascadice detect {page.parent}\nThe others are choose, reward, forget and validate.")
