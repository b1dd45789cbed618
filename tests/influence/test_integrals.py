"""Integrated along the update, first order becomes the truth; along everybody's, shares of what was achieved."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small, smooth, window
from oracles import along, batch_of, loss_of, losses
from torch import nn
from torch.func import grad

from cascadice import optimizers
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, Operator, mix, simulate
from cascadice.influence import (
    by_participant,
    evaluate_on,
    first_order,
    path_integrated,
    path_integrated_samples,
    shares,
    shares_of_samples,
    truth,
)
from cascadice.influence.cascade import Cascade
from cascadice.influence.quadrature import weighted_points, with_error
from cascadice.influence.reverse_gossip import reverse_sweep
from cascadice.influence.shares import scaled_rounds

ROUNDING, POINTS = 1e-14, (1, 2, 3, 4, 5)


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
    rounds, judged = window(network, 3), evaluate_on(network)
    true = truth(network, rounds, judged).value
    found = [path_integrated(network, rounds, judged, points=m) for m in POINTS[:4]]
    assert found[1].kind == "path-integrated, 2 points"
    errors = [float((one.value - true).abs().max()) for one in found]
    assert_falls_tenfold(errors, visible=1e-8)
    assert errors[0] < float((first_order(network, rounds, judged).value - true).abs().max())


@pytest.mark.parametrize("options", SMOOTH.values(), ids=SMOOTH)
def test_each_point_brings_the_shares_ten_times_nearer_to_what_was_achieved(options):
    network = small(**options)
    rounds, judged = window(network, 3), evaluate_on(network)
    change = achieved(network, rounds)
    gaps = [float((shares(network, rounds, judged, points=m).sum() - change).abs()) for m in POINTS]
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
    torch.testing.assert_close(
        shares(network, rounds, evaluate_on(network), points=5).sum(), change, rtol=1e-9, atol=1e-13
    )


def test_shares_are_the_integral_of_what_each_update_is_worth():
    """Each share by itself: the partial derivative in the scale of j's update, where all are scaled alike."""
    network = small(lr=0.3, optimizer="momentum")
    rounds, step = window(network, 2), 1e-4
    expected = torch.zeros(NODES, dtype=torch.float64)
    for alpha, weight in weighted_points(4):
        for j in range(NODES):
            nudge = step * (torch.arange(NODES) == j).double()
            wide, narrow = (along(network, rounds, alpha + sign * nudge) for sign in (1, -1))
            expected[j] += weight * (network.q * (wide - narrow)).sum() / (2 * step)
    found = shares(network, rounds, evaluate_on(network), points=4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-10)


def test_who_does_nothing_has_no_share():
    network = small(behaviours=[Behaviour("free-rider", (1,))])
    found = shares(network, window(network, 2), evaluate_on(network))
    assert found[1] == 0
    assert found[[0, 2, 3]].abs().min() > 0


@pytest.mark.parametrize("points", [1, 2, 5])
def test_quadrature_is_exact_for_polynomials(points):
    for degree in range(2 * points):
        assert abs(sum(w * x**degree for x, w in weighted_points(points)) - 1 / (degree + 1)) < 1e-14
    assert abs(sum(w * x ** (2 * points) for x, w in weighted_points(points)) - 1 / (2 * points + 1)) > 1e-9


def judged_sum(network, rounds, half):
    """Φ, if everybody had been at `half` after the local steps of the first round."""
    first, now = rounds[0], mix(rounds[0].W, half)
    later = simulate(network, rounds[-1].t + 1, start=first.t + 1, participants=now)
    seen = [half, now, *(done.after for done in later)]
    return sum((network.q * losses(network, people)).sum() for people in seen)


@pytest.mark.parametrize("only", [None, 2])
def test_a_samples_part_is_the_integral_of_what_its_term_is_worth(only):
    """By differences: Φ where a little more of the sample's own step is made, along everybody's updates or its own."""
    network = small(lr=0.4)
    rounds, j, i, nudge = window(network, 2), 2, 1, 1e-3
    x, y = (part[i : i + 1] for part in batch_of(network, rounds[0], j))
    slope = grad(lambda theta: loss_of(network, x, y, theta))(rounds[0].before.theta[j])
    expected = 0.0
    for alpha, weight in weighted_points(2):
        half, ends = scaled_rounds(Operator(network), rounds, alpha, only)[0].half, []
        for sign in (1, -1):
            theta = half.theta.clone()
            theta[j] -= sign * nudge * rounds[0].draw.lr / 4 * slope
            ends.append(judged_sum(network, rounds, half._replace(theta=theta)))
        expected += weight * (ends[0] - ends[1]) / (2 * nudge)
    if only is None:
        found = shares_of_samples(network, rounds, evaluate_on(network))[j, i]
    else:
        found = path_integrated_samples(network, rounds, evaluate_on(network), only)[i]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


LINEAR = {
    "sgd": {"lr": 0.4},
    "momentum at rest": {"optimizer": "momentum"},
    "nesterov at rest": {"optimizer": "nesterov"},
}


@pytest.mark.parametrize("options", LINEAR.values(), ids=LINEAR)
def test_parts_of_samples_add_up(options):
    """To the share of their participant, and to the integral of its update; momentum has none of its own at rest."""
    network = small(**options)
    rounds, judged = window(network, 3, start=0 if "optimizer" in options else 2), evaluate_on(network)
    found = shares_of_samples(network, rounds, judged)
    assert found.shape == (NODES, 4)
    torch.testing.assert_close(found.sum(1), shares(network, rounds, judged), **CLOSE)
    parts = path_integrated_samples(network, rounds, judged, 3)
    torch.testing.assert_close(parts.sum(), path_integrated(network, rounds, judged, [3]).total[0], **CLOSE)
    assert (parts - found[3]).abs().max() > 1e-8


def test_what_old_momentum_does_belongs_to_no_sample():
    network = small(optimizer="momentum", lr=0.1)
    rounds, judged = window(network, 3), evaluate_on(network)
    first, momentum = rounds[0], rounds[0].before.state["momentum"]
    carried_on = first.before._replace(
        theta=first.before.theta - first.draw.lr * 0.9 * momentum, state={"momentum": 0.9 * momentum}
    )
    without_data, left = first._replace(half=carried_on), 0.0
    for alpha, weight in weighted_points(2):
        steps = scaled_rounds(Operator(network), rounds, alpha)
        worth = reverse_sweep(network, steps, judged, direct=steps[0].half.theta)  # scaled, so they do not replay
        left = left + weight * by_participant(without_data, worth)
    assert left.abs().min() > 1e-6
    parts = shares_of_samples(network, rounds, judged).sum(1)
    torch.testing.assert_close(parts + left, shares(network, rounds, judged), **CLOSE)


@pytest.mark.parametrize("options", [SMOOTH["gelu"], SMOOTH["adamw"]], ids=["gelu", "adamw"])
def test_the_error_of_an_integral_is_known_from_one_point_more(options):
    network = small(**options)
    rounds, judged = window(network, 2), evaluate_on(network)
    true = truth(network, rounds, judged).value
    for points in (1, 2):
        value, error = with_error(lambda m: path_integrated(network, rounds, judged, points=m), points)
        assert isinstance(value, Cascade)
        assert value.kind == f"path-integrated, {points + 1} points"
        assert error.shape == true.shape
        rough = path_integrated(network, rounds, judged, points=points)
        assert (value.value - true).abs().max() <= error.max()
        assert 0.1 < error.max() / (rough.value - true).abs().max() < 10


@pytest.mark.parametrize("options", [SMOOTH["sgd"], SMOOTH["momentum"]], ids=["sgd", "momentum"])
def test_the_error_of_shares_bounds_their_gap(options):
    network = small(**options)
    rounds, judged = window(network, 2), evaluate_on(network)
    change = achieved(network, rounds)
    for points in (1, 2):
        value, error = with_error(lambda m: shares(network, rounds, judged, m), points)
        assert torch.equal(value, shares(network, rounds, judged, points + 1))
        assert (value.sum() - change).abs() <= error.sum()
        rough = shares(network, rounds, judged, points)
        assert 0.1 < (value - rough).sum().abs() / (rough.sum() - change).abs() < 10


def one(way):
    return lambda *given, points: way(*given, 0, points=points)


@pytest.mark.parametrize("way", [path_integrated, shares, shares_of_samples, one(path_integrated_samples)])
def test_a_quadrature_needs_a_point(way):
    network = small()
    with pytest.raises(ValueError, match=r"at most 100 points; found 1000000000. Use fewer"):
        weighted_points(10**9)
    with pytest.raises(ValueError, match="at least 1 point; found 0"):
        way(network, window(network, 1), evaluate_on(network), points=0)


@pytest.mark.parametrize("way", [shares_of_samples, one(path_integrated_samples)])
def test_batch_norm_has_no_parts_of_samples(way):
    network = small(smooth(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match="'2' is a BatchNorm"):
        way(network, window(network, 1), evaluate_on(network), points=1)
