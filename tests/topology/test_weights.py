import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice import topology
from cascadice.topology import SPARSE_FROM


def slow_uniform(graph):
    W = torch.zeros(len(graph), len(graph), dtype=torch.float64)
    directed = graph.to_directed()
    for k in graph:
        heard = {k, *directed.predecessors(k)}
        for j in heard:
            W[k, j] = 1 / len(heard)
    return W


def slow_metropolis(graph):
    W = torch.zeros(len(graph), len(graph), dtype=torch.float64)
    for k, j in graph.to_directed().edges:
        W[k, j] = 1 / (1 + max(graph.degree(k), graph.degree(j)))
    return W + (1 - W.sum(1)).diag()


graphs = st.builds(
    nx.gnp_random_graph, st.integers(1, 15), st.floats(0, 1), seed=st.integers(0, 999), directed=st.booleans()
)


@given(graphs)
def test_uniform_equals_its_slow_twin(graph):
    assert_close(topology.uniform(graph), slow_uniform(graph), rtol=0, atol=1e-15)


@given(graphs.filter(lambda graph: not graph.is_directed()))
def test_metropolis_equals_its_slow_twin_and_is_doubly_stochastic(graph):
    W = topology.metropolis(graph)
    assert_close(W, slow_metropolis(graph), rtol=0, atol=1e-15)
    assert_close(W.sum(0), torch.ones(len(graph), dtype=torch.float64))
    assert torch.equal(topology.metropolis(graph.to_directed()), W)


@pytest.mark.parametrize("weigh", [topology.uniform, topology.metropolis])
def test_large_graphs_get_the_same_weights_in_csr(weigh):
    graph = topology.small_world(SPARSE_FROM + 10, seed=3)
    W = weigh(graph)
    assert W.layout == torch.sparse_csr
    slow = {topology.uniform: slow_uniform, topology.metropolis: slow_metropolis}[weigh]
    assert_close(W.to_dense(), slow(graph), rtol=0, atol=1e-15)


def test_exponential_weights_are_one_over_degree_plus_one():
    W = topology.uniform(topology.exponential(16))
    assert_close(W[15], torch.tensor([1, 1, 0, 1, 0, 0, 0, 1, *[0] * 7, 1], dtype=torch.float64) / 5)


def test_self_loops_of_the_graph_change_nothing():
    graph = topology.ring(5)
    before = topology.uniform(graph), topology.metropolis(graph)
    graph.add_edge(2, 2)
    assert torch.equal(topology.uniform(graph), before[0])
    assert torch.equal(topology.metropolis(graph), before[1])


def test_metropolis_names_a_link_without_reverse():
    with pytest.raises(
        ValueError, match=r"every edge must have its reverse; 1 -> 2 has none\. Use uniform weights, or graph\.to_und"
    ):
        topology.metropolis(nx.DiGraph([(0, 1), (1, 0), (1, 2)]))


def test_integer_labels_are_the_participants_however_they_were_added():
    graph = nx.DiGraph([(2, 0), (0, 1)])
    assert topology.uniform(graph).tolist() == [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]


def test_other_labels_count_in_the_order_they_were_added():
    graph = nx.DiGraph([("c", "a"), ("a", "b")])
    assert topology.uniform(graph).tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]


def test_given_weights_stand_on_the_edges_and_the_rest_is_kept():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 0.3), (2, 1, 0.1), (1, 2, 0.6), (2, 2, 0.4)])
    assert_close(
        topology.from_graph(graph),
        torch.tensor([[1, 0, 0], [0.3, 0.6, 0.1], [0, 0.6, 0.4]], dtype=torch.float64),
        rtol=0,
        atol=1e-15,
    )


def test_given_weights_of_an_undirected_edge_run_both_ways():
    graph = nx.Graph()
    graph.add_edge("x", "y", weight=0.1)
    W = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    assert_close(topology.from_graph(graph), W, rtol=0, atol=1e-15)


def test_given_weights_above_one_need_normalising():
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(0, 1, 0.9), (2, 1, 0.9)])
    with pytest.raises(ValueError, match=r"row 1 sums to 1\.8\."):
        topology.from_graph(graph)
    assert topology.from_graph(graph, normalize=True)[1].tolist() == [0.5, 0.0, 0.5]


def test_given_weights_may_not_be_negative():
    graph = nx.DiGraph()
    graph.add_edge(0, 1, weight=-0.5)
    with pytest.raises(ValueError, match=r"must not be negative; W\[1, 0\] is -0\.5"):
        topology.from_graph(graph)


def test_an_edge_without_weight_is_named():
    graph = nx.DiGraph([(0, 1)])
    with pytest.raises(ValueError, match=r"edge \(0, 1\) has no 'weight'\. Set it, or use topology\.uniform"):
        topology.from_graph(graph)


@pytest.mark.parametrize("weigh", [topology.uniform, topology.metropolis, topology.from_graph])
def test_multigraphs_and_empty_graphs_are_refused(weigh):
    with pytest.raises(TypeError, match="must be a networkx Graph or DiGraph; found MultiGraph"):
        weigh(nx.MultiGraph([(0, 1), (0, 1)]))
    with pytest.raises(ValueError, match="at least 1 participant"):
        weigh(nx.Graph())


@given(st.integers(4, 90))
def test_dominant_has_three_ranks(nodes):
    W = topology.dominant(nodes)
    topology.check(W, connected=True)
    out = W.sum(0) - W.diagonal()
    leaders = [7 * nodes // 16, 10 * nodes // 16]
    ordinary = [k for k in range(1, nodes) if k not in leaders]
    assert len({0, *leaders}) == 3
    assert out[0] > 2 * out[leaders].max()
    assert out[leaders].min() > 2 * out[ordinary].max()


def test_dominant_of_sixteen_puts_the_subdominant_at_seven_and_ten():
    W = topology.dominant(16)
    assert (W.sum(0) - W.diagonal()).topk(3).indices.sort().values.tolist() == [0, 7, 10]


@pytest.mark.parametrize("nodes", [0, 3])
def test_dominant_needs_four(nodes):
    with pytest.raises(ValueError, match=f"dominant needs at least 4 participants; found nodes={nodes}"):
        topology.dominant(nodes)
