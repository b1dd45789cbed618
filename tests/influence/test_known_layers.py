"""Our own models are scored by their layers, whatever the strategy: the other way is right as well, but slow."""

import pytest
import torch
from engine import cases
from engine.rows import known_layers

from cascadice import models, network
from cascadice.data import from_tensors
from cascadice.engine import draw


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "transformer"])
def test_small_models(name, strategy):
    net = cases.make(name, strategy=strategy)
    assert known_layers(net, draw(net, 0)) is not None


@pytest.mark.parametrize(
    ("name", "seed"), [("mlp", 0), ("mlp", 1), ("cnn", 0), pytest.param("cnn", 1, marks=pytest.mark.slow)]
)
def test_models_of_full_size_in_single_precision(name, seed, one_thread):
    # among so many units of batches so large some are next to a kink
    x = torch.randn(256, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = from_tensors(x, torch.arange(256) % 10, x[:10], torch.arange(10), classes=10)
    model = models.build(name, (3, 32, 32), 10, seed=seed)
    net = network(model, images, nodes=2, mixing="complete", batch_size=128, strategy="loop", seed=seed)
    assert known_layers(net, draw(net, 0)) is not None
