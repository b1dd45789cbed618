"""What must stay true of every cascade: symmetry, light cones, and the special cases one can work out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from influence.cases import CLOSE, NODES, data, directed, small, window
from oracles import batch_of, loss_of
from torch.func import grad

from cascadice.engine import simulate
from cascadice.influence import by_participant, evaluate_on, first_order, path_integrated, reverse_gossip, truth

WAYS = pytest.mark.parametrize("way", [truth, first_order, path_integrated])


@WAYS
def test_nothing_leaves_those_who_talk_to_nobody(way):
    network = small(mixing=torch.eye(NODES, dtype=torch.float64))
    value = way(network, window(network, 3), evaluate_on(network)).value
    alone = torch.eye(NODES, dtype=torch.bool)
    assert not value[:, ~alone].any()
    assert value[:, alone].abs().min() > 0


@WAYS
def test_in_a_complete_network_of_equal_models_everyone_gains_alike(way):
    network = small(mixing=torch.full((NODES, NODES), 1 / NODES, dtype=torch.float64), init="shared")
    hops = way(network, list(simulate(network, 2)), evaluate_on(network)).value
    torch.testing.assert_close(hops[1], hops[1][:, :1].expand(-1, NODES), **CLOSE)
    assert hops[1].abs().min() > 0


@WAYS
def test_only_the_light_cone_is_touched(way):
    network = small(nodes=5, q=[0.2] * 5, mixing=chain(5), optimizer="adam", lr=0.05)
    rounds = window(network, 3)
    value = way(network, rounds, evaluate_on(network)).value
    reached = torch.eye(5, dtype=torch.float64)
    for hop in range(4):
        reached = reached if hop == 0 else rounds[hop - 1].W @ reached
        assert torch.equal(value[hop] != 0, (reached.T != 0)), hop


def chain(nodes):
    """Everyone hears the one before it, and nobody hears the last."""
    W = torch.eye(nodes, dtype=torch.float64) + torch.eye(nodes, dtype=torch.float64).roll(1, 0)
    W[0, -1] = 0
    return W / W.sum(1, keepdim=True)


@settings(max_examples=6)
@given(order=st.permutations(range(NODES)), seed=st.integers(0, 50))
def test_renaming_participants_renames_the_cascade(order, seed):
    order, draw = torch.tensor(order), torch.Generator().manual_seed(seed)
    W, q = directed(seed), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    batches = torch.randint(48, (2, NODES, 1, 4), generator=draw)
    theta = 0.5 * torch.randn(NODES, 43, generator=draw, dtype=torch.float64)

    def cascades(who):
        network = small(mixing=W[who][:, who], q=q[who], batches=batches[:, who], init=theta[who], optimizer="momentum")
        rounds = list(simulate(network, 2))
        swept = by_participant(rounds[0], reverse_gossip(network, rounds, evaluate_on(network)))
        return [way(network, rounds, evaluate_on(network)).value for way in (truth, first_order)], swept

    (plain, total), (renamed, renamed_total) = cascades(torch.arange(NODES)), cascades(order)
    torch.testing.assert_close(renamed_total, total[order], **CLOSE)
    for one, other in zip(plain, renamed, strict=True):
        torch.testing.assert_close(other, one[:, order][:, :, order], **CLOSE)


def test_one_participant_is_tracin():
    """Alone and to first order, the update's effect is −η ∇L(z')ᵀ ∇ℓ(z); one hop adds it at the parameters after."""
    network = small(data=data(), mixing=torch.ones(1, 1, dtype=torch.float64), q=[1.0])
    rounds = window(network, 1)
    test, first = network.data.test, rounds[0]
    slope = grad(lambda theta: loss_of(network, *batch_of(network, first, 0), theta))(first.before.theta[0])
    found = first_order(network, rounds, evaluate_on(network)).value[:, 0, 0]
    for value, theta in zip(found, (first.before.theta[0], first.after.theta[0]), strict=True):
        judged = grad(lambda at: loss_of(network, test.x, test.y, at))(theta)
        torch.testing.assert_close(value, -network.lr(0) * judged @ slope, **CLOSE)
