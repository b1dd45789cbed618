"""Named configurations: small functions, most of them variations of another one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from cascadice.runs.config import Config


def demo() -> Config:
    """16 participants on an exponential graph learn to read digits, in seconds"""
    return Config(model_options=("hidden=[64,64]",), batch_size=16, lr=0.2, epochs=25.0, eval_every=5)


def demo_skewed() -> Config:
    """the demo with a few classes of digits each: who learns what it never sees?"""
    return replace(demo(), partition="dirichlet", alpha=0.2)


def demo_attacked() -> Config:
    """the demo with a label flipper, a free-rider and a noise sender: does influence find them?"""
    behaviours = ("free-rider:7", "noise-sender:11:0.0005")
    config = replace(demo(), corruptions=("flip-labels:3:0.8",), behaviours=behaviours)
    # larger batches and smaller steps than the demo's, so that a single honest update helps
    return replace(config, batch_size=32, lr=0.15, epochs=60.0)


def fedavg() -> Config:
    """the demo with everyone averaging with everyone, as a server would do it"""
    return replace(demo(), topology="complete", local_steps=5)


def gpt_pydoc() -> Config:
    """8 participants train a small transformer on the documentation of Python"""
    return Config(
        data="pydoc", nodes=8, model="transformer", model_options=("width=64", "depth=2", "heads=4"),
        optimizer="adamw", lr=3e-3, lr_schedule="warmup:20+cosine", clip=1.0, batch_size=16, epochs=None, rounds=200,
        eval_every=50,
    )  # fmt: skip


def paper(model: str, data: str, topology: str, nodes: int) -> Config:
    """A setting of the paper: 512 samples each, batches of 128, learning rate 0.1, 5 epochs.

    The authors' program gives every participant its own initial parameters (`init="own"`), and the network stays near
    chance. With shared ones, the default here, it learns.
    """
    return Config(
        data=data, model=model, topology=topology, nodes=nodes, per_node=512, batch_size=128, lr=0.1, epochs=5.0,
        eval_every=4,
    )  # fmt: skip


def paper_long(model: str, topology: str, nodes: int) -> Config:
    """The paper's longer runs: 8,192 samples of Tiny ImageNet each, 10 epochs.

    16 × 8,192 is more than the data set holds, so participants must overlap.
    """
    config = paper(model, "tiny-imagenet", topology, nodes)
    return replace(config, per_node=8192, partition="with-replacement", epochs=10.0, eval_every=64)


NAMED: tuple[Callable[[], Config], ...] = (demo, demo_skewed, demo_attacked, fedavg, gpt_pydoc)

_GRAPHS = product(("exponential", "ring"), (16, 32))
_SMALL = product(("mlp", "cnn"), ("cifar10", "cifar100"), _GRAPHS)
_TINY = product(("mlp", "cnn"), (16, 32))

RECIPES: Mapping[str, Callable[[], Config]] = {
    **{recipe.__name__.replace("_", "-"): recipe for recipe in NAMED},
    **{f"{m}-{d}-{graph}-{nodes}": partial(paper, m, d, graph, nodes) for m, d, (graph, nodes) in _SMALL},
    **{f"{m}-tiny-imagenet-ring-32": partial(paper, m, "tiny-imagenet", "ring", 32) for m in ("mlp", "cnn")},
    **{f"{m}-tiny-imagenet-exponential-{nodes}": partial(paper_long, m, "exponential", nodes) for m, nodes in _TINY},
    "resnet18-cifar10-dominant-16": partial(paper, "resnet18", "cifar10", "dominant", 16),
    "resnet18-cifar100-dominant-16": partial(paper, "resnet18", "cifar100", "dominant", 16),
    "mlp-mnist-dominant-16": partial(paper, "mlp", "mnist", "dominant", 16),
}


def describe(name: str) -> str:
    """A recipe in one line."""
    recipe = RECIPES[name]
    if not isinstance(recipe, partial):
        return (recipe.__doc__ or "").strip()
    c = recipe()
    return f"the paper's {c.model} on {c.data}: {c.topology} graph of {c.nodes}, {c.per_node} samples each"
