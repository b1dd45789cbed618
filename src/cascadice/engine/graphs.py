"""Recording work on a GPU as a graph: a launch costs more than a small kernel, a replay costs one launch for all."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

R = TypeVar("R")


def record(work: Callable[[], R]) -> tuple[torch.cuda.CUDAGraph, R]:
    """The graph of what `work` launches, and its results: a replay writes them again, from where it then reads."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # lets compilers and libraries settle before anything is recorded
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        done = work()
    return graph, done


def recorded(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` on structures of tensors, as a graph for each form of them. Its next use overwrites what it gave."""
    known: dict[tuple[Any, ...], tuple[list[Tensor], torch.cuda.CUDAGraph, Any]] = {}

    def run(*given: Any) -> Any:
        leaves, shape = tree_flatten(given)
        form = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if form not in known:
            fixed = [leaf.clone() for leaf in leaves]
            known[form] = (fixed, *record(lambda: call(*tree_unflatten(fixed, shape))))
        fixed, graph, found = known[form]
        torch._foreach_copy_(fixed, leaves)
        graph.replay()
        return found

    return run
