"""The mixing matrix that follows from what participants know of each other."""

import torch
from torch.testing import assert_close

from cascadice import topology
from cascadice.applications.choose.idea import suggest_mixing
from cascadice.engine.exchange.cosine_trust import Trust


def test_a_suggested_w_may_have_new_links():
    influence = torch.tensor([[0, -0.5, -0.9], [0.4, 0, -0.1], [-0.9, 0.2, 0]], dtype=torch.float64)
    one = torch.ones(3, 3, dtype=torch.float64)
    trust = Trust(one, influence, one, influence < 0)
    W = topology.matrix([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    # 1 hears only 0, which harms it, and takes to 2; 2 hears only 1, which harms it, and takes to 0
    assert_close(suggest_mixing(trust, W), torch.tensor([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]).double())
    fresh = suggest_mixing(trust, W, new_links=True)
    assert fresh[0].tolist() == [0.5, 0, 0.5]
    assert (suggest_mixing(trust, W, new_links=True, degree=2) > 0)[0].all()
