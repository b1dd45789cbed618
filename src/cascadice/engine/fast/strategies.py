"""Three ways to train all participants: loop, vmap, compile. All compute `learner.local_steps`, up to rounding.

    loop      plain autograd, participant by participant; on CPU over threads with one intra-op thread each
    vmap      one vectorised sweep over all participants
    compile   that sweep compiled by torch.compile; on CUDA, whole rounds are also captured (`captured_rounds`)

`choose` takes vmap on CPU and compile on CUDA, and loop where these lose or cannot be used: models that draw at random
(each participant draws from its own seed), mixed precision (a sweep sums in another order, which shows in half
precision), models that vmap cannot run and, on CPU, convolutions and large models (one participant's products fit the
cache, a sweep's do not).

Trap: the choice depends on model, batch and device alone, never on a stopwatch, because a run must have the same bits
the next time.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from cascadice.data.inputs import Inputs, at
from cascadice.engine.fast.buffers import RoundBuffers, allocate, copy_into
from cascadice.engine.fast.eager import eager_step
from cascadice.engine.fast.hooks import Tape
from cascadice.engine.fast.rows import Fetch, deterministic, each_row, repeatable, twin, without_recompile_limit
from cascadice.engine.fast.tape import Layers, taped_step
from cascadice.engine.learner import Alphas, Learner, Participants, Step, local_steps, measure_all
from cascadice.engine.networks import LocalInputs
from cascadice.names import lookup

# Largest number of parameters for which a sweep beats a loop on CPU: benchmarks/training.py --strategies loop vmap
SMALL = 2**18

Work = Callable[[Participants, Fetch, RoundBuffers | None], tuple[Participants, Tensor, Any]]
"""(before, fetch, buffers) -> participants at t + ½, in the buffers if given; losses; tapes if requested."""


class Strategy(NamedTuple):
    """A way to do the local work."""

    make: Callable[[Learner, Layers | None], Work]
    description: str


def choose(learner: Learner, before: Participants, inputs: LocalInputs) -> str:
    """The fastest strategy that can run this model on this batch and device."""
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in learner.training.modules())
    on_cpu = before.theta.device.type == "cpu"
    slower_in_a_sweep = on_cpu and (convolves or learner.size > SMALL)
    mixed_precision = learner.autocast is not None
    if learner.stochastic or slower_in_a_sweep or mixed_precision or not _vectorises(learner, before, inputs):
        return "loop"
    return "vmap" if on_cpu else "compile"


def _vectorises(learner: Learner, before: Participants, inputs: LocalInputs) -> bool:
    """Whether vmap can run the model: some branch on values, or use operations without a batching rule."""
    two, inputs = at((before, inputs._replace(starts=())), slice(2))
    try:
        with warnings.catch_warnings(action="error"):  # vmap warns when it falls back to a slow loop
            _vectorised(learner, None)(two, lambda rows: inputs, None)
            losses = vmap(lambda one, x, y: measure_all(learner, one, x, y, (learner.loss,)))
            torch.no_grad()(losses)(two, at(inputs.x, (slice(None), 0)), inputs.y[:, 0])
    except Exception:
        return False
    return True


def _vectorised(learner: Learner, layers: Layers | None, compiled: bool = False) -> Work:
    def one(before: Participants, x: Inputs, y: Tensor, lr: Tensor, samples: Alphas) -> Any:
        tapes: list[Tape] = []
        step = None if layers is None else partial(taped_step, layers, tapes)
        return *local_steps(learner, before, x, y, lr, samples, step=step), tuple(tapes)

    everybody = vmap(one)

    def sweep(
        before: Participants, inputs: LocalInputs, buffers: RoundBuffers | None
    ) -> tuple[Participants, Tensor, Any]:
        half, loss, tapes = everybody(before, *inputs[:4])
        return (half, loss, tapes) if buffers is None else (*copy_into((half, loss), buffers.half, buffers.loss), tapes)

    run = without_recompile_limit(torch.compile(sweep, dynamic=False)) if compiled else sweep
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
            one, to = at((before, half), k)
            x, y, lr, samples, start = fetch([k])
            weights: Alphas = (samples[0][0],) if samples else ()
            with own.masks.of(start[0] if start else None, loss.device):
                result = local_steps(own, one, at(x, 0), y[0], lr[0], weights, step=step, out=to.theta)
            copy_into(result, to, loss[k])
            return tuple(tapes)

        # dropout draws from torch's generator, which all threads share
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

    With `layers`, each step also returns its tape: a sweep stacks them, a loop returns one per participant.
    """
    run = torch.no_grad()(lookup(STRATEGIES, strategy, "strategy").make(learner, layers))
    return (deterministic() if next(learner.training.parameters()).is_cuda else repeatable())(run)
