"""The numbers of 0.1.0, table by table: what the redesign must not move.

`predecessor/golden-0.1.0.safetensors` was written by 0.1.0 from the networks below, in float64. Parameters are filled
from generators, not by initialisers, so that the tables mean the same on every machine.

`predecessor/golden-0.2.0.safetensors` has what 0.1.0 did not compute, whole-run influence. It was written by
`python tests/test_golden.py`, which has to be run again only where a number of these was wrong.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import cascadice as cd
from cascadice import influence, optimizers, topology
from cascadice.applications.forget.idea import Removal, forget
from cascadice.applications.reward.contributions import by_shares
from cascadice.data import from_tensors
from cascadice.influence import measures

TABLES = Path(__file__).parent / "predecessor" / "golden-0.1.0.safetensors"
WHOLE_RUN_TABLES = TABLES.with_name("golden-0.2.0.safetensors")
NODES, FEATURES, CLASSES, ROUNDS, START, HOPS = 5, 6, 3, 7, 2, 3
CLOSE = {"rtol": 1e-12, "atol": 1e-13}  # of the largest entry; 9e-14 on the machine that wrote the tables


def generator(seed):
    return torch.Generator().manual_seed(seed)


def vectors(shape=(FEATURES,), samples=60, tests=11):
    draw = generator(5)
    y = torch.randint(CLASSES, (samples + tests,), generator=draw)
    x = torch.randn(samples + tests, *shape, generator=draw, dtype=torch.float64)
    x = x + y.view(-1, *[1] * len(shape)) * torch.linspace(-1, 1, shape[-1], dtype=torch.float64)
    return from_tensors(x[:samples], y[:samples], x[samples:], y[samples:], classes=CLASSES)


def directed(seed):
    draw = generator(seed)
    linked = (torch.rand(NODES, NODES, generator=draw) < 0.5) | torch.eye(NODES, dtype=torch.bool)
    W = linked * (0.2 + torch.rand(NODES, NODES, generator=draw, dtype=torch.float64))
    return W / W.sum(1, keepdim=True)


def filled(model):
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=generator(100 + i), dtype=torch.float64) / p[0].numel() ** 0.5)
            else:
                p.fill_(0.1 * (i + 1))
    return model.double()


def mlp(activation=nn.Tanh, *norm):
    return filled(nn.Sequential(nn.Linear(FEATURES, 5), *norm, activation(), nn.Linear(5, CLASSES)))


def cnn():
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    return filled(nn.Sequential(*layers))


def network(model, data=None, **options):
    row = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    usual = {
        "mixing": topology.cyclic([directed(seed) for seed in (1, 2, 3)]), "lr": 0.3, "batch_size": 4, "seed": 3,
        "init": row + 0.05 * torch.randn(NODES, len(row), generator=generator(9), dtype=torch.float64),
        "q": [0.1, 0.15, 0.2, 0.25, 0.3], "dtype": "float64", "strategy": "vmap",
    }  # fmt: skip
    return cd.network(model, vectors() if data is None else data, **(usual | options))


ATTACKED = {
    "corruptions": [cd.Corruption("flip-labels", (1,), None, 0.5)],
    "behaviours": [
        cd.Behaviour("sign-flipper", (0,), range(3, 6), 1.5),
        cd.Behaviour("noise-sender", (2,), range(4, 5), 0.01),
        cd.Behaviour("free-rider", (3,), range(2, 3)),
        cd.Behaviour("absent", (4,), range(5, 6)),
    ],
}
CASES = {
    "sgd": lambda: network(mlp()),
    "relu-loop": lambda: network(mlp(nn.ReLU), strategy="loop"),
    "decay-steps": lambda: network(mlp(), optimizer=optimizers.sgd(0.01), local_steps=2),
    "momentum": lambda: network(mlp(), optimizer="momentum", lr=0.1, local_steps=2),
    "adam": lambda: network(mlp(), optimizer="adam", lr=0.02),
    "adamw-loop": lambda: network(mlp(), optimizer="adamw", lr=0.02, local_steps=2, strategy="loop"),
    "clipped": lambda: network(mlp(), optimizer=optimizers.clip(optimizers.momentum(), 0.5), lr=0.1),
    "attacked": lambda: network(mlp(), **ATTACKED),
    "attacked-loop": lambda: network(mlp(), optimizer="momentum", lr=0.1, strategy="loop", **ATTACKED),
    "cnn-loop": lambda: network(cnn(), vectors((1, 4, 4)), strategy="loop"),
    "cnn": lambda: network(cnn(), vectors((1, 4, 4))),
    "batchnorm": lambda: network(mlp(nn.Tanh, nn.BatchNorm1d(5)), strategy="loop"),
}


@cache
def trained(name):
    net = CASES[name]()
    return net, list(cd.simulate(net, ROUNDS))


def training(name):
    _, rounds = trained(name)
    last = rounds[-1]
    yield "theta", last.after.theta
    yield "half", last.half.theta
    yield "loss", torch.stack([round_.loss for round_ in rounds])
    yield from ((f"state.{key}", value) for key, value in last.after.state.items())


def cascades(name):
    net, rounds = trained(name)
    window = net, rounds[START : START + HOPS]
    everyone, margin = influence.evaluate_on(net), influence.evaluate_on(net, measure=measures.negative_margin)
    yield "truth", influence.truth(*window, everyone).value
    yield "truth.margin", influence.truth(*window, margin, [1, 3]).value
    yield "first-order", influence.first_order(*window, everyone).value
    yield "path-integrated", influence.path_integrated(*window, everyone, points=2).value
    yield "proximity", influence.proximity(net, rounds[START], everyone).influence


def sweeps(name):
    net, rounds = trained(name)
    window, everyone = rounds[START : START + HOPS], influence.evaluate_on(net)
    adjoint = influence.reverse_gossip(net, window, everyone)
    yield "reverse-gossip", adjoint.theta
    yield from ((f"reverse-gossip.{key}", value) for key, value in adjoint.state.items())
    yield "by-participant", influence.by_participant(window[0], adjoint)
    if name == "batchnorm":
        return
    yield "shares", influence.shares(net, window, everyone)
    yield "by-sample", influence.by_sample(net, window[0], adjoint)
    yield "shares-of-samples", influence.shares_of_samples(net, window, everyone)
    yield "path-integrated-samples", influence.path_integrated_samples(net, window, everyone, 1)
    horizon = list(influence.full_horizon(net, reversed(rounds), everyone))
    yield "horizon.participants", torch.stack([scores.participants for scores in horizon])
    yield "horizon.samples", torch.stack([scores.samples for scores in horizon])
    if window[0].draw.batch.shape[1] == 1:
        yield "truth-of-samples", influence.truth_of_samples(net, window, everyone, 1).value
    entry = by_shares(net, window, everyone, samples=True)
    yield "ledger.participants", entry.participants
    yield "ledger.samples", entry.samples


def forgetting(name):
    net, rounds = trained(name)
    node = Removal(nodes=(1,), rounds=range(1, 5))
    yield "forget.node.replay", forget(net, rounds, node, "replay").participants.theta
    if name == "batchnorm":
        return
    sample = Removal(samples=(int(rounds[0].draw.batch[1, 0, 0]),))
    for level in ("first-order", "path-integrated"):
        yield f"forget.node.{level}", forget(net, rounds, node, level).participants.theta
    levels = ["replay", "first-order", "path-integrated", *(["gossip"] if net.learner.optimizer.linear else [])]
    for level in levels:
        yield f"forget.sample.{level}", forget(net, rounds, sample, level).participants.theta


@pytest.mark.parametrize("part", [training, cascades, sweeps, forgetting], ids=lambda part: part.__name__)
@pytest.mark.parametrize("name", CASES)
def test_no_number_moved(name, part, two_threads):
    golden = tables_of(TABLES, name)
    assert compared(golden, part(name)) == {key for key in golden if part_of(key) is part}


def tables_of(path, name):
    return {key.removeprefix(f"{name}/"): table for key, table in load_file(path).items() if key.startswith(f"{name}/")}


def compared(golden, tables):
    """The names of these tables, each of which must have the numbers that it had."""
    names = set()
    for key, value in tables:
        names.add(key)
        expected = golden[key]
        scale = float(expected.abs().max()) or 1.0
        torch.testing.assert_close(
            value.detach() / scale, expected / scale, **CLOSE, msg=lambda m, key=key: f"{key}: {m}"
        )
    return names


def part_of(key):
    """Which of the functions above makes a table."""
    parts = {training: ("theta", "half", "loss", "state."), forgetting: ("forget.",)}
    exact = {"truth", "truth.margin", "first-order", "path-integrated", "proximity"}
    return cascades if key in exact else next((p for p, names in parts.items() if key.startswith(names)), sweeps)


WHOLE_RUNS = ("sgd", "momentum", "adam", "attacked")


def whole_runs(name):
    net, rounds = trained(name)
    everyone = influence.evaluate_on(net)
    runs = {f"whole-run.{at}": influence.whole_run(net, rounds, everyone, at=at) for at in (1.0, 0.5)}
    runs["whole-run-shares"] = influence.whole_run_shares(net, rounds, everyone, points=2)
    for key, run in runs.items():
        yield f"{key}.value", torch.tensor([run.value], dtype=torch.float64)
        yield f"{key}.participants", run.by_round
        yield f"{key}.samples", run.samples


@pytest.mark.parametrize("name", WHOLE_RUNS)
def test_no_whole_run_moved(name, two_threads):
    golden = tables_of(WHOLE_RUN_TABLES, name)
    assert compared(golden, whole_runs(name)) == set(golden)


if __name__ == "__main__":
    written = {f"{name}/{key}": value.contiguous() for name in WHOLE_RUNS for key, value in whole_runs(name)}
    save_file(written, WHOLE_RUN_TABLES)
