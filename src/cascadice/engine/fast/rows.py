"""How the same local work is done for many participants: in a vectorised sweep, one by one, or compiled.

loop      plain autograd, participants sharded over threads with one intra-op thread each
vmap      one vectorised sweep over all of them
compile   the vectorised sweep compiled by torch.compile; on CUDA, whole rounds are also captured as graphs

All three compute `learner.local_steps`; they differ in rounding only. The automatic choice depends on model, batch and
device alone, never on a stopwatch: a run must have the same bits the next time.
"""

import os
import warnings
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from cascadice.data.inputs import Inputs, at, stacked
from cascadice.engine.dropout import Start
from cascadice.engine.fast.buffers import RoundBuffers, allocate, copy_into
from cascadice.engine.fast.cuda_graphs import captured_call
from cascadice.engine.fast.determinism import deterministic
from cascadice.engine.fast.eager import eager_step
from cascadice.engine.fast.hooks import Tape
from cascadice.engine.fast.tape import Layers, taped_step
from cascadice.engine.fast.twice import tolerating_hooks
from cascadice.engine.learner import Learner, Maybe, Participants, Step, local_steps, measure_all
from cascadice.engine.networks import LocalInputs
from cascadice.names import lookup

R = TypeVar("R")

# Parameters up to which one sweep beats a loop on CPU: benchmarks/training.py --strategies loop vmap
SMALL = 2**18

Fetch = Callable[[list[int] | None], LocalInputs]
"""The inputs of these rows of participants, of all if None. A loop fetches row by row, while they are in cache."""

Work = Callable[[Participants, Fetch, RoundBuffers | None], tuple[Participants, Tensor, Any]]
"""(before, fetch, buffers) -> participants at t + ½, in the buffers if given; losses; tapes if asked for."""


class Strategy(NamedTuple):
    """A way to do the local work."""

    make: Callable[[Learner, Layers | None], Work]
    description: str


def choose(learner: Learner, before: Participants, inputs: LocalInputs) -> str:
    """The fastest strategy for this model, batch and device that can run it."""
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in learner.training.modules())
    loops = before.theta.device.type == "cpu" and (convolves or learner.size > SMALL)
    rounds_alike = learner.autocast is None  # a sweep sums in another order, which shows in half precision
    if learner.stochastic or loops or not rounds_alike or not _vectorises(learner, before, inputs):
        return "loop"
    return "vmap" if before.theta.device.type == "cpu" else "compile"


def _vectorises(learner: Learner, before: Participants, inputs: LocalInputs) -> bool:
    """Whether vmap can run the model: some have control flow that depends on values, or operations without a rule."""
    two, inputs = tree_map(lambda tensor: tensor[:2], (before, inputs._replace(starts=())))
    try:
        with warnings.catch_warnings(action="error"):  # a slow fallback announces itself by a warning
            _vectorised(learner, None)(two, lambda rows: inputs, None)
            losses = vmap(lambda one, x, y: measure_all(learner, one, x, y, (learner.loss,)))
            torch.no_grad()(losses)(two, at(inputs.x, (slice(None), 0)), inputs.y[:, 0])
    except Exception:
        return False
    return True


def _vectorised(learner: Learner, layers: Layers | None, compiled: bool = False) -> Work:
    def one(before: Participants, x: Inputs, y: Tensor, lr: Tensor, samples: Maybe) -> Any:
        tapes: list[Tape] = []
        step = None if layers is None else partial(taped_step, layers, tapes)
        return *local_steps(learner, before, x, y, lr, samples, step=step), tuple(tapes)

    everybody = vmap(one)

    def sweep(
        before: Participants, inputs: LocalInputs, buffers: RoundBuffers | None
    ) -> tuple[Participants, Tensor, Any]:
        half, loss, tapes = everybody(before, *inputs[:4])
        return (half, loss, tapes) if buffers is None else (*copy_into((half, loss), buffers.half, buffers.loss), tapes)

    run = torch.compile(sweep, dynamic=False) if compiled else sweep
    return lambda before, fetch, buffers: run(before, fetch(None), buffers)


def _looped(learner: Learner, layers: Layers | None) -> Work:
    steps: dict[int, tuple[Step, list[Tape]]] = {}
    acting = learner if layers is None else layers.learner

    def run(before: Participants, fetch: Fetch, buffers: RoundBuffers | None) -> tuple[Participants, Tensor, Any]:
        half, _, loss = allocate(before) if buffers is None else buffers

        def work(worker: int, k: int) -> tuple[Tape, ...]:
            own = twin(acting, worker)
            if worker not in steps:
                tapes: list[Tape] = []
                steps[worker] = (eager_step(own, None if layers is None else tapes), tapes)
            step, tapes = steps[worker]
            tapes.clear()
            one, to = tree_map(lambda tensor: tensor[k], (before, half))
            x, y, lr, samples, seed = fetch([k])
            weights: Maybe = (samples[0][0],) if samples else ()
            with own.masks.of(seed[0] if seed else None, loss.device):
                result = local_steps(own, one, at(x, 0), y[0], lr[0], weights, step=step, out=to.theta)
            copy_into(result, to, loss[k])
            return tuple(tapes)

        # torch's generator, which dropout draws from, is one for all threads
        tapes = each_row(work, len(loss), loss.device, workers=1 if learner.stochastic else None)
        return half, loss, () if layers is None else tapes

    return run


STRATEGIES: dict[str, Strategy] = {
    "loop": Strategy(_looped, "participants one by one, sharded over threads"),
    "vmap": Strategy(_vectorised, "all participants in one vectorised sweep"),
    "compile": Strategy(
        partial(_vectorised, compiled=True),
        "the vectorised sweep, compiled; on CUDA, rounds are also captured as graphs",
    ),
}


def local_work(strategy: str, learner: Learner, layers: Layers | None = None) -> Work:
    """Everybody's `local_steps` by the named strategy, without gradients and deterministic on one device.

    With `layers`, each step also gives its tape: from a sweep stacked, from a loop participant by participant.
    """
    run = torch.no_grad()(lookup(STRATEGIES, strategy, "strategy").make(learner, layers))
    if not next(learner.training.parameters()).is_cuda:
        return run

    def exactly(before: Participants, fetch: Fetch, buffers: RoundBuffers | None) -> tuple[Participants, Tensor, Any]:
        with deterministic():
            return run(before, fetch, buffers)

    return exactly


def each_row(work: Callable[[int, int], R], rows: int, device: torch.device, workers: int | None = None) -> list[R]:
    """`work(worker, k)` for every row k, dealt over threads on CPU; a worker never runs twice at the same time.

    Each thread gets an equal share of the intra-op threads, whatever else runs: results do not depend on the number
    of threads as long as there are at least as many rows.
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
    starts: Sequence[Start] = (),
) -> Callable[..., Any]:  # fmt: skip
    """`row(learner, *arguments, *shared)` for every row of stacked arguments, in a sweep or sharded over threads.

    Large inputs are better fetched: `row(learner, *arguments, *fetch(rows), *shared)` gets everything for a sweep, and
    row by row for a loop. `out` is where the first of a loop's results may go; `starts` is where each row's draws
    begin, if its model draws at random, which only loops run. Where the number of rows is `steady`,
    sweeps are compiled and captured on CUDA if that is the strategy, once for the same row and shared objects; their
    next use overwrites the results. Forward-mode derivatives need workers=1: torch counts their levels in one place
    for all threads.
    """
    if strategy != "loop":
        compiles = steady and strategy == "compile" and _on_cuda(learner)
        everybody = (_compiled_sweep if compiles else _plain_sweep)(row, learner, *shared)
        return torch.no_grad()(lambda *rows: everybody(*rows, *fetch(None)))

    def run(*rows: Any) -> Any:
        leaf: Tensor = tree_flatten(rows)[0][0]

        def work(worker: int, k: int) -> Any:
            own = tree_map(lambda tensor: tensor[k], rows)
            fetched = tree_map(lambda tensor: tensor[0], fetch([k]))
            acting = twin(learner, worker)
            with acting.masks.of(starts[k] if starts else None, leaf.device), tolerating_hooks(acting.training):
                result = row(acting, *own, *fetched, *shared)
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
        known[key] = (captured_call(partial(_unlimited, sweep)), shared)
    return known[key][0]


def _unlimited(sweep: Callable[..., Any], *stacked: Any) -> Any:
    # dynamo counts compilations by code, and all sweeps are the same code of vmap
    with torch._dynamo.config.patch(recompile_limit=1024), deterministic():
        return sweep(*stacked)


# the shared objects are kept with what was compiled for them: their identity is the key
_compiled_sweeps: MutableMapping[Learner, dict[tuple[Any, ...], tuple[Callable[..., Any], Any]]] = WeakKeyDictionary()


def twin(learner: Learner, worker: int) -> Learner:
    """The learner that this worker, and nobody else at the same time, may use."""
    twins = _twins.setdefault(learner, {})
    return twins.get(worker) or twins.setdefault(worker, learner.twin())


_twins: MutableMapping[Learner, dict[int, Learner]] = WeakKeyDictionary()


@cache
def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "cascadice", initializer=torch.set_num_threads, initargs=(threads,))


# threads do not survive a fork: a child that waited for its parent's would wait for ever
os.register_at_fork(after_in_child=_pool.cache_clear)
