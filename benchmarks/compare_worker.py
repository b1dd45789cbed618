"""One version of the library, for compare.py: prepares a workload, and times it whenever it is asked to.

Names changed between versions: the new ones are tried first, then those of 0.1.0.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import cascadice as cd

NODES, BATCH, ROUNDS = 16, 32, 6
SHAPE = (3, 16, 16)
OPTIONS: dict[str, dict[str, Any]] = {"mlp": {"hidden": (128, 128)}, "cnn": {"channels": (8, 16, 32)}}

evaluate_on: Any = getattr(cd.influence, "evaluate_on", None) or getattr(cd.influence, "judge", None)
score_rounds: Any = getattr(cd.influence, "score_rounds", None) or getattr(cd.influence, "watch", None)


def make_network(case: str, device: str) -> Any:
    """Random images, divided among the participants of an exponential graph."""
    model, strategy = case.split("-")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(NODES * 4 * BATCH, *SHAPE, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    dataset = cd.data.from_tensors(x, y, x[:BATCH], y[:BATCH], classes=10)
    module = cd.models.build(model, SHAPE, 10, seed=0, **OPTIONS[model])
    return cd.network(module, dataset, nodes=NODES, batch_size=BATCH, lr=0.05, strategy=strategy, device=device)


def make_workload(case: str, workload: str, device: str) -> Callable[[], Any]:
    """A function that does the work once and returns what it computed."""
    if workload == "recording":
        return recorded_run(case, device)
    network = make_network(case, device)
    influence: Any = cd.influence
    evaluation = evaluate_on(network, network.data.test)
    if workload == "training":
        training = cd.simulate(network, window=1)
        return lambda: next(training).after.theta
    if workload in ("one hop", "further hop"):
        scored = scored_samples(network, evaluation, 1 if workload == "one hop" else 3)
        return lambda: next(scored)
    rounds = list(cd.simulate(network, ROUNDS))
    return {
        "truth": lambda: influence.truth(network, rounds[:2], evaluation).value,
        "shares": lambda: influence.shares(network, rounds[:2], evaluation),
        "full horizon": lambda: list(influence.full_horizon(network, reversed(rounds), evaluation))[-1].participants,
    }[workload]


def scored_samples(network: Any, evaluation: Any, hops: int) -> Iterator[Any]:
    """Train, and score every sample of every participant over so many hops, round by round."""
    rounds = cd.simulate(network, window=hops, taped=True)
    for scored in score_rounds(network, rounds, evaluation, hops=hops, samples=True):
        yield next(iter(scored.samples.values()))


def recorded_run(case: str, device: str) -> Callable[[], Any]:
    """Train a run that writes every round to disk, as `cascadice run --record all` does."""
    # 0.1.0 had them elsewhere: it can be timed for everything but recording
    from cascadice.runs.recipes import RECIPES
    from cascadice.runs.train import run

    model, strategy = case.split("-")
    options = tuple(f"{name}={list(value)}" for name, value in OPTIONS[model].items())
    setting: dict[str, Any] = {"model": model, "model_options": options, "strategy": strategy, "device": device}
    config = replace(RECIPES["demo"](), rounds=30, epochs=None, record="all", **setting)

    def work() -> Any:
        with TemporaryDirectory() as folder:
            run(config, Path(folder) / "run", quiet=True)
            return cd.store.load_checkpoint(Path(folder) / "run")[1].theta

    return work


def number(result: Any) -> float:
    """A single number that depends on all of the result."""
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return float(result.double().abs().sum())


class Clock:
    """CPU seconds of this process; on a GPU, or where a disk is waited for, seconds by the clock."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.waits = device == "cuda"

    def __call__(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() if self.waits else time.process_time()


def main(source: str, device: str, threads: str) -> None:
    """Answer requests, a JSON object in a line each, until the input ends."""
    if not Path(cd.__file__).is_relative_to(Path(source).resolve()):
        raise SystemExit(f"{source} was asked for; Python imported {cd.__file__}.")
    torch.set_num_threads(int(threads))
    clock = Clock(device)

    def work() -> Any:
        raise RuntimeError("prepare a workload first")

    for line in sys.stdin:
        request = json.loads(line)
        if request["request"] == "prepare":
            clock.waits = device == "cuda" or request["workload"] == "recording"
            work = make_workload(request["case"], request["workload"], device)
            value = number(work())
            for _ in range(3):  # memory is allocated and kernels are loaded in the first calls
                start = clock()
                work()
            answer = {"seconds": max(clock() - start, 1e-6), "value": value}
        else:
            start = clock()
            for _ in range(request["times"]):
                work()
            answer = {"seconds": clock() - start}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
