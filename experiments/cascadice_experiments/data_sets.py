"""Which data a study runs on: CIFAR-10 where it is found, otherwise the digits that come with scikit-learn."""

from pathlib import Path

import torch

from cascadice import data
from cascadice.data import Samples

BESIDE = Path("..", "shared", "data")  # data sets that lie next to the repository
FALLBACK = "CIFAR-10 was not found (--data-root, $CASCADICE_DATA, the cache, ../shared/data): using digits."


def find(root: str | None) -> tuple[str, str | None]:
    """The name and folder of the data set to use: CIFAR-10, in `root` or beside the repository, or else digits."""
    for folder in (root, str(BESIDE)):
        try:
            data.load("cifar10", folder)
        except FileNotFoundError:
            continue
        return "cifar10", folder
    return "digits", None


def find_and_tell(root: str | None) -> tuple[str, str | None]:
    """Like `find`, but print a line if digits replace CIFAR-10."""
    name, folder = find(root)
    if name == "digits":
        print(FALLBACK)
    return name, folder


def first(samples: Samples, most: int | None) -> Samples:
    """The first `most` samples, or all if there are fewer or `most` is None."""
    return samples if most is None else samples.subset(torch.arange(min(most, len(samples))))
