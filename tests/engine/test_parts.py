"""A part of a network, made as such, is what is cut out of the whole one; no other participant's model is made."""

import pytest
import torch

from cascadice import data, models, network
from cascadice.data.corruption import Corruption
from cascadice.engine.assembly import Network
from cascadice.engine.behaviours import Behaviour
from cascadice.engine.networks import draw
from cascadice.engine.parts import part_of, split

DIGITS, NODES = data.digits(), 6
CASES = {
    "shared": {},
    "own": {"init": "own"},
    "given": {"init": torch.arange(6.0)[:, None].expand(6, 610)},
    "mixed": {
        "optimizer": ["sgd", "adam", "sgd", "momentum", "adam", "adam"],
        "lr": [0.1, 0.003, 0.1, 0.03, 0.2, 0.003],
        "batch_size": [8, 8, 4, 8, 6, 8],
        "local_steps": [1, 2, 1, 1, 3, 1],
    },
    "attacks": {
        "behaviours": [Behaviour("absent", (1,), range(2, 4)), Behaviour("noise-sender", (4,), None, 0.01)],
        "corruptions": [Corruption("flip-labels", (5,), None, 0.5)],
        "q": [0.3, 0.1, 0.1, 0.2, 0.2, 0.1],
    },
}


def made(members=(), **options) -> Network:
    def model():
        return models.build("mlp", (64,), 10, hidden=[8], seed=torch.initial_seed())

    return network(model, DIGITS, **{"nodes": NODES, "batch_size": 8} | options, members=members)


@pytest.mark.parametrize("name", CASES)
def test_made_as_a_part_or_cut_out(name):
    options = CASES[name]
    whole = made(**options)
    for members in ((0, 1, 2), (3, 4, 5), (4, 5)):
        cut, part = part_of(whole, members), made(members, **options)
        assert (part.whole, part.nodes) == (NODES, len(members))
        assert all(map(torch.equal, (part.initial.theta, part.q), (cut.initial.theta, cut.q)))
        assert (part.corruptions, part.behaviours) == (cut.corruptions, cut.behaviours)
        for t in (0, 2):
            one, other = draw(part, t), draw(cut, t)
            assert all(map(torch.equal, (one.batch, one.W), (other.batch, other.W)))
            torch.testing.assert_close(torch.as_tensor(one.lr), torch.as_tensor(other.lr))
        for k in range(len(members)):
            own = next((group.learner for group in part.groups if k in group.nodes), part.learner).optimizer
            theirs = next((group.learner for group in cut.groups if k in group.nodes), cut.learner).optimizer
            assert own.update.__qualname__ == theirs.update.__qualname__


def test_no_model_of_anybody_else_is_made():
    drawn = []

    def model():
        drawn.append(torch.initial_seed())
        return models.mlp((64,), 10, hidden=(8,))

    network(model, DIGITS, nodes=NODES, init="own", members=(4, 5))
    assert len(drawn) == 3  # a template, and two members


def test_members_are_participants_in_order():
    with pytest.raises(ValueError, match="members must be participants below 6, in ascending order"):
        made((5, 4))
    with pytest.raises(ValueError, match=r"found 7 processes for 6\. Start at most 6"):
        split(6, 7)
