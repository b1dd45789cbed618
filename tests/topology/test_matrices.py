import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice import seeds, topology
from cascadice.topology import SPARSE_FROM

BIG = SPARSE_FROM + 8


def random_matrix(nodes, seed=0, density=0.3):
    generator = seeds.generator(seed, "test", nodes)
    W = torch.rand(nodes, nodes, generator=generator, dtype=torch.float64)
    W = W * (torch.rand(nodes, nodes, generator=generator) < density) + torch.eye(nodes)
    return W / W.sum(1, keepdim=True)


def in_layout(W, layout):
    return {"dense": W, "csr": topology.from_links(W.shape[0], *topology.links(W)), "coo": W.to_sparse()}[layout]


def test_matrix_is_dense_below_the_limit_and_csr_from_it_on():
    assert topology.matrix(np.eye(SPARSE_FROM - 1)).layout == torch.strided
    assert topology.matrix(np.eye(SPARSE_FROM)).layout == torch.sparse_csr


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.clone, torch.Tensor.float])
def test_matrix_takes_lists_arrays_and_tensors(convert):
    W = random_matrix(5)
    found = topology.matrix(convert(W))
    assert found.dtype == torch.float64
    assert_close(found, W, atol=1e-7, rtol=0)


@pytest.mark.parametrize("layout", ["dense", "csr", "coo"])
def test_every_layout_has_the_same_links(layout):
    W = random_matrix(BIG, density=0.01)
    found = topology.matrix(in_layout(W, layout))
    assert found.layout == torch.sparse_csr
    assert torch.equal(found.to_dense(), W)
    k, j, weight = topology.links(found)
    assert torch.equal(torch.stack([k, j], 1), W.nonzero())
    assert torch.equal(weight, W[k, j])


def test_links_leave_out_zeros_that_a_sparse_matrix_stores():
    stored = topology.matrix(torch.eye(BIG)).clone()
    stored.values()[3] = 0.0
    assert len(topology.links(stored).weights) == BIG - 1


@pytest.mark.parametrize("nodes", [4, BIG])
def test_parallel_links_add_up(nodes):
    k, j, weight = torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2]), torch.tensor([0.25, 1.0, 0.5])
    W = topology.from_links(nodes, k, j, weight).to_dense()
    assert W[1, 2] == 0.75
    assert W[0, 0] == 1
    assert W.sum() == 1.75


@given(st.integers(1, 12), st.integers(0, 1000))
def test_normalize_divides_rows_by_their_sums(nodes, seed):
    raw = random_matrix(nodes, seed) * torch.arange(1, nodes + 1)[:, None]
    assert_close(topology.matrix(raw, normalize=True), raw / raw.sum(1, keepdim=True), rtol=1e-14, atol=0)


def test_matrix_does_not_share_memory_with_what_it_was_given():
    array = np.eye(3)
    W = topology.matrix(array)
    array[0, 0] = 7
    assert W[0, 0] == 1


BAD = [
    ([[1.0, 0.0]], r"W must be square.*found 1 x 2\."),
    ([1.0], r"W must be square.*found 1\."),
    (np.zeros((0, 0)), "W must be square"),
    ([[1.0], [0.5, 0.5]], "rows of equal length"),
    ([["a"]], "matrix of numbers"),
    ([[1.0, 0.0], [float("nan"), 1.0]], r"W must hold finite numbers; W\[1, 0\] is nan"),
    ([[1.0, 0.0], [float("inf"), 1.0]], r"W must hold finite numbers; W\[1, 0\] is inf"),
    ([[1.5, -0.5], [0.0, 1.0]], r"W must not be negative; W\[0, 1\] is -0\.5\."),
    (
        [[1.0, 0.0], [0.5, 1 / 3]],
        r"^W must have rows summing to 1; row 1 sums to 0\.8333\. Use topology\.metropolis\(graph\), or divide rows by",
    ),
    ([[1.0, 0.0], [0.5, 0.50001]], r"row 1 sums to 1\.00001000\."),
]


@pytest.mark.parametrize(("array", "message"), BAD)
def test_matrix_refuses_what_is_no_mixing_matrix(array, message):
    with pytest.raises(ValueError, match=message) as error:
        topology.matrix(array)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("array", "message"), BAD[5:])
def test_check_refuses_the_same(array, message):
    with pytest.raises(ValueError, match=message):
        topology.check(torch.tensor(array, dtype=torch.float64))


def test_check_names_the_row_of_a_sparse_matrix():
    W = topology.identity(BIG).clone()
    W.values()[517] = 0.5
    with pytest.raises(ValueError, match=r"row 517 sums to 0\.5\."):
        topology.check(W)


def test_check_allows_rounding():
    topology.check(torch.tensor([[1 / 3, 2 / 3], [0.1, 0.9]], dtype=torch.float32))


def test_a_row_of_zeros_cannot_be_normalised():
    with pytest.raises(ValueError, match=r"cannot be normalised: row 1 is all zero\. Set W\[1, 1\] = 1"):
        topology.matrix([[1.0, 0.0], [0.0, 0.0]], normalize=True)


def test_normalize_still_refuses_negative_weights():
    with pytest.raises(ValueError, match="must not be negative"):
        topology.matrix([[2.0, -1.0], [0.0, 1.0]], normalize=True)


def test_check_connected_says_who_never_hears_whom():
    hears_nobody = topology.matrix([[1.0, 0.0], [0.5, 0.5]])
    topology.check(hears_nobody)
    with pytest.raises(ValueError, match="strongly connected, but participant 0 never hears from participant 1"):
        topology.check(hears_nobody, connected=True)
    with pytest.raises(ValueError, match="strongly connected, but participant 1 never hears from participant 0"):
        topology.check(topology.matrix([[0.5, 0.5], [0.0, 1.0]]), connected=True)


@given(st.integers(1, 9), st.integers(0, 10_000))
def test_connection_agrees_with_networkx(nodes, seed):
    W = random_matrix(nodes, seed, density=0.2)
    graph = nx.from_numpy_array(W.numpy().T, create_using=nx.DiGraph)
    if nx.is_strongly_connected(graph):
        topology.check(W, connected=True)
    else:
        with pytest.raises(ValueError, match="strongly connected"):
            topology.check(W, connected=True)


def test_arrows_of_the_graph_point_from_source_to_receiver():
    graph = topology.to_graph(topology.matrix([[0.7, 0.3], [0.0, 1.0]]))
    assert list(graph.edges(data="weight")) == [(1, 0, 0.3)]
