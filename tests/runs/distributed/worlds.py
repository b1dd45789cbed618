"""Processes as threads, each with a process group of its own; tests/test_torchrun.py starts real ones."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from cascadice.pictures import influence
from cascadice.runs import journal, recording, store, train
from cascadice.runs.config import Config, build
from cascadice.runs.distributed.processes import World

CONFIG = Config(
    nodes=5, per_node=40, rounds=6, epochs=None, batch_size=8, dtype="float64", eval_every=2, checkpoint_every=2,
    model_options=("hidden=[8]",), record="all",
)  # fmt: skip


LOCK = threading.Lock()


def gloo(store, rank, count, timeout):
    return dist.ProcessGroupGloo(store, rank, count, timedelta(seconds=timeout))


def together(count, work, timeout=20.0, **more):
    """`work(world)` in threads; the results by rank, and the errors."""
    home, results, errors = dist.HashStore(), [None] * count, [None] * count
    policy = more.get("policy", "stop")

    def runs(rank):
        try:
            group = None if policy == "carry-on" else gloo(dist.PrefixStore("group", home), rank, count, timeout)
            world = World(rank, count, group, home, timeout, **more)
            try:
                results[rank] = work(world)
            except BaseException as error:
                world.fail(str(error))
                raise
        except Exception as error:
            errors[rank] = error

    threads = [threading.Thread(target=runs, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


def trained(out, config=CONFIG, count=2, **options):
    _, errors = together(count, lambda world: train.run(config, out, quiet=True, world=world, **options))
    if any(errors):
        raise next(error for error in errors if error)


def one_by_one(config, **options):
    """`build` for threads: to make a model, torch's one generator is seeded."""
    with LOCK:
        return build(config, **options)


@pytest.fixture(scope="module")
def fit_for_threads():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train, "build", one_by_one)
        patched.setattr(recording, "build", one_by_one)
        patched.setattr(journal, "plot", lambda journal: None)  # takes as long as the rest
        patched.setattr(influence, "plot", lambda path, **what: None)
        yield


def parameters(out):
    return torch.cat([store.load_checkpoint(part).participants.theta for part in sorted(out.glob("rank-*"))])
