"""Run a function of one participant for every row: in one vectorised sweep, or row by row over threads.

Strategy: `over_rows` vmaps the function unless the network's strategy is "loop", which deals rows out over threads that
have one intra-op thread each. With "compile" on CUDA, sweeps whose number of rows never changes are compiled and
captured as CUDA graphs; all others stay plain vmap, because each new number of rows would be compiled again.

Traps: a module is not safe to call from two threads, so every worker has a `twin` of it; torch counts the levels of
forward-mode derivatives once for all threads, so these need workers=1; a captured sweep overwrites its last results;
threads do not survive a fork.
"""

import os
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from cascadice.data.inputs import at, stacked
from cascadice.engine.dropout import DropoutStart
from cascadice.engine.fast.cuda_graphs import captured_call
from cascadice.engine.fast.determinism import deterministic
from cascadice.engine.fast.double_backward import tolerate_user_hooks
from cascadice.engine.learner import Learner
from cascadice.engine.networks import LocalInputs

R = TypeVar("R")

Fetch = Callable[[list[int] | None], LocalInputs]
"""Loads the inputs of these rows, or of all if None. Loops fetch row by row, so that inputs are still in the cache."""


def each_row(work: Callable[[int, int], R], rows: int, device: torch.device, workers: int | None = None) -> list[R]:
    """Call `work(worker, k)` for every row k, on CPU over threads; a worker never runs twice at the same time.

    The intra-op threads are divided equally among the workers, so results do not depend on the number of threads as
    long as there are at least as many rows.
    """
    if device.type != "cpu":
        return [work(0, k) for k in range(rows)]
    threads = torch.get_num_threads()
    workers = workers or min(threads, rows)
    pool = _pool(workers, max(1, threads // workers))

    def shard(worker: int) -> list[R]:
        with torch.no_grad():
            return [work(worker, k) for k in range(worker, rows, workers)]

    shards = [iter(shard) for shard in pool.map(shard, range(workers))]
    return [next(shards[k % workers]) for k in range(rows)]


def over_rows(
    row: Callable[..., Any], strategy: str, learner: Learner, *shared: Any, workers: int | None = None,
    fetch: Callable[[list[int] | None], Any] = lambda rows: (), steady: bool = False, out: Tensor | None = None,
    starts: Sequence[DropoutStart] = (),
) -> Callable[..., Any]:  # fmt: skip
    """A function of stacked arguments that calls `row(learner, *arguments, *fetched, *shared)` for each of their rows.

    Args:
        row: The function of one participant.
        strategy: "loop" goes row by row; anything else is one sweep.
        learner: Passed to `row`; loops pass the worker's twin of it.
        shared: Arguments that are the same for all rows.
        workers: How many threads a loop may use; forward-mode derivatives need 1.
        fetch: Loads large inputs: everything at once for a sweep, row by row for a loop.
        steady: Whether the number of rows is always the same, so that a sweep may be compiled and captured on CUDA.
            This happens once per `row` and shared objects, and the next call overwrites the results.
        out: Where a loop writes the first of its results.
        starts: Where the random draws of each row begin, if the model draws; such models are only run in loops.
    """
    if strategy != "loop":
        compiles = steady and strategy == "compile" and _on_cuda(learner)
        sweep = (_compiled_sweep if compiles else _plain_sweep)(row, learner, *shared)
        return torch.no_grad()(lambda *rows: sweep(*rows, *fetch(None)))

    def run(*rows: Any) -> Any:
        leaf: Tensor = tree_leaves(rows)[0]

        def work(worker: int, k: int) -> Any:
            acting, arguments = twin(learner, worker), (*at(rows, k), *at(fetch([k]), 0))
            with acting.masks.of(starts[k] if starts else None, leaf.device), tolerate_user_hooks(acting.training):
                result = row(acting, *arguments, *shared)
            if out is None:
                return result
            out[k].copy_(result[0])
            return result[1:]

        results = stacked(each_row(work, len(leaf), leaf.device, 1 if starts else workers))
        return results if out is None else (out, *results)

    return torch.no_grad()(run)


def _on_cuda(learner: Learner) -> bool:
    return next(learner.training.parameters()).is_cuda


def _plain_sweep(row: Callable[..., Any], learner: Learner, *shared: Any) -> Callable[..., Any]:
    return vmap(lambda *arguments: row(learner, *arguments, *shared))


def _compiled_sweep(row: Callable[..., Any], learner: Learner, *shared: Any) -> Callable[..., Any]:
    known = _compiled_sweeps.setdefault(learner, {})
    key = (row, *map(id, shared))
    if key not in known:
        sweep = torch.compile(_plain_sweep(row, learner, *shared), dynamic=False)
        known[key] = (captured_call(deterministic()(without_recompile_limit(sweep))), shared)
    return known[key][0]


def without_recompile_limit(sweep: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled sweep, however many were compiled before.

    Trap: dynamo counts compilations by code object, which all networks share, and beyond 8 runs the code uncompiled.
    """
    unlimited: Callable[..., Any] = torch._dynamo.config.patch(recompile_limit=1024)(sweep)
    return unlimited


# the shared objects are kept beside what was compiled for them: their ids are the key, and must not be given to others
_compiled_sweeps: MutableMapping[Learner, dict[tuple[Any, ...], tuple[Callable[..., Any], Any]]] = WeakKeyDictionary()


def twin(learner: Learner, worker: int) -> Learner:
    """The copy of the learner that belongs to this worker."""
    twins = _twins.setdefault(learner, {})
    return twins.get(worker) or twins.setdefault(worker, learner.twin())


_twins: MutableMapping[Learner, dict[int, Learner]] = WeakKeyDictionary()


@cache
def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "cascadice", initializer=torch.set_num_threads, initargs=(threads,))


# a forked child that waited for its parent's threads would wait for ever
os.register_at_fork(after_in_child=_pool.cache_clear)
