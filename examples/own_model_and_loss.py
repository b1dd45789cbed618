"""Your own nn.Module and your own loss, with nothing to inherit from and nothing to register.

The loss is any function (outputs, targets) -> scalar: here cross-entropy with label smoothing, written by hand. The
model is given as a function that makes it, so every participant can draw its own initial parameters. Prints the test
accuracy from shared and from own initial parameters.
"""

import torch
from torch import Tensor, nn

import cascadice as cd


class Gated(nn.Module):
    """One hidden layer whose units are opened and closed by a second one."""

    def __init__(self, pixels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(pixels, width), nn.Linear(pixels, width)
        self.read = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        logits: Tensor = self.read(self.value(x) * torch.sigmoid(self.gate(x)))
        return logits


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """A tenth of the target is spread evenly over all classes."""
    log_p = logits.log_softmax(-1)
    return -0.9 * log_p.gather(-1, labels[:, None]).mean() - 0.1 * log_p.mean()


data = cd.data.digits()
for init in ("shared", "own"):
    network = cd.network(lambda: Gated(64, 10), data, nodes=8, loss=smoothed, init=init, batch_size=16, lr=0.2)
    *_, last = cd.simulate(network, 150, window=0)
    accuracy = cd.evaluate(network, last.after).accuracy
    print(f"{init:6} initial parameters: mean accuracy {accuracy.mean():.3f}")

best = cd.module_of(network, last.after, int(accuracy.argmax()))
print(f"A participant's model is an ordinary module again: {type(best).__name__}, eval mode {not best.training}.")
