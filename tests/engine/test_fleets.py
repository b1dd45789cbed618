"""A fleet is its networks: the same numbers, side by side."""

import doctest
from dataclasses import replace

import pytest
import torch
from engine.cases import equal, last, make
from torch import nn

from cascadice import optimizers, topology
from cascadice.data.corruption import Corruption
from cascadice.engine import Behaviour, fleets, simulate
from cascadice.engine.fleets import blocks, by_network, fleet
from cascadice.influence import evaluate_on, own_data, proximity
from cascadice_experiments import roc

ROUNDS = 4


def networks(**options):
    """Three with seeds, graphs and attackers of their own; none draws at random what it sends."""
    flipping = [(), (Behaviour("sign-flipper", (2,)),), (Behaviour("free-rider", (0, 3), range(1, 3)),)]
    graphs = ["ring", "complete", "exponential"]
    return [
        make(mixing=topology.build(graph, 4), behaviours=list(behaviours), seed=seed, init="own", **options)
        for seed, (graph, behaviours) in enumerate(zip(graphs, flipping, strict=True))
    ]


@pytest.mark.parametrize("optimizer", [optimizers.sgd(), optimizers.build("momentum")])
def test_trains_as_its_networks_do(optimizer):
    apiece = networks(optimizer=optimizer)
    alone = [list(simulate(network, ROUNDS)) for network in apiece]
    for t, together in enumerate(simulate(fleet(apiece), ROUNDS)):
        for i, theta in enumerate(by_network(together.after.theta, 3)):
            torch.testing.assert_close(theta, alone[i][t].after.theta, rtol=1e-12, atol=1e-12)
            assert torch.equal(by_network(together.draw.batch, 3)[i], alone[i][t].draw.batch)
            assert torch.equal(blocks(together.W, 3)[i], alone[i][t].W)


def test_influence_is_that_of_its_networks():
    apiece = networks()
    together = fleet(apiece)
    sets = [samples for network in apiece for samples in own_data(network, 5)]
    for round_, *alone in zip(simulate(together, ROUNDS), *(simulate(n, ROUNDS) for n in apiece), strict=True):
        found = proximity(together, round_, evaluate_on(together, sets))
        for i, (network, own) in enumerate(zip(apiece, alone, strict=True)):
            expected = proximity(network, own, evaluate_on(network, sets[4 * i : 4 * i + 4]))
            for name in ("influence", "cosine"):
                torch.testing.assert_close(
                    blocks(getattr(found, name), 3)[i], getattr(expected, name), rtol=1e-9, atol=1e-12
                )
        between = found.cosine - torch.block_diag(*blocks(found.cosine, 3))
        assert not between.any(), "nobody hears anybody of another network"


def test_attackers_move_with_their_networks():
    bad = [replace(make(), corruptions=(Corruption("noise", (1,), strength=2.0),)) for _ in range(2)]
    assert [c.nodes for c in fleet(bad).corruptions] == [(1,), (5,)]
    assert [b.nodes for b in fleet(networks()).behaviours] == [(6,), (8, 11)]


def test_holds_everybodys_part_and_weight():
    apiece = networks()
    together = fleet(apiece)
    assert together.nodes == 12
    assert len(together.partition) == 12
    assert torch.equal(together.partition[5], apiece[1].partition[1])
    assert torch.equal(together.q, torch.cat([network.q for network in apiece]))
    assert equal(fleet(apiece[:1]).initial, apiece[0].initial)


def test_a_schedule_may_refill_one_buffer():
    buffer, network = torch.eye(4), make()

    def refilled(t):
        buffer.copy_(torch.full((4, 4), 0.25) if t % 2 else torch.eye(4))
        return buffer

    together = fleet([replace(network, mixing=refilled)] * 2)
    for t in (0, 1, 2):
        assert torch.equal(together.mixing(t), torch.block_diag(refilled(t), refilled(t)))


def test_the_same_w_is_the_same_object():
    together = fleet(networks())
    assert together.mixing(0) is together.mixing(1)


def test_attackers_draw_as_in_their_own_network():
    options = {"behaviours": [Behaviour("noise-sender", (2,), strength=0.1)],
               "corruptions": [Corruption("flip-labels", (1,), strength=0.5), Corruption("noise", (3,))]}  # fmt: skip
    apiece = [make(seed=seed, **options) for seed in (1, 2)]
    expected = torch.cat([last(network).after.theta for network in apiece])
    assert torch.equal(last(fleet(apiece)).after.theta, expected)
    assert torch.equal(last(fleet([fleet(apiece), fleet(apiece)])).after.theta, torch.cat([expected, expected]))


def test_rows_and_pairs_by_network():
    pairs = torch.arange(36.0).view(6, 6)
    assert blocks(pairs, 2).tolist() == [pairs[:3, :3].tolist(), pairs[3:, 3:].tolist()]
    assert by_network(pairs[:, 0], 3).tolist() == [[0, 6], [12, 18], [24, 30]]


def test_networks_must_be_of_one_size():
    with pytest.raises(ValueError, match=r"networks must be of one size; found \[4, 6\]"):
        fleet([make(), make(mixing="ring", nodes=6)])


def test_networks_must_work_alike():
    first = make(optimizer="momentum")
    others = {
        "optimizer": make(optimizer=optimizers.momentum(beta=0.5)),
        "loss": replace(first, learner=replace(first.learner, loss=lambda outputs, targets: outputs.sum())),
        "model": replace(first, learner=replace(first.learner, training=nn.Linear(2, 2))),
        "data": replace(first, data=replace(first.data, classes=("a",))),
        "compression": make(optimizer="momentum", compression="top-k"),
    }
    for what, other in others.items():
        with pytest.raises(ValueError, match=f"the same {what}; these differ"):
            fleet([first, other])


def test_a_rule_must_not_mix_networks():
    together = fleet([make(), make()])
    everybody = torch.full((8, 8), 1 / 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="must not hear each other"):
        next(simulate(together, 1, rule=lambda draw, before, half: everybody))


@pytest.mark.parametrize("module", [fleets, roc], ids=lambda module: module.__name__)
def test_examples_print_what_they_say(module):
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0
