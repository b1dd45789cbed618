"""The cases of the study: one network each, with one thing at a time changed from the first."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cascadice import data, learning_rates, models, network, optimizers
from cascadice.data import DataSet, partition
from cascadice.engine import Network
from cascadice_experiments.data_sets import first
from cascadice_experiments.retraining.text import domains

WRONG = 0.6  # the part of their labels that is drawn at random, for participants with wrong labels


@dataclass(frozen=True)
class Case:
    """A network, what is left out of it, and what is compared.

    Attributes:
        participants, samples: The parts that random subsets keep.
        subsets: How many subsets for each part.
        noisy: How many participants have wrong labels.
        epsilon: Of Adam; None for its default.
        alphas: Where whole-run influence is asked: at 1 and at the parts that are kept, unless given.
        by_class: Where whole-run influence is also asked by class, for participants.
        points: Of whole-run shares; 0 for none.
        every: One-hop and few-hop influence is summed over every so many rounds.
        halves: Random halves of the samples, in runs on which whole-run influence is averaged.
        copies: Of each training image, all but the first shifted and mirrored at random; they are kept or left out
            together.
        retrain_by: The strategy that retrains networks on a GPU. Compiling takes 20 s for each number of networks side
            by side, and then a third of the time for convolutions.
    """

    name: str
    model: str = "mlp"
    options: tuple[tuple[str, Any], ...] = (("hidden", (128, 128)), ("activation", "gelu"))
    partition: str = "dirichlet"
    concentration: float = 0.5
    mixing: str = "exponential"
    optimizer: str = "sgd"
    lr: float = 0.1
    nodes: int = 16
    batch: int = 128
    rounds: int = 320
    participants: tuple[float, ...] = (0.9, 0.8, 0.5)
    samples: tuple[float, ...] = (0.9, 0.8, 0.5)
    subsets: int = 48
    tests: int = 1024
    every: int = 16
    noisy: int = 3
    epsilon: float | None = None
    alphas: tuple[float, ...] = ()
    by_class: tuple[float, ...] = ()
    points: int = 3
    halves: int = 0
    copies: int = 1
    together: int = 256
    retrain_by: str = "vmap"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


MLP = Case("mlp", by_class=(0.8, 0.5))
RELU = (("hidden", (128, 128)), ("activation", "relu"))
CNN = replace(
    MLP, name="cnn", model="cnn", options=(("channels", (16, 32, 32)), ("activation", "gelu"), ("pool", "average")),
    lr=0.5, rounds=200, batch=64, participants=(0.8,), samples=(0.5,), subsets=12, every=25, together=64,
    by_class=(),
)  # fmt: skip
SMOOTH_CNN = replace(
    CNN, name="cnn at 0.2", lr=0.2, rounds=400, participants=(0.8, 0.5), samples=(0.8, 0.5), subsets=17,
    by_class=(0.5,), points=0, every=100, together=17, retrain_by="compile",
)  # fmt: skip
CASES = {
    case.name: case
    for case in (
        MLP,
        replace(MLP, name="relu", options=RELU),
        replace(MLP, name="iid", partition="iid"),
        replace(MLP, name="dirichlet 0.1", concentration=0.1),
        replace(MLP, name="ring", mixing="ring"),
        replace(MLP, name="momentum", optimizer="momentum", lr=0.01),
        replace(MLP, name="adam", optimizer="adam", lr=0.001, halves=4),
        CNN,
        SMOOTH_CNN,
        replace(CNN, name="cnn relu", options=(("channels", (16, 32, 32)), ("pool", "average")), points=0),
        replace(
            CNN, name="resnet18", model="resnet18", options=(("width", 16), ("activation", "gelu")), partition="iid",
            optimizer="momentum", lr=0.05, nodes=8, batch=64, rounds=800, together=12, seeds=(0,), every=100,
            samples=(), noisy=1, copies=8, alphas=(0.8, 0.5), points=0,
        ),
        replace(
            CNN, name="transformer", model="transformer",
            options=(("width", 384), ("heads", 6), ("depth", 6), ("activation", "gelu")), partition="domains",
            optimizer="adam", lr=0.001, nodes=8, batch=16, rounds=160, together=6, seeds=(0,), every=40, tests=256,
            alphas=(1.0, 0.5), points=0,
        ),
    )
}  # fmt: skip
QUICK = {
    "nodes": 8, "rounds": 60, "subsets": 20, "tests": 256, "batch": 16, "seeds": (0, 1), "every": 4, "together": 64,
    "options": (("hidden", (32,)), ("activation", "gelu")),
}  # fmt: skip


def load(case: Case, source: str, root: str | None) -> tuple[DataSet, list[list[Tensor]]]:
    """The data of all seeds one after the other, and who holds what: seeds may then be trained side by side.

    Each seed has a copy of the training samples of its own, in which some participants' labels are wrong.
    """
    if case.partition == "domains":
        return domains(case.nodes)
    clean = data.load(source, root)
    size, classes = len(clean.train), len(clean.classes)
    options: dict[str, Any] = (
        {"alpha": case.concentration, "minimum": case.batch} if case.partition == "dirichlet" else {}
    )
    labels, held = [], []
    for place, seed in enumerate(case.seeds):
        own = partition.build(case.partition, clean.train.y, case.nodes, seed=seed, **options)
        draw = torch.Generator().manual_seed(seed)
        doubted = torch.cat(list(own[: case.noisy]))
        wrong = doubted[torch.rand(len(doubted), generator=draw) < WRONG]
        y = clean.train.y.clone()
        y[wrong] = torch.randint(classes, (len(wrong),), generator=draw)
        labels.append(y)
        starts = size * (place * case.copies + torch.arange(case.copies))
        held.append([(starts[:, None] + part).flatten() for part in own])
    x = torch.cat([clean.train.x, *(shifted(clean.train.x, seed) for seed in range(1, case.copies))])
    x = x.repeat(len(case.seeds), *[1] * (x.dim() - 1))
    train = replace(clean.train, x=x, y=torch.cat([y.repeat(case.copies) for y in labels]))
    return replace(clean, train=train, test=first(clean.test, case.tests)), held


def shifted(x: Tensor, seed: int, by: int = 4) -> Tensor:
    """Every image moved by up to so many pixels, and mirrored or not."""
    draw = torch.Generator().manual_seed(seed)
    height, width = x.shape[-2:]
    padded = torch.nn.functional.pad(x, (by, by, by, by))
    down, right = torch.randint(2 * by + 1, (2, len(x), 1), generator=draw)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    mirrored = torch.rand(len(x), 1, generator=draw) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    images = torch.arange(len(x))[:, None, None, None]
    channels = torch.arange(x.shape[1])[None, :, None, None]
    return padded[images, channels, rows[:, None, :, None], columns[:, None, None, :]]


def make_networks(case: Case, whole: DataSet, held: list[list[Tensor]], device: str) -> list[Network]:
    """A network for each seed: with its own holdings, parameters and batches."""
    classes, form = len(whole.classes), whole.train.shape
    shape = (classes, *form) if case.model == "transformer" else (form, classes)
    make = models.transformer if case.model == "transformer" else getattr(models, case.model)
    lr = learning_rates.cosine(case.lr, case.rounds)
    optimizer = case.optimizer if case.epsilon is None else optimizers.adam(eps=case.epsilon)
    strategy = "vmap" if device != "cpu" else "auto"
    return [
        network(
            lambda: make(*shape, **dict(case.options)), whole, nodes=case.nodes, mixing=case.mixing, partition=own,
            batch_size=case.batch, optimizer=optimizer, lr=lr, seed=seed, device=device, strategy=strategy,
        )
        for seed, own in zip(case.seeds, held, strict=True)
    ]  # fmt: skip
