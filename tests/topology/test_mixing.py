import gc
import time
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice import seeds, topology
from cascadice.topology import SPARSE_FROM, mixing


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=seeds.generator(0, "test", *shape))


def slow_gossip(W, theta):
    W = W.to_dense()
    mixed = [sum(W[k, j] * theta[j] for j in range(len(theta)) if W[k, j]) for k in range(len(theta))]
    return torch.stack(mixed)


@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from(["erdos-renyi", "exponential", "star"]))
def test_gossip_equals_its_slow_twin(nodes, d, name):
    W, theta = topology.build(name, nodes)(0), normal(nodes, d)
    assert_close(topology.gossip(W, theta), slow_gossip(W, theta), rtol=1e-12, atol=1e-12)
    assert_close(topology.gossip_transposed(W, theta), slow_gossip(W.T, theta), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["exponential", "star"])
def test_sparse_gossip_equals_dense(name, dtype):
    W, theta = topology.build(name, SPARSE_FROM + 9)(0), normal(SPARSE_FROM + 9, 7, dtype=dtype)
    assert W.layout == torch.sparse_csr
    dense = W.to_dense().to(dtype)
    for found, expected in (
        (topology.gossip(W, theta), dense @ theta),
        (topology.gossip_transposed(W, theta), dense.T @ theta),
    ):
        assert found.dtype == dtype
        assert_close(found, expected)


def test_gossip_transposed_is_the_adjoint():
    W = topology.build("exponential", 600)(0)
    theta, lam = normal(600, 3), normal(600, 3).flip(0)
    forward = (lam * topology.gossip(W, theta)).sum()
    backward = (topology.gossip_transposed(W, lam) * theta).sum()
    assert_close(forward, backward, rtol=1e-12, atol=1e-12)
    assert abs(forward - (topology.gossip(W, lam) * theta).sum()) > 1e-3


@pytest.mark.parametrize("nodes", [6, 600])
def test_gradients_flow_back_through_gossip(nodes):
    W, theta, lam = topology.build("exponential", nodes)(0), normal(nodes, 2).requires_grad_(), normal(nodes, 2).flip(0)
    (lam * topology.gossip(W, theta)).sum().backward()
    assert_close(theta.grad, topology.gossip_transposed(W, lam))


@pytest.mark.parametrize("nodes", [8, 600])
def test_converted_copies_are_reused_and_forgotten_with_their_matrix(nodes):
    from cascadice.topology.mixing import _copies, _fitting

    W, theta = topology.build("exponential", nodes)(0), normal(nodes, 2, dtype=torch.float32)
    converted = _fitting(W, theta, transposed=False)
    assert _fitting(W, theta, transposed=False) is converted
    assert converted.dtype == torch.float32
    gc.collect()  # of what other tests left
    gone, before = weakref.ref(converted), len(_copies)
    del W, converted
    gc.collect()
    assert gone() is None
    assert len(_copies) == before - 1


def test_two_matrices_of_equal_shape_are_not_mixed_up():
    theta = normal(4, 2, dtype=torch.float32)
    ring, alone = topology.build("ring", 4)(0), topology.build("alone", 4)(0)
    assert torch.equal(topology.gossip(alone, theta), theta)
    assert not torch.equal(topology.gossip(ring, theta), theta)


def test_four_thousand_participants_gossip_ten_thousand_parameters():
    W, theta = topology.build("exponential", 4096)(0), normal(4096, 10_000, dtype=torch.float32)
    start = time.perf_counter()
    mixed = topology.gossip(W, theta)
    # links x d = 0.5e9 multiplications take a third of a second; the 160e9 of a dense W would not fit
    assert time.perf_counter() - start < 10
    for k in (0, 1234, 4095):
        heard = [k, *((k + 2**m) % 4096 for m in range(12))]
        assert_close(mixed[k], theta[heard].mean(0))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("nodes", [16, 600])
def test_gossip_runs_where_theta_is(nodes):
    W, theta = topology.build("exponential", nodes)(0), normal(nodes, 3)
    for mix in (topology.gossip, topology.gossip_transposed):
        found = mix(W, theta.cuda())
        assert found.is_cuda
        assert_close(found.cpu(), mix(W, theta))


@pytest.mark.parametrize("plus", [None, 1.0])
@pytest.mark.parametrize("given", [False, True], ids=["fresh", "out"])
def test_wide_parameters_are_mixed_in_pieces(monkeypatch, given, plus):
    W, theta = topology.build("exponential", 600)(0), normal(600, 7)
    room = torch.empty_like(theta) if given else None
    added = None if plus is None else torch.full_like(theta, plus)
    expected = W.to_dense() @ theta, W.to_dense().T @ theta + (plus or 0.0)
    monkeypatch.setattr(mixing, "WIDEST", 3)
    assert_close(topology.gossip(W, theta, out=room), expected[0])
    found = topology.gossip_transposed(W, theta, plus=added, out=room)
    assert_close(found, expected[1])
    assert room is None or found is room


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("d", [2**20, 2**23 + 1])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_wide_parameters_are_mixed_on_cuda(layout, d):
    left = torch.tensor([[0.2, 0.8], [0.0, 1.0], [0.5, 0.0]], device="cuda")
    right = torch.arange(2 * d, dtype=torch.float32, device="cuda").view(2, d) / d
    assert_close(mixing.product(left.to_sparse(layout=layout), right), left @ right)
