"""Data: read it, divide it among participants, draw batches from it, corrupt it on purpose."""

from cascadice.data import batches, corruption, partition
from cascadice.data.catalogue import DATASETS, digits, load, pydoc
from cascadice.data.cifar_files import cifar10, cifar100
from cascadice.data.inputs import next_tokens
from cascadice.data.mnist_files import mnist
from cascadice.data.samples import DataSet, Samples, from_tensors, from_torch, resolve
from cascadice.data.tiny_imagenet_files import tiny_imagenet

__all__ = [
    "DATASETS", "DataSet", "Samples", "batches", "cifar10", "cifar100", "corruption", "digits", "from_tensors",
    "from_torch", "load", "mnist", "next_tokens", "partition", "pydoc", "resolve", "tiny_imagenet",
]  # fmt: skip
