"""Data: reading it, dividing it among participants, walking it in batches, spoiling it on purpose."""

from cascadice.data import batches, corruption, partition
from cascadice.data.bundled import digits, pydoc
from cascadice.data.samples import DataSet, Samples, from_tensors, from_torch

__all__ = [
    "DataSet",
    "Samples",
    "batches",
    "corruption",
    "digits",
    "from_tensors",
    "from_torch",
    "partition",
    "pydoc",
]
