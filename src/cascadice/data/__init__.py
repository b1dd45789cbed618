"""Data: reading it, dividing it among participants, walking it in batches, spoiling it on purpose."""

from cascadice.data import batches, corruption, partition
from cascadice.data.bundled import digits, pydoc
from cascadice.data.catalogue import DATASETS, load
from cascadice.data.cifar import cifar10, cifar100
from cascadice.data.idx import mnist
from cascadice.data.samples import DataSet, Samples, from_tensors, from_torch
from cascadice.data.tiny import tiny_imagenet

__all__ = [
    "DATASETS",
    "DataSet",
    "Samples",
    "batches",
    "cifar10",
    "cifar100",
    "corruption",
    "digits",
    "from_tensors",
    "from_torch",
    "load",
    "mnist",
    "partition",
    "pydoc",
    "tiny_imagenet",
]
