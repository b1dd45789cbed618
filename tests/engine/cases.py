"""Small networks to train: data, models and optimizers that every engine test draws from."""

import torch
from torch import nn

from cascadice import models
from cascadice.data import from_tensors
from cascadice.engine.assembly import network
from cascadice.engine.simulation import simulate

CLASSES, SAMPLES = 4, 60
IMAGE, TOKENS = (1, 8, 8), (5,)
CLOSE = {"rtol": 0, "atol": 1e-10}

# name -> shape of the data, options
MODELS = {
    "mlp": (IMAGE, {"hidden": (5, 5)}),
    "cnn": (IMAGE, {"channels": (2, 3, 4)}),
    "resnet18": (IMAGE, {"width": 2}),
    "transformer": (TOKENS, {"width": 8, "heads": 2, "depth": 1}),
}


def data(shape=IMAGE, classes=CLASSES, samples=SAMPLES):
    """Random labelled images, or tokens with a token to predict at each position."""
    draw = torch.Generator().manual_seed(11)
    if len(shape) == 1:
        x, y = torch.randint(classes, (2, samples + 9, *shape), generator=draw)
    else:
        y = torch.randint(classes, (samples + 9,), generator=draw)
        x = torch.randn(samples + 9, *shape, generator=draw, dtype=torch.float64) + y.view(-1, 1, 1, 1)
    return from_tensors(x[:samples], y[:samples], x[samples:], y[samples:], classes=classes)


def model(name="mlp"):
    shape, options = MODELS[name]
    return models.build(name, shape, CLASSES, **options)


def make(name="mlp", **options):
    """A network of 4 on a ring in float64, unless said otherwise."""
    shape, _ = MODELS.get(name, (IMAGE, {})) if isinstance(name, str) else (IMAGE, {})
    made = model(name) if isinstance(name, str) else name
    usual = {"lr": 0.1, "dtype": "float64", "strategy": "loop", "seed": 3}
    if "batches" not in options:
        usual["batch_size"] = 3
    if "mixing" not in options:
        usual |= {"mixing": "ring", "nodes": 4}
    return network(made, options.pop("data", None) or data(shape), **(usual | options))


def last(net, rounds=3, **options):
    """The last round of a run."""
    *_, done = simulate(net, rounds, **options)
    return done


def equal(a, b):
    """Whether two lots of participants are the same to the last bit."""
    from torch.utils._pytree import tree_flatten

    leaves = zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True)
    return all(torch.equal(one, other) for one, other in leaves)


def perceptron(*layers):
    """Flattened images to classes, through extra `layers` of width 6; the same parameters every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *layers, nn.Linear(6, CLASSES))
