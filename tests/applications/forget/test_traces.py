"""What a sample leaves behind: losses, the membership attack, and distances between models."""

import pytest
import torch
from influence.cases import NODES, small, window
from torch import nn

from cascadice.applications.forget.traces import distance, membership_auc, sample_losses
from cascadice.engine import Participants, module_of


def test_membership_auc_is_the_chance_of_a_lower_loss():
    draw = torch.Generator().manual_seed(3)
    members, fresh = (torch.randint(5, (2, size), generator=draw).double() for size in (7, 11))
    expected = [
        sum((m < f) + 0.5 * (m == f) for m in row for f in other) / 77
        for row, other in zip(members.tolist(), fresh.tolist(), strict=True)
    ]
    torch.testing.assert_close(membership_auc(members, fresh), torch.tensor(expected, dtype=torch.float64))
    assert membership_auc(torch.zeros(1, 2), torch.ones(1, 5)).item() == 1


def test_losses_are_those_of_ordinary_modules():
    network = small()
    round_, test = window(network, 1)[0], network.data.test
    losses = sample_losses(network, round_.after, test, chunk=3)
    for k in range(NODES):
        outputs = module_of(network, round_.after, k)(test.x)
        torch.testing.assert_close(losses[k], nn.functional.cross_entropy(outputs, test.y, reduction="none").detach())


def test_distance_is_relative_to_the_way():
    def at(value):
        return Participants(torch.full((2, 3), value), {}, {})

    assert distance(at(1.0), at(3.0), at(0.0)) == pytest.approx(1 / 3)
    assert torch.isnan(torch.tensor(distance(at(1.0), at(1.0), at(1.0))))
