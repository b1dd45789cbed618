"""All data sets by name, and those that come with installed packages: scikit-learn's digits, Python's documentation."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from cascadice.data.cifar_files import cifar10, cifar100
from cascadice.data.download import ARCHIVES
from cascadice.data.download import download as fetch_archives
from cascadice.data.mnist_files import mnist
from cascadice.data.samples import DataSet, Samples
from cascadice.data.source_files import Root
from cascadice.data.tiny_imagenet_files import tiny_imagenet
from cascadice.names import lookup

DIGITS_MEAN, DIGITS_STD = 0.3053, 0.3760  # of all pixels / 16
ALPHABET = "\n" + "".join(chr(c) for c in range(32, 127))
UNKNOWN = ALPHABET.index("?")


def digits() -> DataSet:
    """8×8 handwritten digits: 1,442 for training, 355 for testing, float32 [N, 1, 8, 8], standardised.

    Every fifth image of each class is a test image, so the test set is balanced and needs no seed.

    Returns:
        The data set.

    Example:
        >>> len(digits().train), len(digits().test)
        (1442, 355)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = (torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16 - DIGITS_MEAN) / DIGITS_STD
    y = torch.from_numpy(labels).long()
    held_out = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        held_out[(y == label).nonzero()[4::5]] = True
    train, test = Samples(x[~held_out], y[~held_out]), Samples(x[held_out], y[held_out])
    return DataSet("digits", train, test, tuple("0123456789"))


def pydoc(context: int = 64) -> DataSet:
    """The documentation that ships with Python, as characters: x [N, context], y the same text one character later.

    There are 96 symbols (newline and printable ASCII; other characters become "?") in all Python versions, although the
    text differs. The last tenth of the text is the test set.

    Args:
        context: Characters per sample.

    Returns:
        The data set.

    Raises:
        ValueError: If the context is less than 1, or longer than the test text.

    Example:
        >>> pydoc(context=32).train.shape
        (32,)
    """
    from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

    if context < 1:
        raise ValueError(f"context must be at least 1 character; found {context}.")
    text = "\n".join(topics[key] for key in sorted(topics))
    code = {character: token for token, character in enumerate(ALPHABET)}
    tokens = torch.tensor([code.get(character, UNKNOWN) for character in text])
    cut = len(tokens) * 9 // 10
    if len(tokens) - cut <= context:
        raise ValueError(f"context must be shorter than the held-out text ({len(tokens) - cut}); found {context}.")
    return DataSet("pydoc", _windows(tokens[:cut], context), _windows(tokens[cut:], context), tuple(ALPHABET))


def _windows(tokens: Tensor, context: int) -> Samples:
    """Consecutive windows without overlap, with the next characters as targets."""
    used = (len(tokens) - 1) // context * context
    return Samples(tokens[:used].reshape(-1, context), tokens[1 : used + 1].reshape(-1, context))


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
    """Load a data set by name.

    Args:
        name: One of DATASETS.
        root: The folder to search first; then $CASCADICE_DATA, then the cache.
        download: Whether to download the data set if it is in none of these folders.
        quiet: Whether to hide the progress bar.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If it is not found, and not to be downloaded.
        ValueError: If the name is unknown, or a file is damaged.

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
