import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from cascadice import topology


@given(st.integers(1, 40), st.integers(1, 5))
def test_base_averages_exactly_with_few_neighbours_in_few_rounds(nodes, degree):
    matrices = topology.base(nodes, max_degree=degree).matrices
    product = torch.eye(nodes, dtype=torch.float64)
    for W in matrices:
        topology.check(W)
        assert torch.equal(W, W.T)
        assert int((W - W.diagonal().diag() > 0).sum(1).max()) <= degree
        product = W @ product
    assert_close(product, torch.full_like(product, 1 / nodes), rtol=0, atol=1e-12)
    assert len(matrices) <= 2 * math.log(nodes, degree + 1) + 2


@pytest.mark.parametrize(
    ("nodes", "degree", "rounds"),
    [(8, 1, 3), (9, 2, 2), (12, 3, 2), (6, 5, 1), (5, 1, 5), (6, 1, 4), (7, 2, 4)],
)
def test_base_takes_as_many_rounds_as_worked_out_by_hand(nodes, degree, rounds):
    assert len(topology.base(nodes, max_degree=degree).matrices) == rounds


def test_base_of_many_is_sparse_and_exact():
    theta = torch.arange(1500, dtype=torch.float64)[:, None] ** 2
    for W in topology.base(1500, max_degree=2).matrices:
        assert W.layout == torch.sparse_csr
        theta = topology.gossip(W, theta)
    mean = sum(k * k for k in range(1500)) / 1500
    assert_close(theta, torch.full_like(theta, mean), rtol=1e-12, atol=0)


def test_base_needs_a_neighbour():
    with pytest.raises(ValueError, match="max_degree must be at least 1; found 0"):
        topology.base(4, max_degree=0)
    with pytest.raises(ValueError, match="at least 1 participant"):
        topology.base(0)
