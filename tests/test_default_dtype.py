"""A seed means the same draws whatever torch's default dtype is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import cascadice as cd
from cascadice import models, topology
from cascadice.data import Samples, batches, corruption, digits, partition
from cascadice.engine import behaviours
from cascadice.engine.behaviours import Behaviour

LABELS = torch.arange(60) % 5


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def corrupted(kind: str) -> Any:
    x, y = torch.arange(240, dtype=torch.float32).reshape(2, 2, 10, 6), LABELS[:40].reshape(2, 2, 10)
    return corruption.corrupt([corruption.Corruption(kind, (0, 1), strength=0.3)], x, y, 3, range(2), 0, 5)


def initial(init: str, model: Callable[[], nn.Module] | nn.Module) -> torch.Tensor:
    return cd.network(model, digits(), nodes=3, mixing="ring", init=init).initial.theta


DRAWS: dict[str, Callable[[], Any]] = {
    "batches": lambda: batches.epochs(partition.iid(60, 3), 4, steps=2)(9),
    **{f"partition {name}": lambda name=name: partition.build(name, LABELS, 4) for name in partition.PARTITIONS},
    **{
        f"W of {name}": lambda name=name: topology.build(name, 8)(5)
        for name in ("random-regular", "erdos-renyi", "small-world", "pairwise-gossip", "epidemic", "matching")
    },
    "W of lossy links": lambda: topology.link_loss(topology.build("complete", 8), 0.5)(5),
    **{f"corruption {kind}": lambda kind=kind: corrupted(kind) for kind in corruption.CORRUPTIONS},
    "noise of a behaviour": lambda: behaviours.noise(
        [Behaviour("noise-sender", (1,), strength=0.3)],
        2,
        range(3),
        torch.zeros(3, 70, dtype=torch.float32),
        [(0, node) for node in range(3)],
    ),
    "conduct": lambda: behaviours.conduct([Behaviour("sign-flipper", (1,), strength=0.1)], 2, range(3)),
    **{
        f"parameters of {name}": lambda name=name, shape=shape: list(
            models.build(name, shape, 10, **({"width": 8} if name in ("resnet18", "transformer") else {})).parameters()
        )
        for name, shape in {"mlp": (1, 8, 8), "cnn": (1, 8, 8), "resnet18": (1, 8, 8), "transformer": (12,)}.items()
    },
    "shared initial parameters": lambda: initial("shared", lambda: models.mlp((1, 8, 8), 10, (16,))),
    "own initial parameters": lambda: initial("own", lambda: models.mlp((1, 8, 8), 10, (16,))),
    "own initial parameters of a module": lambda: initial("own", models.mlp((1, 8, 8), 10, (16,))),
    "images": lambda: Samples(torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2), LABELS[:2]).take(LABELS[:2])[0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_do_not_depend_on_the_default_dtype(name: str) -> None:
    drawn = []
    for dtype in (torch.float32, torch.float64):
        with default_dtype(dtype):
            drawn.append(DRAWS[name]())
    torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=0)


def test_the_default_dtype_is_left_as_it_was() -> None:
    with default_dtype(torch.float64):
        models.build("mlp", (4,), 2)
        assert torch.get_default_dtype() == torch.float64
