"""Your own data: any torch Dataset, or arrays in memory, for classes and for regression.

Prints the accuracy on spirals given as a torch Dataset, and the error on a noisy curve given as NumPy arrays when each
participant holds one stretch of the curve.
"""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

import cascadice as cd


class Spirals(Dataset[tuple[Tensor, int]]):
    """Points on three arms; the arm is the class."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.arm = torch.randint(3, (size,), generator=generator)
        self.radius = torch.rand(size, generator=generator)
        self.noise = 0.1 * torch.randn(size, generator=generator)

    def __len__(self) -> int:
        return len(self.arm)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        angle = 4 * self.radius[i] + 2.0944 * self.arm[i] + self.noise[i]
        return 2 * self.radius[i] * torch.stack([angle.cos(), angle.sin()]), int(self.arm[i])


spirals = cd.data.from_torch(Spirals(1600, seed=0), Spirals(400, seed=1), name="spirals", classes=["a", "b", "c"])
model = cd.models.build("mlp", spirals.train.shape, 3, hidden=(64, 64))
network = cd.network(model, spirals, nodes=8, mixing="ring", optimizer="adam", lr=0.01)
*_, last = cd.simulate(network, 200, window=0)
print(f"spirals: mean accuracy {cd.evaluate(network, last.after).accuracy.mean():.3f}")

x = np.linspace(-1, 1, 800, dtype=np.float32)[:, None]
y = np.sin(4 * x) + 0.1 * np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32)
curve = cd.data.from_tensors(x, y, x[::7], np.sin(4 * x[::7]), name="curve")
stretches = list(torch.arange(len(x)).tensor_split(8))  # participant k sees one eighth of the axis only
smooth = cd.models.build("mlp", curve.train.shape, 1, hidden=(32, 32), activation="tanh")
for mixing in ("alone", "complete"):
    network = cd.network(
        smooth, curve, nodes=8, mixing=mixing, partition=stretches, loss=cd.losses.mse, optimizer="adam", lr=0.01
    )
    *_, last = cd.simulate(network, 300, window=0)
    print(f"curve, {mixing}: mean squared error {cd.evaluate(network, last.after).loss.mean():.4f}")
print("Together they know the whole curve, although each has seen an eighth of it.")
