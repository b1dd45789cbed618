"""What every link carried: against the first-order cascade and against ordinary modules, one link at a time."""

import pytest
import torch
from engine.cases import make
from engine.rows import gradients as slopes
from influence import cases

from cascadice.engine import Behaviour, module_of, simulate
from cascadice.engine.exchange.geometry import inner_products
from cascadice.influence import evaluate_on, first_order, own_data, proximity
from cascadice.influence.proximity import in_turn
from cascadice.influence.readings import proximal

equal = torch.testing.assert_close


def judged(network, size=6):
    return evaluate_on(network, own_data(network, size))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("strategy", ["vmap", "loop"])
def test_influence_is_the_proximal_entry_of_the_cascade(own, strategy):
    network = cases.small(strategy=strategy)
    yardstick = judged(network) if own else evaluate_on(network)
    for done in simulate(network, 3):
        found = proximity(network, done, yardstick)
        equal(found.influence, proximal(first_order(network, [done], yardstick)), **cases.CLOSE)
        assert found.t == done.t


def test_cosine_is_that_of_every_links_gradient_and_update():
    network = cases.small()
    *_, done = simulate(network, 3)
    sets, found = own_data(network, 6), proximity(network, done, judged(network))
    for k in range(network.nodes):
        module = module_of(network, done.after, k)
        loss = network.learner.loss(module(sets[k].x), sets[k].y)
        slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        for j in range(network.nodes):
            cosine = torch.cosine_similarity(slope, done.update[j], dim=0)
            equal(found.cosine[j, k], cosine if done.W[k, j] > 0 else torch.zeros_like(cosine), **cases.CLOSE)


def test_who_sends_no_update_has_neither_influence_nor_direction():
    network = cases.small(behaviours=[Behaviour("free-rider", (1,))])
    *_, done = simulate(network, 2)
    found = proximity(network, done, judged(network))
    assert not found.influence[1].any()
    assert not found.cosine[1].any()
    assert found.cosine.isfinite().all()


def test_inner_products_of_single_precision_are_summed_in_double():
    draw = torch.Generator().manual_seed(0)
    u, s = torch.randn(2, 3, 2**16 + 7, generator=draw)
    equal(inner_products(u, s), u.double() @ s.double().T, rtol=1e-12, atol=1e-9)


def test_a_round_of_another_network_is_refused():
    done = next(simulate(make(), 1))
    with pytest.raises(ValueError, match=r"round 0 must belong to this network"):
        proximity(cases.small(), done, judged(cases.small()))


def test_own_data_are_samples_of_ones_own_part_drawn_by_the_seed():
    network = cases.small()
    x, sets = network.data.train.x, own_data(network, 6)
    for part, samples in zip(network.partition, sets, strict=True):
        places = {int((x == row).all(1).nonzero()) for row in samples.x}
        assert len(places) == 6
        assert places <= set(part.tolist())
    assert all(torch.equal(a.x, b.x) for a, b in zip(sets, own_data(network, 6), strict=True))
    assert not torch.equal(sets[0].x, own_data(cases.small(seed=9), 6)[0].x)


@pytest.mark.parametrize("size", [0, 13])
def test_own_data_must_be_there(size):
    with pytest.raises(
        ValueError, match=rf"size must be in 1\.\.12, the fewest samples that a participant holds; found {size}"
    ):
        own_data(cases.small(), size)


def test_own_data_need_a_partition():
    network = cases.small(batches=lambda t: torch.zeros(4, 1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"own_data needs a partition; this network was built from batches alone"):
        own_data(network, 3)


def test_samples_take_turns_until_all_were_seen():
    network = cases.small()
    whole = judged(network, 10)
    turns = [in_turn(whole, t, 4) for t in range(5)]
    places = [[int((whole.x[0] == row).all(1).nonzero()) for row in turn.x[0]] for turn in turns]
    assert places == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    assert all(torch.equal(whole.y[:, place], turn.y) for place, turn in zip(places, turns, strict=True))
    assert in_turn(whole, 3, 10) is whole


def test_turns_average_to_the_whole():
    network = cases.small()
    theta, nodes = network.initial.theta, range(network.nodes)
    whole = judged(network, 12)
    means = torch.stack([slopes(network, in_turn(whole, t, 4), theta, {}, nodes)[1] for t in range(3)]).mean(0)
    equal(means, slopes(network, whole, theta, {}, nodes)[1], **cases.CLOSE)


def test_turns_need_samples_of_ones_own():
    with pytest.raises(ValueError, match=r"samples of each participant; found one set for all"):
        in_turn(evaluate_on(cases.small()), 0, 3)


@pytest.mark.parametrize("size", [0, 7])
def test_a_turn_is_no_more_than_the_judge_has(size):
    with pytest.raises(ValueError, match=rf"size must be in 1\.\.6, the samples of the evaluation; found {size}"):
        in_turn(judged(cases.small()), 0, size)
