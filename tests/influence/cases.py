"""Small smooth networks in float64, on graphs that are directed and change from round to round."""

import torch
from engine.cases import make
from torch import nn

from cascadice import topology
from cascadice.data import from_tensors
from cascadice.engine import simulate

FEATURES, CLASSES, NODES = 6, 3, 4
CLOSE = {"rtol": 1e-9, "atol": 1e-13}


def data(samples=48, tests=7):
    """Vectors that lean towards their class."""
    draw = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (samples + tests,), generator=draw)
    x = torch.randn(samples + tests, FEATURES, generator=draw, dtype=torch.float64) + y[:, None] * torch.linspace(
        -1, 1, FEATURES
    )
    return from_tensors(x[:samples], y[:samples], x[samples:], y[samples:], classes=CLASSES)


def smooth(*layers, activation=nn.Tanh, width=4):
    """A perceptron without kinks, through extra `layers`; the same parameters every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(FEATURES, width), activation(), *layers, nn.Linear(width, CLASSES))


def directed(seed, nodes=NODES, density=0.5):
    """A W that is row-stochastic only, with links that go one way."""
    draw = torch.Generator().manual_seed(seed)
    linked = (torch.rand(nodes, nodes, generator=draw) < density) | torch.eye(nodes, dtype=torch.bool)
    W = linked * (0.2 + torch.rand(nodes, nodes, generator=draw, dtype=torch.float64))
    return W / W.sum(1, keepdim=True)


def changing(nodes=NODES):
    """Another directed W in each of three rounds."""
    return topology.cyclic([directed(seed, nodes) for seed in (1, 2, 3)])


def small(model=None, **options):
    """Four participants with parameters and weights of their own, on a directed graph that changes."""
    usual = {"data": data(), "mixing": changing(), "init": "own", "lr": 0.3, "strategy": "vmap"}
    if "batches" not in options:
        usual["batch_size"] = 4
    if "mixing" not in options and "q" not in options:
        usual["q"] = [0.1, 0.2, 0.3, 0.4]
    return make(smooth() if model is None else model, **(usual | options))


def window(network, hops, start=2):
    """The rounds of an update in round `start` and of its first hops."""
    return list(simulate(network, start + hops))[start:]
