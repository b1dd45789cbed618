"""A hand-written loop, watched, gives the rounds that the engine would have made, hence the same influence."""

import pytest
import torch
import torch.nn.functional as F
from influence.cases import CLOSE, NODES, changing, small, smooth
from torch import nn
from torch.utils._pytree import tree_flatten

from cascadice import topology
from cascadice.data import Samples
from cascadice.engine import DivergedError, draw, load, module_of, simulate
from cascadice.engine.foreign import settings
from cascadice.influence import (
    Recorder,
    by_sample,
    first_order,
    judge,
    path_integrated,
    reverse_gossip,
    shares,
    truth,
)
from cascadice.influence.shelf import Shelf

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 1e-12, "atol": 1e-12}
ROUNDS = 5


class Loop:
    """Somebody's own training: plain modules and optimizers, and gossip over their parameters and buffers."""

    def __init__(self, network, optimizer=torch.optim.SGD, clip=None, **options):
        self.network, self.clip = network, clip
        self.models = [module_of(network, network.initial, k).train() for k in range(network.nodes)]
        self.optimizers = [optimizer(model.parameters(), **options) for model in self.models]

    def recorder(self, **options):
        usual = {"test": self.network.data.test, "q": self.network.q, "clip": self.clip}
        return Recorder(self.models, self.optimizers, self.network.learner.loss, **(usual | options))

    def local(self, k, x, y):
        model, optimizer = self.models[k], self.optimizers[k]
        optimizer.zero_grad()
        loss = self.network.learner.loss(model(x), y)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
        return loss

    @torch.no_grad()
    def gossip(self, W):
        sent = [[v.clone() for v in (*model.parameters(), *model.buffers())] for model in self.models]
        for k, model in enumerate(self.models):
            for place, value in enumerate((*model.parameters(), *model.buffers())):
                if value.is_floating_point():
                    value.copy_(sum(W[k, j] * sent[j][place] for j in range(len(sent))))

    def round(self, recorder, t, numbered=False):
        drawn = draw(self.network, t)
        inputs = load(self.network, drawn)
        with recorder.round(drawn.W) as step:
            for k in range(self.network.nodes):
                for s in range(inputs.x.shape[1]):
                    x, y = inputs.x[k, s], inputs.y[k, s]
                    loss = self.local(k, x, y)
                    step(k, x, y, loss, index=drawn.batch[k, s] if numbered else None)
            self.gossip(drawn.W)

    def run(self, rounds=ROUNDS, numbered=False, **options):
        recorder = self.recorder(**options)
        for t in range(rounds):
            self.round(recorder, t, numbered)
        return recorder


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
            assert torch.equal(done.drawn.batch, ours.drawn.batch)
        same(load(recorder.network, done.drawn), load(network, ours.drawn))
        assert torch.equal(done.W, ours.W)
        assert done.drawn.lr == ours.drawn.lr
        same(done[1:5], ours[1:5])


def test_influence_is_that_of_the_engine():
    network = small(optimizer="momentum", lr=0.1)
    recorder = Loop(network, lr=0.1, momentum=0.9).run()
    watched, rounds, expected = recorder.network, recorder.rounds[2:], list(simulate(network, ROUNDS))[2:]
    for kind in (truth, first_order, path_integrated):
        found = kind(watched, rounds, judge(watched)).value
        torch.testing.assert_close(found, kind(network, expected, judge(network)).value, **CLOSE)
        assert found.abs().min(0).values.max() > 1e-6
    torch.testing.assert_close(
        shares(watched, rounds, judge(watched)), shares(network, expected, judge(network)), **CLOSE
    )
    scores = [
        by_sample(net, its[0], reverse_gossip(net, its, judge(net)))
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
        assert done.drawn.lr == pytest.approx(ours.drawn.lr, rel=1e-12)
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
    assert [done.drawn.lr for done in recorder.rounds] == [0.3, 0.15, 0.075]


def test_participants_may_have_rates_of_their_own():
    rates = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    network = small(lr=lambda t: rates)
    loop = Loop(network, lr=0.1)
    for optimizer, rate in zip(loop.optimizers, rates.tolist(), strict=True):
        optimizer.param_groups[0]["lr"] = torch.tensor(rate, dtype=torch.float64)
    found, expected = loop.run(verify=1).rounds, list(simulate(network, ROUNDS))
    torch.testing.assert_close(found[0].drawn.lr, rates, **EXACT)
    same(found[-1][1:5], expected[-1][1:5])


def test_clipping_is_replayed_where_told():
    loop = Loop(small(), clip=0.05, lr=0.3)
    watched = loop.run(verify=ROUNDS)
    found = truth(watched.network, watched.rounds[1:3], judge(watched.network))
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
            same(load(recorder.network, done.drawn), load(network, expected[done.t].drawn))
    assert len(recorder.network.data.train) <= (48 if numbered else 4 * NODES * 4)
    found = truth(recorder.network, recorder.rounds, judge(recorder.network)).value
    torch.testing.assert_close(found, truth(network, expected[6:], judge(network)).value, **CLOSE)


def test_batches_may_shrink_from_round_to_round():
    loop = Loop(small(), lr=0.3)
    recorder = loop.recorder(window=2, verify=9)
    inputs = [load(loop.network, draw(loop.network, t)) for t in range(6)]
    for t, size in enumerate((4, 2, 3, 4, 1, 4)):
        with recorder.round(torch.eye(NODES)) as step:
            for k in range(NODES):
                x, y = inputs[t].x[k, 0, :size], inputs[t].y[k, 0, :size]
                step(k, x, y, loop.local(k, x, y))
        seen = load(recorder.network, recorder.rounds[-1].drawn)
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


# What cannot be watched


def plain(kind=torch.optim.SGD, **options):
    return Loop(small(), kind, **({"lr": 0.3} | options))


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (torch.optim.RMSprop, {}, TypeError, r"SGD, torch.optim.Adam, torch.optim.AdamW, .*; found RMSprop\.$"),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, ValueError, "SGD with dampening is not known"),
        (torch.optim.Adam, {"amsgrad": True}, ValueError, "Adam with amsgrad is not known here; leave amsgrad out"),
        (torch.optim.AdamW, {"maximize": True}, ValueError, "AdamW with maximize"),
        (torch.optim.Adam, {"decoupled_weight_decay": True}, ValueError, "Adam with decoupled_weight_decay"),
    ],
)
def test_refuses_optimizers_it_cannot_replay(kind, options, error, message):
    with pytest.raises(error, match=message):
        plain(kind, **options).recorder()


def test_refuses_parameter_groups_that_differ():
    model = smooth()
    first, *rest = model.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.3)
    with pytest.raises(ValueError, match=r"the same settings; found lr=0\.1, .* and lr=0\.3, "):
        settings(optimizer)


def test_refuses_participants_that_are_not_alike():
    loop = plain()
    models, optimizers = loop.models, loop.optimizers

    def watch(models, optimizers):
        Recorder(models, optimizers, F.cross_entropy)

    with pytest.raises(ValueError, match=r"a model and an optimizer; found 4 models and 3 optimizers"):
        watch(models, optimizers[:3])
    with pytest.raises(ValueError, match=r"found 0 models"):
        watch([], [])
    wider = smooth(width=5).double()
    with pytest.raises(ValueError, match=r"all models must be alike, .*; 1 is not like 0"):
        watch([models[0], wider], [optimizers[0], torch.optim.SGD(wider.parameters(), lr=0.3)])
    with pytest.raises(
        ValueError, match=r"all optimizers must be alike, .*; 0 has SGD with .*, 1 SGD with .*momentum=0\.9"
    ):
        watch(models[:2], [optimizers[0], torch.optim.SGD(models[1].parameters(), lr=0.3, momentum=0.9)])
    with pytest.raises(ValueError, match="optimizer 1 must step all parameters of model 1, and no others"):
        watch(models[:2], [optimizers[0], optimizers[2]])
    with pytest.raises(ValueError, match="parameters of its own; 0 and 1 share theirs"):
        watch([models[0]] * 2, [optimizers[0]] * 2)


def test_refuses_a_window_without_rounds_and_weights_that_do_not_fit():
    with pytest.raises(ValueError, match="window must be at least 1 round, or None for all; found 0"):
        plain().recorder(window=0)
    with pytest.raises(ValueError, match="q must be 4 weights"):
        plain().recorder(q=[0.5, 0.5])


def test_there_is_no_network_before_the_first_round():
    with pytest.raises(ValueError, match="no round has been watched yet"):
        _ = plain().recorder().network


def batch(loop, k, t=0):
    inputs = load(loop.network, draw(loop.network, t))
    return inputs.x[k, 0], inputs.y[k, 0]


def one_round(loop, recorder, W=None, *, told=None, local=None, gossip=True, loss=True):
    """A round on the identity, in which something may go otherwise."""
    W = torch.eye(NODES, dtype=torch.float64) if W is None else W
    with recorder.round(W) as step:
        for k in range(NODES):
            x, y = batch(loop, k)
            value = (local or loop.local)(k, x, y)
            step(k, *((x, y) if told is None else told(x, y)), value if loss else None)
        if gossip:
            loop.gossip(W)


def test_refuses_w_of_others():
    loop = plain()
    with pytest.raises(ValueError, match="W must be for 4 participants; it has 3 rows"):
        one_round(loop, loop.recorder(), torch.eye(3))
    with pytest.raises(ValueError, match="W must have rows summing to 1"):
        one_round(loop, loop.recorder(), torch.ones(NODES, NODES))


def test_says_who_did_not_gossip_as_told_and_by_how_much():
    loop, W = plain(), changing()(0)

    def other(W):
        Loop.gossip(loop, W)
        loop.models[2][0].bias.data += 0.25

    loop.gossip = other
    with pytest.raises(
        ValueError, match=r"after round 0, participant 2 must have Σ_j W\[2, j\] .*theta; it is off by 0\.25"
    ):
        one_round(loop, loop.recorder(), W)


def test_refuses_gossip_outside_the_round():
    loop, W = plain(), changing()(0)
    with pytest.raises(ValueError, match=r"participant 0 must have Σ_j .* inside the `with` block"):
        one_round(loop, loop.recorder(), W, gossip=False)
    loop = plain()
    recorder = loop.recorder()
    one_round(loop, recorder, torch.eye(NODES))
    loop.gossip(W)
    with pytest.raises(ValueError, match=r"participants must not change between rounds, .*start a new recorder"):
        one_round(loop, recorder)


def test_refuses_buffers_and_states_that_do_otherwise():
    loop, W = Loop(small(smooth(nn.BatchNorm1d(4))), lr=0.1), changing()(0)

    @torch.no_grad()
    def parameters_only(W):
        buffers = [[b.clone() for b in model.buffers()] for model in loop.models]
        Loop.gossip(loop, W)
        for model, kept in zip(loop.models, buffers, strict=True):
            for buffer, value in zip(model.buffers(), kept, strict=True):
                buffer.copy_(value)

    loop.gossip = parameters_only
    with pytest.raises(ValueError, match=r"must have Σ_j W\[0, j\] of everybody's 2\.running_mean"):
        one_round(loop, loop.recorder(), W)

    loop = plain(momentum=0.9)

    def with_momentum(W):
        Loop.gossip(loop, W)
        for optimizer in loop.optimizers[1:2]:
            for state in optimizer.state.values():
                state["momentum_buffer"] *= 0.5

    loop.gossip = with_momentum
    with pytest.raises(ValueError, match="participant 1 must keep the momentum of its optimizer"):
        one_round(loop, loop.recorder(), W)


def test_refuses_steps_it_cannot_make_again():
    loop = plain()
    with pytest.raises(
        ValueError, match=r"local work of participant 0, done again, .*Its loss was .* and is .* now: give"
    ):
        one_round(loop, Recorder(loop.models, loop.optimizers, lambda out, y: 2 * F.cross_entropy(out, y)))
    loop = plain()
    with pytest.raises(ValueError, match=r"Its loss was .* the batch it trained on"):
        one_round(loop, loop.recorder(), told=lambda x, y: (x + 0.5, y))
    for kind in (torch.optim.SGD, torch.optim.Adam):
        loop = Loop(small(), kind, clip=0.05, lr=0.3)
        with pytest.raises(ValueError, match=r"Tell of clipped gradients by clip="):
            one_round(loop, loop.recorder(clip=None))
    loop = plain()
    with pytest.raises(ValueError, match=r"Tell of clipped gradients by clip="):
        one_round(loop, loop.recorder(), told=lambda x, y: (x + 0.5, y), loss=False)


def test_refuses_models_that_draw_at_random():
    loop = Loop(small(smooth(nn.Dropout(0.5)), strategy="loop"), lr=0.3)
    with pytest.raises(ValueError, match=r"draws at random \(dropout\) cannot be watched"):
        one_round(loop, loop.recorder())


def test_refuses_a_loss_that_is_not_scalar():
    loop = plain()
    recorder = Recorder(loop.models, loop.optimizers, lambda out, y: F.cross_entropy(out, y, reduction="none"))
    with pytest.raises(ValueError, match="the loss must be a scalar"):
        one_round(loop, recorder)


def test_says_who_diverged():
    loop = plain()

    def explode(k, x, y):
        loss = loop.__class__.local(loop, k, x, y)
        if k == 3:
            loop.models[3][0].bias.data[0] = torch.nan
        return loss

    with pytest.raises(DivergedError, match="participant 3 became NaN or infinite in round 0"):
        one_round(loop, loop.recorder(), local=explode)


@pytest.mark.parametrize(
    ("node", "stepped", "told", "message"),
    [
        (4, 0, 1, r"numbered from 0 to 3; found 4\.$"),
        (1, 0, 1, r"step\(1, x, y\) must follow each optimizer.step\(\) of 1; there were 0 since"),
        (1, 1, 2, r"there were 0 since"),
        (1, 2, 1, r"there were 2 since"),
        (1, 1, 0, r"of 1; its last one was not told"),
        (1, 1, 1, r"as many local steps, at least one; found \[0, 1, 0, 0\]"),
    ],
)
def test_every_step_is_told_once_after_it_was_made(node, stepped, told, message):
    loop = plain()
    x, y = batch(loop, 0)

    def train():
        with loop.recorder().round(torch.eye(NODES)) as step:
            for _ in range(stepped):
                loop.local(node, x, y)
            for _ in range(told):
                step(node, x, y)

    with pytest.raises(ValueError, match=message):
        train()


def test_refuses_batches_and_rates_that_differ_within_a_round():
    loop = plain()

    def train(sizes, rates):
        with loop.recorder().round(torch.eye(NODES)) as step:
            for rate in rates:
                loop.optimizers[2].param_groups[0]["lr"] = rate
                for k, size in enumerate(sizes):
                    x, y = (part[:size] for part in batch(loop, k))
                    step(k, x, y, loop.local(k, x, y))

    train([4, 4, 4, 4], [0.3, 0.3])
    with pytest.raises(ValueError, match=r"one size; found \[2, 4\]"):
        train([4, 2, 4, 4], [0.3])
    with pytest.raises(ValueError, match=r"within a round; participant 2 had \[0\.3, 0\.1\]"):
        train([4, 4, 4, 4], [0.3, 0.1])


def test_refuses_other_settings_on_the_way():
    loop = plain(momentum=0.9)
    recorder = loop.recorder()
    one_round(loop, recorder)
    loop.optimizers[2].param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match=r"only the learning rate may change .*; participant 2 has .*'momentum': 0\.5"):
        one_round(loop, recorder)


X, Y = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y", "index", "error", "message"),
    [
        ([1.0], Y, None, TypeError, "two tensors, x and y; found list and Tensor"),
        (X[:1], Y, None, ValueError, r"a row for each sample, at least one; found shapes \[1, 3\] and \[2\]"),
        (X[:0], Y[:0], None, ValueError, r"at least one; found shapes \[0, 3\]"),
        (torch.tensor(1.0), Y, None, ValueError, r"found shapes \[\] and \[2\]"),
        (X.byte(), Y, None, TypeError, r"found uint8\. Give x\.float\(\), or x\.long\(\) for tokens"),
        (X[:, :2], Y, None, ValueError, r"keep their shape and dtype; x had \[3\] torch.float32, then \[2\]"),
        (X, Y.int(), None, ValueError, r"y had \[\] torch.int64, then \[\] torch.int32"),
        (X, Y, [3], ValueError, r"index must be 2 whole numbers, .*; found torch.int64 of shape \[1\]"),
        (X, Y, [3, -1], ValueError, r"index must be 2 whole numbers, at least 0"),
        (X, Y, [0.5, 1], ValueError, r"found torch.float32 of shape \[2\]"),
        (X, Y, [7, 8], ValueError, r"either all batches must come with index= or none"),
    ],
)
def test_refuses_batches_that_are_not(x, y, index, error, message):
    shelf = Shelf(torch.device("cpu"))
    shelf.put(X, Y)
    with pytest.raises(error, match=message):
        shelf.put(x, y, index)


@pytest.mark.parametrize("later", [(torch.stack([X[0], X[1] + 1]), Y), (X, Y + torch.tensor([0, 1]))], ids=["x", "y"])
def test_refuses_a_number_that_stands_for_two_samples(later):
    shelf = Shelf(torch.device("cpu"))
    shelf.put(X, Y, [4, 9])
    shelf.put(X, Y, torch.tensor([4, 9]))
    assert len(shelf.samples) == 10
    with pytest.raises(ValueError, match=r"number 9 has changed\. Where samples are augmented, leave index out"):
        shelf.put(*later, [4, 9])
    with pytest.raises(ValueError, match="number 3 has changed"):
        shelf.put(torch.stack([X[0], X[1] + 1]), Y, [3, 3])


def test_the_test_data_are_the_users():
    loop = plain()
    x, y = batch(loop, 0)
    recorder = loop.run(2, test=Samples(x, y))
    assert torch.equal(judge(recorder.network).x, x)
    loop = plain()
    recorder = loop.run(2, test=None)
    assert torch.equal(judge(recorder.network, Samples(x, y)).x, x)
    with pytest.raises(ValueError, match="evaluation"):
        judge(recorder.network)


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_float32_on_a_graph_with_many_links_is_close_enough(momentum):
    """Rounding of another order of summation must not be taken for another W, or another step."""
    network = small(dtype="float32", mixing=topology.matrix(torch.full((16, 16), 1 / 16)), batch_size=2)
    recorder = Loop(network, lr=0.01, momentum=momentum).run(3, verify=3)
    assert recorder.rounds[-1].half.theta.dtype == torch.float32
