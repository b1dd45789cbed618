"""How much memory a step of training takes, from the sizes of its model, its optimizer's state and its batch.

Parameters are counted in copies of a participant's row, activations from a pass that computes no numbers.
`benchmarks/memory.py` compares forecasts made of these with what Linux measures.
"""

from copy import deepcopy
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cascadice.data.inputs import Inputs, in_precision
from cascadice.engine.backwards import bytes_of
from cascadice.engine.learner import forward
from cascadice.engine.networks import Network

BACKWARD = 2  # the results of layers, and their gradients
TEMPORARY = 3  # rows of parameters in a step: the gradient, the step, the result


class Activations(NamedTuple):
    """The sizes of a model's activations for one sample: their sum, and the most that a forward pass holds at once."""

    all: int
    most: int


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_leaves(tree) if isinstance(x, Tensor)] for tree in ((args, kwargs), result))
        places = {leaf.untyped_storage()._cdata for leaf in given}
        self.sizes += [leaf.numel() for leaf in made if leaf.untyped_storage()._cdata not in places]
        return result


def activations(model: nn.Module, sample: Inputs, compute: torch.dtype | None = None) -> Activations:
    """The activations of a model for one sample, from a pass on torch's meta device, which computes no numbers.

    A model that cannot run there, because it looks at values or makes tensors elsewhere, runs with real numbers.
    `compute` is the precision of the pass, if it is not that of the parameters.
    """
    try:
        computed = _computed(deepcopy(model).to("meta"), tree_map(lambda part: part.to("meta"), sample), compute)
    except Exception:  # whatever a model of the user's raises there
        computed = _computed(model, sample, compute)
    sizes = [sum(part.numel() for part in tree_leaves(sample)), *computed]
    return Activations(sum(sizes[1:]), max((a + b for a, b in pairwise(sizes)), default=0))


def _computed(model: nn.Module, sample: Inputs, compute: torch.dtype | None) -> list[int]:
    """The sizes of all tensors that a pass computes, in order."""
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    counting = _Counting()
    with torch.no_grad(), counting:
        forward(model, tensors, sample, compute)
    return counting.sizes


def activations_of(network: Network) -> Activations:
    """The activations of a network's model for one of its training samples."""
    train = network.data.train
    x, _ = train.take(torch.zeros(1, dtype=torch.int64) if train.numbers is None else train.numbers[:1])
    x = tree_map(lambda part: part.to(network.device), in_precision(x, network.initial.theta.dtype))
    return activations(network.learner.evaluating, x, network.learner.compute)


def rows_at_once(network: Network, rows: int) -> int:
    """How many of these rows are computed at once: all if vectorised, one per thread in a loop."""
    threads = torch.get_num_threads() if network.device.type == "cpu" else 1
    return min(rows, threads) if network.strategy == "loop" else rows


def bytes_of_step(network: Network, rows: int | None = None) -> int:
    """The memory of a training pass of these rows, by default of all participants."""
    _, steps, batch = network.batches(0).shape
    size, rows = network.initial.theta.element_size(), network.nodes if rows is None else rows
    per_parameter = TEMPORARY + bytes_of(network.initial) / network.initial.theta.nbytes
    parts = tree_leaves(network.data.train.x)
    inputs = steps * batch * sum(prod(part.shape[1:]) * (size + part.element_size()) for part in parts)
    each = per_parameter * network.learner.size * size + BACKWARD * batch * activations_of(network).all * size + inputs
    return int(rows_at_once(network, rows) * each)
