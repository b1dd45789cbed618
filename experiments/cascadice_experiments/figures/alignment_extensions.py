"""Alignment plots beyond the paper: several hops, optimizers with state, changing links, a language model."""

from collections.abc import Sequence
from dataclasses import replace

from cascadice.runs.config import Config
from cascadice.runs.recipes import gpt_pydoc, paper
from cascadice_experiments.figures.alignment_plots import SHARED, Panel, panel


def _cifar(model: str = "mlp", *options: str) -> Config:
    return replace(paper(model, "cifar10", "exponential", 16), init=SHARED, model_options=options)


def several_hops(quick: bool) -> list[Panel]:
    """Up to three hops, with ReLU (kinks) and GELU (smooth). Quick: the MLPs."""
    runs = [("MLP, ReLU", _cifar()), ("MLP, GELU", _cifar("mlp", "activation=gelu"))]
    if not quick:
        smooth = _cifar("cnn", "activation=gelu", "pool=average")
        runs += [("CNN, ReLU", _cifar("cnn")), ("CNN, GELU, average pool", smooth)]
    panels = [panel(config, quick, name, hops=3) for name, config in runs]
    return [replace(p, scored=5) if p.config.model == "cnn" else p for p in panels]  # 80 updates are enough


OPTIMIZERS = {"momentum": 0.02, "nesterov": 0.02, "adam": 1e-3, "adamw": 1e-3}  # and their learning rates


def optimizers(quick: bool) -> list[Panel]:
    """Two hops: the second passes through the optimizer's state. Quick: momentum and Adam."""
    chosen = ("momentum", "adam") if quick else tuple(OPTIMIZERS)
    runs = {name: replace(_cifar(), optimizer=name, lr=OPTIMIZERS[name]) for name in chosen}
    return [panel(config, quick, f"MLP, CIFAR-10, {name}", hops=2) for name, config in runs.items()]


def changing_links(quick: bool) -> list[Panel]:
    """Three hops while W changes every round. Quick: two schedules."""
    names = ("one-peer-exponential", "epidemic", "matching")[: 2 if quick else 3]
    runs: Sequence[tuple[str, Config]] = [(name, replace(_cifar(), topology=name)) for name in names]
    if not quick:
        runs = [*runs, ("exponential, a fifth of the links lost", replace(_cifar(), link_loss=0.2))]
    return [panel(config, quick, f"MLP, CIFAR-10, {name}", hops=3) for name, config in runs]


def language(quick: bool) -> list[Panel]:
    """A small transformer on the documentation of Python, two hops through AdamW. Quick: a smaller one, 40 rounds."""
    run = gpt_pydoc()
    if quick:
        run = replace(run, rounds=40, batch_size=8, model_options=("width=32", "depth=2", "heads=4"))
    name = "transformer, documentation of Python"
    return [Panel(name, run, 4 if quick else 20, 16 if quick else 64, 64 if quick else None, hops=2)]
