"""Run a function of one participant for every row: in one vectorised sweep, or row by row over threads.

Strategy: `over_rows` vmaps the function unless the network's strategy is "loop", which deals rows out over threads that
have one intra-op thread each. With "compile" on CUDA, sweeps whose number of rows never changes are compiled and
captured as CUDA graphs; all others stay plain vmap, because each new number of rows would be compiled again.

Traps: a module is not safe to call from two threads, so every worker has a `twin` of it; torch counts the levels of
forward-mode derivatives once for all threads, so these need workers=1; a captured sweep overwrites its last results;
threads do not survive a fork.
"""

import os
import warnings
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Barrier, Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from cascadice.data.inputs import at, stacked
from cascadice.engine.dropout import DropoutStart
from cascadice.engine.fast.cuda_graphs import captured_call
from cascadice.engine.fast.double_backward import tolerate_user_hooks
from cascadice.engine.learner import Learner
from cascadice.engine.networks import LocalInputs

R = TypeVar("R")

# until somebody sets the number of threads, MKL may use fewer than that, and sum in another order
torch.set_num_threads(torch.get_num_threads())

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

    with repeatable():
        shards = [iter(shard) for shard in pool.map(shard, range(workers))]
    return [next(shards[k % workers]) for k in range(rows)]


def over_rows(
    row: Callable[..., Any], strategy: str, learner: Learner, *shared: Any, workers: int | None = None,
    fetch: Callable[[list[int] | None], Any] = lambda rows: (), steady: bool = False, out: Tensor | None = None,
    starts: Sequence[DropoutStart] = (),
) -> Callable[..., Any]:  # fmt: skip
    """A function of stacked arguments that calls `row(learner, *arguments, *fetched, *shared)` for each of their rows.

    Loops use that many `workers` (threads), fetch inputs row by row, write the first result to `out`, and begin a row's
    random draws at its entry of `starts`. A sweep is compiled and captured on CUDA if the number of rows is `steady`:
    once per `row` and shared objects, and the next call overwrites the results.
    """
    if strategy != "loop":
        compiles = steady and strategy == "compile" and _on_cuda(learner)
        sweep = (_compiled_sweep if compiles else _plain_sweep)(row, learner, *shared)
        run_all = torch.no_grad()(lambda *rows: sweep(*rows, *fetch(None)))
        return run_all if _on_cuda(learner) else repeatable()(run_all)

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


_lock, _before = Lock(), list[tuple[bool, bool, bool]]()  # the settings outside, once for each that is inside


@contextmanager
def repeatable() -> Iterator[None]:
    """Sum in an order that does not depend on threads, e.g. in the gradient of a parameter that is indexed.

    Where torch has no such algorithm, it uses the usual one. The settings are those of the process, so the last one to
    leave puts them back.
    """
    settings: Any = torch.utils.deterministic
    with _lock:
        outside = (
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
            settings.fill_uninitialized_memory,
        )  # fmt: skip
        _before.append(_before[0] if _before else outside)
        # not torch.use_deterministic_algorithms, which imports torch.compile's modules for nearly two seconds
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        settings.fill_uninitialized_memory = False  # filling costs a pass over every new tensor
    try:
        yield
    finally:
        with _lock:
            was, only_warned, filled = _before.pop()
            if not _before:
                torch._C._set_deterministic_algorithms(was, warn_only=only_warned)
                settings.fill_uninitialized_memory = filled


@contextmanager
def deterministic() -> Iterator[None]:
    """`repeatable` on a GPU: also run cuDNN without benchmarks, and compiled code without atomic sums.

    An embedding's gradient has them. Where torch has no deterministic algorithm, its warning is silenced.
    """
    was = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    tf32 = torch.backends.cudnn.allow_tf32
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            repeatable(),
            warnings.catch_warnings(),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32),
        ):
            warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=only_warned)


def twin(learner: Learner, worker: int) -> Learner:
    """The copy of the learner that belongs to this worker."""
    twins = _twins.setdefault(learner, {})
    return twins.get(worker) or twins.setdefault(worker, learner.twin())


_twins: MutableMapping[Learner, dict[int, Learner]] = WeakKeyDictionary()


STARTS = 60.0  # seconds in which threads must have started


@cache
def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    own, started = torch.get_num_threads(), Barrier(workers + 1)

    def start() -> None:
        # at its first parallel operation a thread takes the number that any thread set last; this counts as its first
        torch.get_num_threads()
        torch.set_num_threads(threads)
        started.wait(STARTS)

    pool = ThreadPoolExecutor(workers, "cascadice", initializer=start)
    for _ in range(workers):  # a thread each, because none is idle before all have started
        pool.submit(int)
    started.wait(STARTS)
    torch.set_num_threads(own)  # new threads elsewhere take the number that was set last
    return pool


# a forked child that waited for its parent's threads would wait for ever
os.register_at_fork(after_in_child=_pool.cache_clear)
