"""What cannot be forgotten, and how that is said."""

import pytest
from influence.cases import small, smooth, window
from torch import nn

from cascadice import optimizers
from cascadice.applications.forget.idea import Removal, forget, repair

ROUNDS = 3
PARTICIPANT = Removal(nodes=(1,))


@pytest.mark.parametrize(
    ("removal", "message"),
    [
        (Removal(nodes=(4,)), "participants are numbered 0 to 3; found 4"),
        (Removal(nodes=(-1,)), "participants are numbered 0 to 3; found -1"),
        (Removal(samples=(48,)), "training samples are numbered 0 to 47; found 48"),
        (Removal(nodes=(0,), rounds=range(1, 4)), "round 1 is to be forgotten, but the rounds begin with 2"),
        (Removal(nodes=(0,), rounds=range(3, 9)), "round 8 is to be forgotten, but the rounds end with 4"),
    ],
)
def test_what_is_not_there_cannot_be_forgotten(removal, message):
    network = small()
    with pytest.raises(ValueError, match=message):
        forget(network, window(network, ROUNDS), removal, "gossip")


def test_samples_that_nobody_drew_are_not_forgotten():
    network = small()
    rounds = window(network, 2)
    drawn = {int(i) for round_ in rounds for i in round_.draw.batch.flatten()}
    spared = min(set(range(48)) - drawn)
    with pytest.raises(ValueError, match="nobody used any of these samples in rounds 2 to 3: nothing to forget"):
        forget(network, rounds, Removal(samples=(spared,)))


def test_rounds_must_follow_one_another_and_be_this_networks():
    network = small()
    first, second, third = window(network, 3)
    with pytest.raises(ValueError, match="round 2 is followed by 4"):
        forget(network, [first, third], PARTICIPANT)
    other = window(small(seed=1), 3)
    with pytest.raises(ValueError, match="round 3 does not start with the parameters after round 2"):
        forget(network, [first, other[1]], PARTICIPANT)
    with pytest.raises(ValueError, match="there must be at least one round to forget something in; found none"):
        forget(network, [], PARTICIPANT)
    with pytest.raises(ValueError, match="must belong to this network"):
        forget(small(smooth(width=5)), [first, second], PARTICIPANT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "something must be forgotten"),
        ({"nodes": (1,), "rounds": range(3, 3)}, "rounds must be consecutive, from 0 on, at least one"),
        ({"nodes": (1,), "rounds": range(0, 9, 2)}, "rounds must be consecutive"),
    ],
)
def test_a_removal_must_make_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Removal(**arguments)


def test_other_mistakes():
    network = small(optimizer=optimizers.clip(optimizers.sgd(), 0.5))
    rounds = window(network, 2)
    with pytest.raises(
        ValueError,
        match=r"the level gossip needs one optimizer for all .* this network has others\. Use first-order or replay",
    ):
        forget(network, rounds, PARTICIPANT, "gossip")
    with pytest.raises(ValueError, match=r"unknown level 'gosip'\. Did you mean 'gossip'\?"):
        forget(network, rounds, PARTICIPANT, "gosip")
    with pytest.raises(ValueError, match="rounds to repair must be at least 0; found -1"):
        repair(network, forget(network, rounds, PARTICIPANT, "replay"), PARTICIPANT, -1)
    normed = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="is a BatchNorm"):
        forget(normed, window(normed, 2), Removal(samples=(0,)))
