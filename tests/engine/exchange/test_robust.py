"""Robust rules against their slow, obvious twins: a loop over receivers."""

import math

import pytest
import torch
from torch.testing import assert_close

from cascadice import topology
from cascadice.engine.exchange import robust
from cascadice.engine.exchange.geometry import distances
from cascadice.engine.learner import Participants
from cascadice.engine.rounds import Draw

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NODES, SIZE = 9, 7


def sent(seed=0, nodes=NODES, size=SIZE):
    draw = torch.Generator().manual_seed(seed)
    theta = torch.randn(nodes, size, generator=draw, dtype=torch.float64)
    theta[2] *= 30  # far off
    return Participants(theta, {}, {})


def drawn(W):
    return Draw(0, torch.zeros(len(W), 1, 1, dtype=torch.int64), W, 0.1)


def graphs():
    star = topology.uniform(topology.star(NODES))  # degrees from 1 to 8
    return {"exponential": topology.build("exponential", NODES)(0), "star": star, "alone": topology.identity(NODES)}


def heard(W, k):
    return [j for j in range(len(W)) if W[k, j] > 0 and j != k]


def slow_clipping(W, theta, share):
    found = torch.empty_like(theta)
    for k in range(len(W)):
        neighbours = heard(W, k)
        far = sorted((float((theta[j] - theta[k]).norm()) for j in neighbours), reverse=True)
        f = min(math.ceil(share * len(neighbours)), len(neighbours) - 1) if neighbours else 0
        found[k] = theta[k]
        for j in neighbours:
            step = theta[j] - theta[k]
            found[k] += W[k, j] * step * min(1, far[f] / float(step.norm()))
    return found


def slow_krum(W, theta, share):
    found = torch.empty_like(theta)
    for k in range(len(W)):
        held = [k, *heard(W, k)]
        nearest = max(1, len(held) - math.ceil(share * (len(held) - 1)) - 2)
        scores = [
            sum(sorted(float((theta[i] - theta[j]).square().sum()) for j in held if j != i)[:nearest]) for i in held
        ]
        found[k] = theta[held[scores.index(min(scores))]]
    return found


def slow_trimmed_mean(W, theta, share):
    found = torch.empty_like(theta)
    for k in range(len(W)):
        held = [k, *heard(W, k)]
        f = min(math.ceil(share * (len(held) - 1)), (len(held) - 1) // 2)
        for i in range(theta.shape[1]):
            values = sorted(float(theta[j, i]) for j in held)[f : len(held) - f]
            found[k, i] = sum(values) / len(values)
    return found


RULES = {
    "clipping": (robust.clipping, slow_clipping),
    "krum": (robust.krum, slow_krum),
    "trimmed mean": (robust.trimmed_mean, slow_trimmed_mean),
}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("graph", graphs())
@pytest.mark.parametrize("name", RULES)
def test_rules_are_their_slow_twins(name, graph, share, monkeypatch):
    monkeypatch.setattr(robust, "SORTED_AT_ONCE", 3 * NODES * NODES)  # several pieces of columns
    make, slow = RULES[name]
    W, half = graphs()[graph], sent()
    chosen = make(share)(drawn(W), half, half)
    after = chosen.theta if isinstance(chosen, Participants) else chosen @ half.theta
    if not isinstance(chosen, Participants):
        topology.check(chosen)
    assert_close(after, slow(W, half.theta, share), **EXACT)


def test_trimming_mixes_buffers_as_gossip_does():
    W = graphs()["exponential"]
    half = sent()._replace(buffers={"mean": torch.randn(NODES, 3, dtype=torch.float64)})
    found = robust.trimmed_mean()(drawn(W), half, half)
    assert_close(found.buffers["mean"], W @ half.buffers["mean"], **EXACT)


def test_the_oracle_drops_attackers_and_leaves_their_own_rows():
    W, half = graphs()["exponential"], sent()
    found = robust.without([2, 5])(drawn(W), half, half)
    topology.check(found)
    honest = [k for k in range(NODES) if k not in (2, 5)]
    assert not found[honest][:, [2, 5]].any()
    assert torch.equal(found[[2, 5]], W[[2, 5]])
    assert_close(found[0, 1] / found[0, 4], W[0, 1] / W[0, 4])  # the others keep their proportions


def test_the_oracle_of_groups_and_being_alone():
    W, half = graphs()["exponential"], sent()
    group = torch.arange(NODES) % 2
    found = robust.within(group)(drawn(W), half, half)
    topology.check(found)
    assert not found[group[:, None] != group[None]].any()
    assert torch.equal(robust.alone(drawn(W), half, half), torch.eye(NODES, dtype=torch.float64))


def test_distances_of_models_much_alike():
    theta = 1e3 + 1e-3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(distances(theta), torch.cdist(theta, theta, compute_mode="donot_use_mm_for_euclid_dist"))


@pytest.mark.parametrize("make", [robust.clipping, robust.krum, robust.trimmed_mean])
def test_a_share_is_a_number(make, unchecked):
    with pytest.raises(
        TypeError, match=r"share, the fraction .*, must be a number; found Participants\. .* the network"
    ):
        make(sent())


@pytest.mark.parametrize("make", [robust.clipping, robust.krum, robust.trimmed_mean])
@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan")])
def test_half_of_what_is_heard_cannot_be_false(make, share):
    with pytest.raises(ValueError, match=r"share, the fraction .* that may be false, must be in 0\.\.0\.5; found"):
        make(share)
