"""What a step of training holds in memory is counted without taking it."""

import torch
from influence.cases import small
from torch import nn

from cascadice import models
from cascadice.engine.step_memory import activations, bytes_of_step


def test_what_layers_compute_is_counted():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert activations(model, torch.zeros(1, 2, 2)) == (8 + 8 + 2, 8 + 8)
    attention = activations(models.transformer(10, 6, width=8, depth=1, heads=2), torch.zeros(1, 6).long())
    assert attention.all > 2 * 6 * 6 + 6 * 8  # what attention computes between modules counts too


def test_each_local_step_holds_its_inputs():
    """As they are stored and in the precision of the parameters: 4 participants, batches of 5, 6 numbers of 8 bytes."""
    one, three = (bytes_of_step(small(batch_size=5, local_steps=steps)) for steps in (1, 3))
    assert three - one == 2 * (4 * 5 * 6 * (8 + 8))


class Stubborn(nn.Linear):
    """Takes names, and adds a tensor that it makes on the CPU."""

    def forward(self, features, scale):
        return {"logits": super().forward(features * scale) + torch.ones(2, device="cpu")}


def test_models_that_take_names_or_need_numbers_are_counted():
    inputs = {"features": torch.zeros(1, 4, dtype=torch.bfloat16), "scale": torch.zeros(1, 1, dtype=torch.bfloat16)}
    plain = activations(nn.Linear(4, 2), torch.zeros(1, 4))
    assert activations(Stubborn(4, 2), inputs, torch.bfloat16).all > plain.all == 2
