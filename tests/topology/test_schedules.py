import pickle

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice import topology
from cascadice.topology import SPARSE_FROM

BIG = SPARSE_FROM + 1
RANDOM = {
    "pairs": lambda n, seed: topology.pairwise_gossip(n, seed=seed),
    "ring pairs": lambda n, seed: topology.pairwise_gossip(topology.ring(n), seed=seed),
    "epidemic": lambda n, seed: topology.epidemic(n, seed=seed),
    "matching": lambda n, seed: topology.random_matching(n, seed=seed),
    "lossy": lambda n, seed: topology.link_loss(topology.build("complete", n), 0.5, seed=seed),
}


def product(schedule, rounds):
    result = torch.eye(schedule(0).shape[0], dtype=torch.float64)
    for t in range(rounds):
        result = schedule(t) @ result
    return result


def test_constant_and_cyclic_return_the_same_objects_and_keep_their_values():
    ring, star = topology.build("ring", 4)(0), topology.build("star", 4)(0)
    constant, cycle = topology.constant(ring), topology.cyclic([ring, star])
    assert all(constant(t) is constant(0) for t in (1, 99))
    assert all(cycle(t) is cycle(t % 2) for t in range(6))
    expected = ring.clone()
    ring.fill_(0.25)  # whoever gave it may use it again
    assert torch.equal(constant(0), expected)
    assert torch.equal(cycle(0), expected)
    assert torch.equal(cycle(1), star)


def test_cycles_are_checked():
    with pytest.raises(ValueError, match="at least one W"):
        topology.cyclic([])
    with pytest.raises(ValueError, match=r"same number of participants; found \[2, 3\]"):
        topology.cyclic([topology.identity(3), topology.identity(2)])
    with pytest.raises(ValueError, match="row 0 sums to 2"):
        topology.constant(2 * topology.identity(3))


@pytest.mark.parametrize("nodes", [1, 2, 8, 32])
def test_one_peer_exponential_averages_exactly_when_n_is_a_power_of_two(nodes):
    schedule = topology.one_peer_exponential(nodes)
    rounds = max(1, nodes.bit_length() - 1)
    assert len(schedule.matrices) == rounds
    assert_close(product(schedule, rounds), torch.full((nodes, nodes), 1 / nodes, dtype=torch.float64), rtol=0, atol=0)


@given(st.integers(2, 40), st.integers(0, 1000))
def test_one_peer_exponential_hears_one_peer(nodes, t):
    W = topology.one_peer_exponential(nodes)(t)
    hop, period = 1, 1
    while 2**period < nodes:
        period += 1
    hop = 2 ** (t % period)
    expected = torch.zeros(nodes, nodes, dtype=torch.float64)
    for k in range(nodes):
        expected[k, k] += 0.5
        expected[k, (k + hop) % nodes] += 0.5
    assert torch.equal(W, expected)


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
@pytest.mark.parametrize("nodes", [1, 2, 3, 9, BIG])
def test_random_rounds_are_mixing_matrices(make, nodes):
    for t in range(3):
        topology.check(make(nodes, 0)(t))


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_random_rounds_depend_on_seed_and_round_alone(make):
    first, again, other = make(12, 5), make(12, 5), make(12, 6)
    late = first(700)
    assert torch.equal(late, again(700))
    assert torch.equal(late, first(700))
    assert any(not torch.equal(first(t), other(t)) for t in range(5))
    assert any(not torch.equal(first(t), first(t + 1)) for t in range(5))


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_schedules_can_be_sent_to_other_processes(make):
    schedule = make(7, 1)
    assert torch.equal(pickle.loads(pickle.dumps(schedule))(3), schedule(3))  # noqa: S301


def pairs_of(W):
    return {frozenset((k, j)) for k, j in W.nonzero().tolist() if k != j}


@given(st.integers(2, 20), st.integers(0, 50))
def test_pairwise_gossip_averages_one_pair(nodes, t):
    W = topology.pairwise_gossip(nodes)(t)
    (pair,) = pairs_of(W)
    k, j = pair
    assert W[k].tolist() == W[j].tolist()
    assert W[k, k] == W[k, j] == 0.5
    assert int((torch.eye(nodes) == W).all(1).sum()) == nodes - 2


def test_pairwise_gossip_meets_every_link_of_its_graph_and_no_other():
    graph = nx.Graph([(0, 1), (1, 2), (2, 3), (1, 3)])
    met = set().union(*(pairs_of(topology.pairwise_gossip(graph)(t)) for t in range(60)))
    assert met == set(map(frozenset, graph.edges))
    everyone = set().union(*(pairs_of(topology.pairwise_gossip(4)(t)) for t in range(60)))
    assert len(everyone) == 6


def test_pairwise_gossip_is_mutual():
    with pytest.raises(ValueError, match="its reverse; 0 -> 1 has none"):
        topology.pairwise_gossip(nx.DiGraph([(0, 1)]))


@given(st.integers(2, 21), st.integers(0, 50))
def test_matching_gives_everybody_one_partner(nodes, t):
    W = topology.random_matching(nodes)(t)
    assert torch.equal(W, W.T)
    assert len(pairs_of(W)) == nodes // 2
    assert torch.equal((W > 0).sum(1).sort().values, torch.tensor([1] * (nodes % 2) + [2] * (nodes - nodes % 2)))


@given(st.integers(5, 20), st.integers(0, 20))
def test_epidemic_is_regular(nodes, t):
    W = topology.epidemic(nodes, degree=2)(t)
    assert torch.equal(W, W.T)
    assert ((W > 0).sum(1) == 3).all()
    assert W.max() == 1 / 3


def test_epidemic_checks_its_degree():
    with pytest.raises(ValueError, match="nodes \\* degree even; found nodes=5, degree=3"):
        topology.epidemic(5, degree=3)


def test_link_loss_renormalises_over_what_arrived():
    full = topology.build("dominant", 16)
    W, lossy = full(0), topology.link_loss(full, 0.4, seed=2)(7)
    kept = lossy > 0
    expected = torch.where(kept, W, 0.0)
    assert_close(lossy, expected / expected.sum(1, keepdim=True), rtol=0, atol=1e-15)
    assert bool(kept.diagonal().all())
    assert not bool((kept & (W == 0)).any())


def test_link_loss_loses_as_often_as_it_says():
    lossy = topology.link_loss(topology.build("complete", 20), 0.3)
    left = sum(int((lossy(t) > 0).sum()) - 20 for t in range(50))
    assert abs(left / (50 * 380) - 0.7) < 0.02


def test_link_loss_at_the_ends():
    ring = topology.build("ring", 5)
    assert topology.link_loss(ring, 0.0)(3) is ring(3)
    assert torch.equal(topology.link_loss(ring, 1.0)(3), torch.eye(5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"probability must be from 0 to 1; found 1\.2"):
        topology.link_loss(ring, 1.2)


def test_who_hears_nobody_keeps_what_it_has():
    swap = topology.constant(topology.matrix([[0.0, 1.0], [1.0, 0.0]]))
    assert torch.equal(topology.link_loss(swap, 1.0)(0), torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("nodes", [9, BIG])
def test_the_absent_keep_still_and_the_present_renormalise(nodes):
    base = topology.build("exponential", nodes)
    here = topology.absences([([1, 4], range(10, 20)), ([4, 5], range(15, 17))], nodes)
    schedule = topology.presence(base, here)
    assert schedule(9) is base(9)
    assert schedule(20) is base(20)
    W, full = schedule(15).to_dense(), base(15).to_dense()
    for k in range(nodes):
        expected = torch.zeros(nodes, dtype=torch.float64)
        if k in (1, 4, 5):
            expected[k] = 1
        else:
            expected = full[k].clone()
            expected[[1, 4, 5]] = 0
            expected /= expected.sum()
        assert_close(W[k], expected, rtol=0, atol=1e-15)
    assert bool((schedule(12).to_dense()[6, 5] > 0) == (full[6, 5] > 0))


def test_presence_checks_who_is_there():
    ring = topology.build("ring", 4)
    with pytest.raises(ValueError, match="absent participants must be from 0 to 3; found 4"):
        topology.absences([([4], range(3))], 4)
    with pytest.raises(ValueError, match=r"must be 4 booleans.*found torch\.bool of shape \(3,\) at round 2"):
        topology.presence(ring, lambda t: torch.ones(3, dtype=torch.bool))(2)
    with pytest.raises(ValueError, match=r"must be 4 booleans.*found torch\.float32"):
        topology.presence(ring, lambda t: torch.ones(4))(2)


@pytest.mark.parametrize("nodes", [10, BIG])
def test_average_is_the_mean_of_the_rounds(nodes):
    schedule = topology.random_matching(nodes)
    expected = sum(schedule(t).to_dense() for t in range(4)) / 4
    assert_close(topology.average(schedule, 4).to_dense(), expected, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="rounds must be at least 1; found 0"):
        topology.average(schedule, 0)
