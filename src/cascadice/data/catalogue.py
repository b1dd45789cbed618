"""All data sets by name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cascadice.data.bundled import digits, pydoc
from cascadice.data.cifar import cifar10, cifar100
from cascadice.data.download import ARCHIVES
from cascadice.data.download import download as fetch_archives
from cascadice.data.idx import mnist
from cascadice.data.places import Root
from cascadice.data.samples import DataSet
from cascadice.data.tiny import tiny_imagenet
from cascadice.names import lookup


class Source(NamedTuple):
    """How to read a data set, given the folder to search first."""

    read: Callable[[Root], DataSet]
    description: str


DATASETS: Mapping[str, Source] = {
    "digits": Source(lambda root: digits(), "8×8 handwritten digits, bundled with scikit-learn (1,442 + 355)"),
    "mnist": Source(mnist, "28×28 handwritten digits (60,000 + 10,000)"),
    "cifar10": Source(cifar10, "32×32 colour images of 10 classes (50,000 + 10,000)"),
    "cifar100": Source(cifar100, "32×32 colour images of 100 classes (50,000 + 10,000)"),
    "tiny-imagenet": Source(tiny_imagenet, "64×64 colour images of 200 classes (100,000 + 10,000)"),
    "pydoc": Source(lambda root: pydoc(), "the documentation that ships with Python, as characters"),
}


def load(name: str, root: Root = None, download: bool = False, quiet: bool = False) -> DataSet:
    """The data set called `name`, searched for in `root`, then $CASCADICE_DATA, then the cache.

    Args:
        name: One of DATASETS.
        download: Whether to download the data set if it is in none of these places.
        quiet: Show no progress bar.

    Raises:
        FileNotFoundError: The data set is in none of these places; the message lists them.
        ValueError: The name is unknown, or a file is damaged.

    Example:
        >>> load("digits").classes[:3]
        ('0', '1', '2')
    """
    source = lookup(DATASETS, name, "data set")
    try:
        return source.read(root)
    except FileNotFoundError:
        if not download or name not in ARCHIVES:
            raise
    fetch_archives(name, root, quiet=quiet)
    return source.read(root)
