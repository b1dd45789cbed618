import torch
from torch.utils._pytree import tree_flatten

from cascadice.engine.fast.cuda_graphs import tensors
from cascadice.engine.learner import Participants


def test_tensors_come_in_torchs_order():
    a, b, c, d, e = (torch.zeros(i) for i in range(5))
    given = (((a, b),), Participants(c, {"z": d, "a": e}, {}), (), [a])
    assert [id(t) for t in tensors(given)] == [id(t) for t in tree_flatten(given)[0]]
