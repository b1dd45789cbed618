"""Integrated along the update, first order becomes the truth; along everybody's, shares of what was achieved."""

import pytest
import torch
from influence.cases import NODES, small, smooth, window
from influence.oracles import along
from torch import nn

from cascadice import optimizers
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour
from cascadice.influence import first_order, judge, path_integrated, shares, truth
from cascadice.influence.cascades import gauss_legendre

ROUNDING = 1e-14


def achieved(network, rounds):
    """Φ(1) − Φ(0): what everybody's local work of the first round changed, summed over hops and receivers."""
    done, undone = (along(network, rounds, [scale] * network.nodes) for scale in (1.0, 0.0))
    return (network.q * (done - undone)).sum()


def assert_falls_tenfold(errors, visible):
    assert errors[0] > visible
    for further, error in enumerate(errors):  # from the first: a gap that changes its sign can be small by accident
        assert error <= max(errors[0] / 10**further, ROUNDING), errors


# wide steps, so that one point is visibly wrong; the network is smooth and the error still falls by decades
SMOOTH = {
    "sgd": {"lr": 0.4},
    "gelu": {"model": smooth(activation=nn.GELU), "lr": 0.3},
    "momentum": {"optimizer": "momentum", "lr": 0.05},
    "adamw": {"optimizer": optimizers.adamw(eps=0.1), "lr": 0.05, "local_steps": 2},
}


@pytest.mark.parametrize("options", SMOOTH.values(), ids=SMOOTH)
def test_each_point_brings_the_integral_ten_times_nearer_to_the_truth(options):
    network = small(**options)
    rounds, judged = window(network, 3), judge(network)
    true = truth(network, rounds, judged).value
    found = [path_integrated(network, rounds, judged, points=m) for m in (1, 2, 3, 4)]
    assert found[1].kind == "path-integrated, 2 points"
    errors = [float((one.value - true).abs().max()) for one in found]
    assert_falls_tenfold(errors, visible=1e-8)
    assert errors[0] < float((first_order(network, rounds, judged).value - true).abs().max())


@pytest.mark.parametrize("options", SMOOTH.values(), ids=SMOOTH)
def test_each_point_brings_the_shares_ten_times_nearer_to_what_was_achieved(options):
    network = small(**options)
    rounds, judged = window(network, 3), judge(network)
    change = achieved(network, rounds)
    gaps = [float((shares(network, rounds, judged, points=m).sum() - change).abs()) for m in (1, 2, 3, 4)]
    assert_falls_tenfold(gaps, visible=1e-8)


INSIDE = {
    "free-rider": {"behaviours": [Behaviour("free-rider", (1,))]},
    "sign flipper": {"behaviours": [Behaviour("sign-flipper", (1,), strength=2.0)], "optimizer": "momentum"},
    "absent": {"behaviours": [Behaviour("absent", (1,), range(1, 4))]},
    "corrupted": {"corruptions": [Corruption("permute-labels", (0, 2))]},
    "noise sender": {"behaviours": [Behaviour("noise-sender", (1,), strength=0.01)]},
}


@pytest.mark.parametrize("options", INSIDE.values(), ids=INSIDE)
def test_shares_add_up_whatever_participants_do(options):
    network = small(lr=0.1, **options)
    rounds = window(network, 3)
    change = achieved(network, rounds)
    torch.testing.assert_close(shares(network, rounds, judge(network), points=5).sum(), change, rtol=1e-9, atol=1e-13)


def test_shares_are_the_integral_of_what_each_update_is_worth():
    """Each share by itself: the partial derivative in the scale of j's update, where all are scaled alike."""
    network = small(lr=0.3, optimizer="momentum")
    rounds, step = window(network, 2), 1e-4
    expected = torch.zeros(NODES, dtype=torch.float64)
    for alpha, weight in gauss_legendre(4):
        for j in range(NODES):
            nudge = step * (torch.arange(NODES) == j).double()
            wide, narrow = (along(network, rounds, alpha + sign * nudge) for sign in (1, -1))
            expected[j] += weight * (network.q * (wide - narrow)).sum() / (2 * step)
    found = shares(network, rounds, judge(network), points=4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-10)


def test_who_does_nothing_has_no_share():
    network = small(behaviours=[Behaviour("free-rider", (1,))])
    found = shares(network, window(network, 2), judge(network))
    assert found[1] == 0
    assert found[[0, 2, 3]].abs().min() > 0


@pytest.mark.parametrize("points", [1, 2, 5])
def test_quadrature_is_exact_for_polynomials(points):
    for degree in range(2 * points):
        assert abs(sum(w * x**degree for x, w in gauss_legendre(points)) - 1 / (degree + 1)) < 1e-14
    assert abs(sum(w * x ** (2 * points) for x, w in gauss_legendre(points)) - 1 / (2 * points + 1)) > 1e-9


@pytest.mark.parametrize("way", [path_integrated, shares])
def test_a_quadrature_needs_a_point(way):
    network = small()
    with pytest.raises(ValueError, match="at least 1 point; found 0"):
        way(network, window(network, 1), judge(network), points=0)
