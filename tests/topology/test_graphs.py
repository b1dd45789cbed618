import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cascadice import topology

UNDIRECTED = ["ring", "complete", "star", "torus", "random-regular", "erdos-renyi", "small-world"]
MAKE = {name: topology.TOPOLOGIES[name].make for name in [*UNDIRECTED, "exponential", "alone"]}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6, 16, 35])
def test_every_graph_is_on_the_participants_and_connected(name, nodes):
    graph = MAKE[name](nodes)
    assert set(graph) == set(range(nodes))
    connected = nx.is_strongly_connected(graph.to_directed())
    assert connected == (name != "alone" or nodes == 1)


@given(st.integers(2, 70))
def test_exponential_hears_powers_of_two_ahead(nodes):
    graph = topology.exponential(nodes)
    for k in range(nodes):
        heard, hop = set(), 1
        while hop <= nodes - 1:
            heard.add((k + hop) % nodes)
            hop *= 2
        assert set(graph.predecessors(k)) == heard


def neighbours(graph, k):
    return sorted(graph.neighbors(k))


def test_ring_star_and_complete():
    assert neighbours(topology.ring(5), 0) == [1, 4]
    assert neighbours(topology.star(5), 0) == [1, 2, 3, 4]
    assert neighbours(topology.star(5), 3) == [0]
    assert neighbours(topology.complete(4), 2) == [0, 1, 3]


def test_torus_of_twelve_is_three_by_four():
    assert neighbours(topology.torus(12), 5) == [1, 4, 6, 9]
    assert neighbours(topology.torus(12), 0) == [1, 3, 4, 8]


@given(st.integers(4, 200).filter(lambda n: any(n % d == 0 for d in range(2, n))))
def test_torus_looks_the_same_from_everywhere(nodes):
    assert len({degree for _, degree in topology.torus(nodes).degree}) == 1


@pytest.mark.parametrize("prime", [5, 7, 13])
def test_torus_needs_rows_and_columns(prime):
    with pytest.raises(ValueError, match=f"{prime} is prime. Use {prime - 1} or {prime + 1}, or topology 'ring'"):
        topology.torus(prime)


@given(st.integers(3, 30), st.integers(2, 5), st.integers(0, 99))
def test_random_regular_has_equal_degrees(nodes, degree, seed):
    if degree >= nodes or nodes * degree % 2:
        with pytest.raises(ValueError, match="nodes \\* degree even; found"):
            topology.random_regular(nodes, degree=degree, seed=seed)
    else:
        degrees = [d for _, d in topology.random_regular(nodes, degree=degree, seed=seed).degree]
        assert degrees == [degree] * nodes


def test_erdos_renyi_has_about_the_asked_for_links():
    links = topology.erdos_renyi(200, probability=0.3, seed=1).number_of_edges()
    assert abs(links / (200 * 199 / 2) - 0.3) < 0.02
    assert topology.erdos_renyi(9, probability=1.0).number_of_edges() == 36


def test_small_world_without_rewiring_is_a_ring_of_near_neighbours():
    assert neighbours(topology.small_world(10, degree=4, probability=0.0), 0) == [1, 2, 8, 9]
    rewired = topology.small_world(50, degree=4, probability=0.5)
    assert rewired.number_of_edges() == 100
    assert set(rewired.edges) != set(topology.small_world(50, degree=4, probability=0.0).edges)


@pytest.mark.parametrize("name", ["random-regular", "erdos-renyi", "small-world"])
def test_random_graphs_follow_their_seed(name):
    edges = [set(map(frozenset, MAKE[name](20, seed=seed).edges)) for seed in (0, 0, 1)]
    assert edges[0] == edges[1] != edges[2]


def test_random_graphs_leave_the_global_generators_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    topology.random_regular(20)
    topology.build("matching", 20)(5)
    assert torch.equal(before, torch.get_rng_state())


def test_a_graph_that_is_never_connected_is_refused():
    with pytest.raises(ValueError, match="random-regular with degree 1: none of 100 draws was connected"):
        topology.random_regular(6, degree=1)
    with pytest.raises(ValueError, match="erdos-renyi with p = 0: none of 100"):
        topology.erdos_renyi(6, probability=0.0)


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_probabilities_are_probabilities(probability):
    with pytest.raises(ValueError, match="probability must be from 0 to 1; found"):
        topology.erdos_renyi(6, probability=probability)
    with pytest.raises(ValueError, match="probability must be from 0 to 1; found"):
        topology.small_world(6, probability=probability)


def test_small_world_degree_must_leave_room():
    with pytest.raises(ValueError, match="degree must be from 0 to 5 for 6 participants; found 6"):
        topology.small_world(6, degree=6)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("nodes", [0, -3])
def test_a_network_needs_somebody(name, nodes):
    with pytest.raises(ValueError, match=f"at least 1 participant; found nodes={nodes}"):
        MAKE[name](nodes)
