"""A hand-written loop, watched, gives the rounds that the engine would have made, hence the same influence."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small, smooth
from influence.own_loops import Loop, batch, plain
from torch import nn
from torch.utils._pytree import tree_flatten

from cascadice import topology
from cascadice.data import Samples
from cascadice.engine import draw, load, simulate
from cascadice.influence import by_sample, evaluate_on, first_order, path_integrated, reverse_gossip, shares, truth
from cascadice.influence.retraining import leave_one_out

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
ROUNDS = 5


def same(one, other, **close):
    pairs = zip(tree_flatten(tuple(one))[0], tree_flatten(tuple(other))[0], strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, **(close or EXACT))


OPTIMIZERS = {
    "sgd": ({"lr": 0.3}, torch.optim.SGD, {"lr": 0.3}),
    "momentum": (
        {"optimizer": "momentum", "lr": 0.1},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9},
    ),
    "nesterov": ({"optimizer": "nesterov", "lr": 0.1}, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": ({"optimizer": "adam", "lr": 0.05}, torch.optim.Adam, {"lr": 0.05}),
    "adamw": ({"optimizer": "adamw", "lr": 0.05}, torch.optim.AdamW, {"lr": 0.05}),
    "local steps": ({"optimizer": "adam", "lr": 0.05, "local_steps": 3}, torch.optim.Adam, {"lr": 0.05}),
    "batch norm": ({"model": smooth(nn.BatchNorm1d(4)), "lr": 0.1}, torch.optim.SGD, {"lr": 0.1}),
}


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "running"])
@pytest.mark.parametrize(("ours", "kind", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_rounds_are_those_of_the_engine(ours, kind, options, numbered):
    network = small(**ours)
    recorder = Loop(network, kind, **options).run(numbered=numbered, verify=2)
    found, expected = recorder.rounds, list(simulate(network, ROUNDS))
    assert [done.t for done in found] == list(range(ROUNDS))
    for done, ours in zip(found, expected, strict=True):
        if numbered:
            assert torch.equal(done.draw.batch, ours.draw.batch)
        same(load(recorder.network, done.draw), load(network, ours.draw))
        assert torch.equal(done.W, ours.W)
        assert done.draw.lr == ours.draw.lr
        same(done[1:5], ours[1:5])


def test_influence_is_that_of_the_engine():
    network = small(optimizer="momentum", lr=0.1)
    recorder = Loop(network, lr=0.1, momentum=0.9).run()
    watched, rounds, expected = recorder.network, recorder.rounds[2:], list(simulate(network, ROUNDS))[2:]
    for kind in (truth, first_order, path_integrated):
        found = kind(watched, rounds, evaluate_on(watched)).value
        torch.testing.assert_close(found, kind(network, expected, evaluate_on(network)).value, **CLOSE)
        assert found.abs().min(0).values.max() > 1e-6
    torch.testing.assert_close(
        shares(watched, rounds, evaluate_on(watched)), shares(network, expected, evaluate_on(network)), **CLOSE
    )
    scores = [
        by_sample(net, its[0], reverse_gossip(net, its, evaluate_on(net)))
        for net, its in ((watched, rounds), (network, expected))
    ]
    torch.testing.assert_close(*scores, **CLOSE)
    assert scores[0].std(1).min() > 1e-7


def test_schedulers_of_the_learning_rate_are_followed():
    network = small(lr=lambda t: 0.3 * 0.5**t)
    loop = Loop(network, lr=0.3)
    recorder = loop.recorder(verify=ROUNDS)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in loop.optimizers]
    for t in range(ROUNDS):
        loop.round(recorder, t)
        for scheduler in schedulers:
            scheduler.step()
    for done, ours in zip(recorder.rounds, simulate(network, ROUNDS), strict=True):
        assert done.draw.lr == pytest.approx(ours.draw.lr, rel=1e-12)
        same(done[1:5], ours[1:5])


def test_the_learning_rate_is_the_one_stepped_with_whatever_follows():
    loop = Loop(small(), lr=0.3)
    recorder = loop.recorder(verify=3)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in loop.optimizers]
    plain = loop.local

    def stepped_at_once(k, x, y):
        loss = plain(k, x, y)
        schedulers[k].step()
        return loss

    loop.local = stepped_at_once
    for t in range(3):
        loop.round(recorder, t)
    assert [done.draw.lr for done in recorder.rounds] == [0.3, 0.15, 0.075]


def test_participants_may_have_rates_of_their_own():
    rates = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    network = small(lr=lambda t: rates)
    loop = Loop(network, lr=0.1)
    for optimizer, rate in zip(loop.optimizers, rates.tolist(), strict=True):
        optimizer.param_groups[0]["lr"] = torch.tensor(rate, dtype=torch.float64)
    found, expected = loop.run(verify=1).rounds, list(simulate(network, ROUNDS))
    torch.testing.assert_close(found[0].draw.lr, rates, **EXACT)
    same(found[-1][1:5], expected[-1][1:5])


def test_clipping_is_replayed_where_told():
    loop = Loop(small(), clip=0.05, lr=0.3)
    watched = loop.run(verify=ROUNDS)
    found = truth(watched.network, watched.rounds[1:3], evaluate_on(watched.network))
    assert found.value.abs().max() > 1e-6


def test_a_loop_can_be_joined_on_its_way():
    network = small(optimizer="adam", lr=0.05)
    loop = Loop(network, torch.optim.Adam, lr=0.05)
    expected = list(simulate(network, ROUNDS))
    first = loop.run(2)
    recorder = loop.recorder()
    for t in range(2, ROUNDS):
        loop.round(recorder, t)
    assert [done.t for done in recorder.rounds] == [0, 1, 2]
    for done, ours in zip((*first.rounds, *recorder.rounds), expected, strict=True):
        same(done[1:5], ours[1:5])
    same(recorder.network.initial, expected[2].before)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_window_keeps_its_rounds_and_their_batches_only(numbered):
    network = small()
    loop, expected = Loop(network, lr=0.3), list(simulate(network, 9))
    recorder = loop.recorder(window=3)
    for t in range(9):
        loop.round(recorder, t, numbered)
        kept = recorder.rounds
        assert [done.t for done in kept] == list(range(max(0, t - 2), t + 1))
        for done in kept:
            same(load(recorder.network, done.draw), load(network, expected[done.t].draw))
    assert len(recorder.network.data.train) <= (48 if numbered else 4 * NODES * 4)
    found = truth(recorder.network, recorder.rounds, evaluate_on(recorder.network)).value
    torch.testing.assert_close(found, truth(network, expected[6:], evaluate_on(network)).value, **CLOSE)


def test_batches_may_shrink_from_round_to_round():
    loop = Loop(small(), lr=0.3)
    recorder = loop.recorder(window=2, verify=9)
    inputs = [load(loop.network, draw(loop.network, t)) for t in range(6)]
    for t, size in enumerate((4, 2, 3, 4, 1, 4)):
        with recorder.round(torch.eye(NODES)) as step:
            for k in range(NODES):
                x, y = inputs[t].x[k, 0, :size], inputs[t].y[k, 0, :size]
                step(k, x, y, loop.local(k, x, y))
        seen = load(recorder.network, recorder.rounds[-1].draw)
        assert torch.equal(seen.x, inputs[t].x[:, :, :size])
        assert torch.equal(seen.y, inputs[t].y[:, :, :size])


def test_the_recorder_leaves_the_loop_as_it_was():
    watched, alone = Loop(small(), lr=0.3, momentum=0.9), Loop(small(), lr=0.3, momentum=0.9)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    watched.run(3)
    assert torch.equal(torch.get_rng_state(), state)
    for t in range(3):
        inputs = load(alone.network, draw(alone.network, t))
        for k in range(NODES):
            alone.local(k, inputs.x[k, 0], inputs.y[k, 0])
        alone.gossip(alone.network.mixing(t))
    for one, other in zip(watched.models, alone.models, strict=True):
        same(one.parameters(), other.parameters(), rtol=0, atol=0)
    assert not any(optimizer._optimizer_step_pre_hooks for optimizer in watched.optimizers)


def test_losses_are_told_or_computed_again_or_unknown():
    network = small()
    loop, expected = Loop(network, lr=0.3), list(simulate(network, 2))
    recorder = loop.recorder(verify=1)
    for t in range(2):
        drawn = draw(network, t)
        inputs = load(network, drawn)
        with recorder.round(drawn.W) as step:
            for k in range(NODES):
                loop.local(k, inputs.x[k, 0], inputs.y[k, 0])
                step(k, inputs.x[k, 0], inputs.y[k, 0])
            loop.gossip(drawn.W)
    torch.testing.assert_close(recorder.rounds[0].loss, expected[0].loss, **EXACT)
    assert recorder.rounds[1].loss.isnan().all()


def test_the_watched_network_replays_its_rounds_and_no_others():
    recorder = Loop(small(), lr=0.3).run(4, window=2)
    kept = recorder.rounds
    again = list(simulate(recorder.network, 4, start=2, participants=kept[0].before))
    same(again[-1][1:5], kept[-1][1:5])
    with pytest.raises(ValueError, match=r"round 1 is not among those kept, 2 to 3\. Give a larger window"):
        draw(recorder.network, 1)


@pytest.mark.parametrize(("window", "first"), [(None, 0), (2, 2)])
def test_more_rounds_than_were_recorded_cannot_be_trained_again(window, first):
    recorder = Loop(small(), lr=0.3).run(4, window=window)
    evaluation = evaluate_on(recorder.network, small().data.test)
    with pytest.raises(ValueError, match=r"^only 4 rounds were recorded, so there is no round 4\. Record more"):
        list(simulate(recorder.network, 6, start=first, participants=recorder.rounds[0].before))
    asked, missing = (6, "only 4 rounds were recorded") if window is None else (4, "Give a larger window")
    with pytest.raises(ValueError, match=missing):
        leave_one_out(recorder.network, asked, evaluation)


def test_the_test_data_are_the_users():
    loop = plain()
    x, y = batch(loop, 0)
    recorder = loop.run(2, test=Samples(x, y))
    assert torch.equal(evaluate_on(recorder.network).x, x)
    loop = plain()
    recorder = loop.run(2, test=None)
    assert torch.equal(evaluate_on(recorder.network, Samples(x, y)).x, x)
    with pytest.raises(ValueError, match="evaluation"):
        evaluate_on(recorder.network)


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_float32_on_a_graph_with_many_links_is_close_enough(momentum):
    """Rounding of another order of summation must not be taken for another W, or another step."""
    network = small(dtype="float32", mixing=topology.matrix(torch.full((16, 16), 1 / 16)), batch_size=2)
    recorder = Loop(network, lr=0.01, momentum=momentum).run(3, verify=3)
    assert recorder.rounds[-1].half.theta.dtype == torch.float32
