"""A model that takes its time, so that a process has time to come back before the others have finished."""

import os
from pathlib import Path
from time import sleep

import torch
from torch import Tensor, nn

PACE = "CHAOS_PACE"  # names a file with the seconds that a local step takes; without it, no time is taken


class Unhurried(nn.Module):
    """One hidden layer, and a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and PACE in os.environ:
            sleep(float(Path(os.environ[PACE]).read_text() or 0))
        hidden: Tensor = self.second(torch.tanh(self.first(x.flatten(1))))
        return hidden


def make() -> nn.Module:
    """For `cascadice run --model chaos.unhurried:make`."""
    return Unhurried()
