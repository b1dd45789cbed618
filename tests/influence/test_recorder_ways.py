"""Loops of other kinds: optimizers, parameter groups, uneven work, dropout, mixed precision, dictionaries."""

import pytest
import torch
import torch.nn.functional as F
from influence.cases import FEATURES, NODES, changing, data, small, smooth
from influence.own_loops import Loop, assert_differentiated, batch, moved
from torch import nn

import cascadice as cd
from cascadice import Recorder
from cascadice.engine import Operator, simulate
from cascadice.engine.torch_optim import OTHERS
from cascadice.influence import by_participant, by_sample, evaluate_on, first_order, reverse_gossip, truth, whole_run
from cascadice.influence.weighted_run import WeightedRun
from cascadice.influence.whole_run import sweep
from cascadice.influence.whole_run_shares import whole_run_shares
from cascadice.runs.forecast import state_of
from cascadice.runs.store import load_round, save_round
from cascadice.runs.sweeps import SavedSweep, open_sweep

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_torchs_own_steps_are_replayed_and_differentiated(kind):
    assert_differentiated(Loop(small(), kind, lr=0.02).run(2, verify=2))


@pytest.mark.parametrize("kind", [*OTHERS, torch.optim.Adam], ids=lambda kind: kind.__name__)
def test_a_parameter_that_never_had_a_gradient_has_derivatives(kind):
    loop = Loop(small(), kind, lr=0.02)
    recorder, W = loop.recorder(verify=2), changing()(0)
    for t in range(2):
        with recorder.round(W) as step:
            for k in range(NODES):
                x, y = batch(loop, k, t)
                x = x.clone()
                x[..., 0] = 0  # as a pixel at the border of every image is
                step(k, x, y, loop.local(k, x, y))
            loop.gossip(W)
    network, rounds, judged = recorder.network, recorder.rounds, evaluate_on(recorder.network)
    swept = by_participant(rounds[0], reverse_gossip(network, rounds, judged))
    torch.testing.assert_close(swept, first_order(network, rounds, judged).total, rtol=1e-5, atol=1e-12)
    assert whole_run(network, rounds, judged).by_round.isfinite().all()


def test_a_derivative_that_is_no_number_is_refused():
    rough = cd.optimizers.Optimizer(
        init=lambda theta: {},
        update=lambda gradient, state, theta, lr: (-lr[..., None] * (gradient + (0 * gradient).sqrt()), state),
    )
    network = small(optimizer=rough, lr=0.1)
    with pytest.raises(cd.DivergedError, match=r"participant 0 has an influence .* in round 1\..* square root of 0"):
        whole_run(network, 3, evaluate_on(network))


@pytest.mark.parametrize("kind", ["first-order", "path-integrated", "shares"])
def test_rounds_without_a_derivative_are_not_left_out(kind):
    """A sample at which the model has no second derivative; its rounds were dropped, and changed the verdicts."""
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[7] = 0

    class Rough(torch.nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).abs().pow(1.5))

    model = Rough(torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 3))
    data = cd.data.from_tensors(x, y, x[8:30], y[8:30])
    network = cd.network(model, data, nodes=3, mixing="ring", batch_size=5, seed=1, lr=0.05)
    rounds = list(cd.simulate(network, 8))
    assert all(bool(one.loss.isfinite().all()) for one in rounds)
    with pytest.raises(cd.DivergedError, match=r"participant \d has an influence that became NaN or infinite in round"):
        cd.score(network, rounds, hops=2, kind=kind)


GROUPS = {
    "sgd": (torch.optim.SGD, {}, {"weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}, {"lr": 0.01, "momentum": 0.0}),
    "adamw": (torch.optim.AdamW, {}, {"lr": 0.002, "weight_decay": 0.0}),
    "rmsprop": (torch.optim.RMSprop, {}, {"lr": 0.001, "alpha": 0.9}),
}


@pytest.mark.parametrize(("kind", "options", "of_biases"), GROUPS.values(), ids=GROUPS)
def test_parameter_groups_step_as_they_do_in_torch(kind, options, of_biases):
    loop = Loop(small(), lr=0.1)
    for k, model in enumerate(loop.models):
        weights, biases = [model[0].weight, model[-1].weight], [model[0].bias, model[-1].bias]
        loop.optimizers[k] = kind([{"params": biases, **of_biases}, {"params": weights}], lr=0.02, **options)
    recorder = loop.run(2, verify=2)
    assert_differentiated(recorder)
    network, rounds = recorder.network, recorder.rounds
    assert state_of(network.learner.optimizer) == len(
        [1 for value in rounds[0].before.state.values() if value.dim() > 1]
    )
    if kind is torch.optim.SGD:  # at other weights, too: the step of every group is proportional to its rate
        assert whole_run_shares(network, rounds, evaluate_on(network), points=1, samples=False).participants.all()


WORK = [  # sizes of everybody's batches, step by step, in each round
    [[4, 4], [2], [3], [4]],
    [[1], [], [3, 3, 3], [2]],
    [[4], [4], [], []],
]


def test_participants_may_work_as_much_as_they_like_or_sit_a_round_out(tmp_path):
    loop = Loop(small(), lr=0.1, momentum=0.9)
    recorder = loop.recorder(verify=9)
    for t, sizes in enumerate(WORK):
        W = changing()(t)
        with recorder.round(W) as step:
            for k, own in enumerate(sizes):
                for s, size in enumerate(own):
                    x, y = (part[:size] for part in batch(loop, k, t + s))
                    step(k, x, y, loop.local(k, x, y))
            loop.gossip(W)
    network, rounds = recorder.network, recorder.rounds
    assert torch.equal(rounds[2].half.theta[2:], rounds[2].before.theta[2:])
    assert rounds[1].loss.tolist()[1] == 0
    assert_differentiated(recorder)
    judged = evaluate_on(network)
    true = truth(network, rounds[1:], judged)
    assert true.value[:, 1].abs().max() == 0  # who did nothing did nothing
    adjoint = reverse_gossip(network, rounds[1:], judged)
    torch.testing.assert_close(by_participant(rounds[1], adjoint), true.total, rtol=0.2, atol=1e-3)
    scores = by_sample(network, rounds[1], adjoint).view(NODES, 3, 3)
    assert (scores != 0).sum((1, 2)).tolist() == [1, 0, 9, 2]
    whole = whole_run(network, rounds, judged)
    assert (whole.drawn >= 0).sum(2).tolist() == [[sum(own) for own in sizes] for sizes in WORK]
    torch.testing.assert_close(whole.samples.sum((0, 2)), whole.participants)
    scores = SavedSweep(tmp_path / "at-1.0.safetensors", torch.device("cpu"))
    for each in sweep(WeightedRun(network, rounds, judged)):
        scores.add(each)
    scores.save()
    again = open_sweep(tmp_path, 1.0, torch.device("cpu")).result()
    assert torch.equal(again.drawn, whole.drawn)


def test_a_window_forgets_no_more_than_the_samples_of_uneven_rounds():
    """Padding has no sample: it must not be forgotten, and its place not be used again."""
    loop = Loop(small(), lr=0.1)
    recorder = loop.recorder(window=1, verify=9)
    for t, sizes in enumerate([[4, 1, 2, 3], [4, 4, 4, 4], [1, 4, 4, 4]]):
        with recorder.round(torch.eye(NODES)) as step:
            given = [tuple(part[:size] for part in batch(loop, k, t)) for k, size in enumerate(sizes)]
            for k, (x, y) in enumerate(given):
                step(k, x, y, loop.local(k, x, y))
        numbers = recorder.rounds[-1].draw.batch
        assert len(set(numbers[numbers >= 0].tolist())) == sum(sizes)
        for k, (x, y) in enumerate(given):
            kept = recorder.network.data.train.take(numbers[k, 0][numbers[k, 0] >= 0])
            assert torch.equal(kept[0], x)
            assert torch.equal(kept[1], y)


def test_dropout_is_drawn_again_as_the_loop_drew_it():
    torch.manual_seed(0)
    loop = Loop(small(smooth(nn.Dropout(0.5)), strategy="loop", local_steps=2), lr=0.1, momentum=0.9)
    recorder = loop.run(3, verify=3)
    assert_differentiated(recorder)
    first, second = recorder.rounds[0].draw.generators[1]
    assert not torch.equal(first[0], second[0])


def test_mixed_precision_is_replayed_where_told():
    network = small(dtype="float32")
    loop, cast = Loop(network, lr=0.1), torch.autocast("cpu", torch.bfloat16)
    plain = loop.local
    loop.local = lambda *arguments: cast(plain)(*arguments)
    recorder = loop.run(3, verify=3, amp=torch.bfloat16)
    rounds, judged = recorder.rounds[1:], evaluate_on(recorder.network)
    scores = by_participant(rounds[0], reverse_gossip(recorder.network, rounds, judged))
    torch.testing.assert_close(scores, first_order(recorder.network, rounds, judged).total, rtol=0.02, atol=1e-4)
    again = Operator(recorder.network).replay(rounds[0], moved(recorder.network, rounds[0], 0))
    assert again.theta.abs().max() == 0  # not nearly: in the very same precision


class Adapted(nn.Module):
    """Takes names and gives a dictionary, as models of other libraries do; only its last layer is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body, self.head = nn.Linear(FEATURES, 5), nn.Linear(5, 3)
        self.body.requires_grad_(False)
        self.double()

    def forward(self, features, scale):
        return {"logits": self.head(torch.tanh(self.body(features * scale[:, None])))}


def test_dictionaries_and_frozen_layers():
    models, x, y = [Adapted() for _ in range(NODES)], data().train.x, data().train.y
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.3) for model in models]
    recorder = Recorder(models, optimizers, F.cross_entropy, verify=3)
    for t in range(3):
        W = changing()(t)
        with recorder.round(W) as step:
            for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                rows = torch.arange(4) + 4 * (k + t)
                inputs = {"features": x[rows], "scale": torch.linspace(0.5, 2, 4, dtype=torch.float64)}
                optimizer.zero_grad()
                loss = F.cross_entropy(model(**inputs)["logits"], y[rows])
                loss.backward()
                optimizer.step()
                step(k, inputs, y[rows], loss)
            with torch.no_grad():
                for name in ("weight", "bias"):
                    same = torch.stack([getattr(model.head, name) for model in models])
                    for model, value in zip(models, torch.einsum("kj,j...->k...", W, same), strict=True):
                        getattr(model.head, name).copy_(value)
    network = recorder.network
    assert network.learner.size == 5 * 3 + 3
    judged = evaluate_on(network, network.data.train)
    rounds = recorder.rounds[1:]
    scores = by_participant(rounds[0], reverse_gossip(network, rounds, judged))
    torch.testing.assert_close(scores, truth(network, rounds, judged).total, rtol=0.2, atol=1e-3)


def test_watched_dropout_survives_on_disk(tmp_path):
    loop = Loop(small(smooth(nn.Dropout(0.5)), strategy="loop"), lr=0.1)
    recorder = loop.recorder()
    with recorder.round(torch.eye(NODES)) as step:
        for k in (0, 2, 2):
            x, y = batch(loop, k)
            step(k, x, y, loop.local(k, x, y))
    save_round(tmp_path, recorder.rounds[0])
    read = load_round(tmp_path, 0)
    assert [len(steps) for steps in read.draw.generators] == [1, 0, 2, 0]
    again = Operator(recorder.network).apply(read.draw, read.before)
    torch.testing.assert_close(again.half.theta, read.half.theta)


class Scaled(Loop):
    """As users of float16 train: the loss is scaled, and steps whose gradients are infinite are skipped."""

    def __init__(self, network, optimizer=torch.optim.SGD, scale=2.0**10, **options):
        super().__init__(network, optimizer, **options)
        self.scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for _ in self.models]

    def local(self, k, x, y):
        model, optimizer, scaler = self.models[k], self.optimizers[k], self.scalers[k]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = self.network.learner.loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_loss_in_half_precision_is_as_good_as_one_that_is_not(fused):
    network = small(dtype="float32")
    scaled = Scaled(network, lr=0.1, fused=fused).run(3, verify=3, amp=torch.float16)
    usual = Loop(network, lr=0.1).run(3, verify=3)
    torch.testing.assert_close(scaled.rounds[-1].after.theta, usual.rounds[-1].after.theta, rtol=0, atol=2e-3)
    scores, wanted = (
        by_participant(one.rounds[1], reverse_gossip(one.network, one.rounds[1:], evaluate_on(one.network)))
        for one in (scaled, usual)
    )
    torch.testing.assert_close(scores, wanted, rtol=0.05, atol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
def test_who_skips_a_step_because_of_infinite_gradients_sits_it_out(fused):
    """At first everybody's gradients are infinite, in the end those of participant 1; a scale is halved each time."""
    loop = Scaled(small(dtype="float32"), lr=0.1, fused=fused)
    scales = [2.0 ** (40 if k == 1 else 20) for k in range(NODES)]  # float16 ends at 2**16
    loop.scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in scales]
    recorder = loop.run(8, verify=8, amp=torch.float16)
    rounds = recorder.rounds
    moved_in = [(round_.half.theta != round_.before.theta).any(1).tolist() for round_ in rounds]
    assert not any(moved_in[0])
    assert moved_in[-1] == [k != 1 for k in range(NODES)]
    trained = [(round_.draw.batch >= 0).flatten(1).any(1).tolist() for round_ in rounds]
    assert trained == moved_in
    judged = evaluate_on(recorder.network)
    assert truth(recorder.network, rounds[-2:], judged).value[:, 1].abs().max() == 0
    whole = whole_run(recorder.network, rounds, judged, samples=False)
    assert whole.participants[1] == 0
    assert (whole.participants[[0, 2]] != 0).all()


OPTIMIZERS = (
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
    lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.RMSprop([{"params": [p], "lr": 0.01 / (i + 1)} for i, p in enumerate(parameters)]),
)


def with_own_optimizers(network):
    loop = Loop(network, lr=0.1)
    pairs = zip(OPTIMIZERS, loop.models, strict=True)
    loop.optimizers = [make([*model.parameters()]) for make, model in pairs]
    return loop


@pytest.mark.parametrize("clip", [None, 0.05])
def test_participants_may_have_optimizers_of_their_own(clip):
    loop = with_own_optimizers(small())
    loop.clip = clip
    recorder = loop.run(3, verify=3)
    assert len(recorder.network.groups) == NODES
    assert_differentiated(recorder)


def test_own_optimizers_are_those_of_the_engine():
    ways = [cd.optimizers.sgd(weight_decay=0.1), "adam", cd.optimizers.momentum(0.9), "sgd"]
    network = small(optimizer=ways, lr=[0.1, 0.02, 0.1, 0.3], local_steps=[1, 2, 1, 1])
    loop = with_own_optimizers(network)
    loop.optimizers[3] = torch.optim.SGD(loop.models[3].parameters(), lr=0.3)
    recorder, rounds = loop.recorder(verify=3), list(simulate(network, 3))
    for round_ in rounds:
        with recorder.round(round_.W) as step:
            for k, s in ((0, 0), (1, 0), (1, 1), (2, 0), (3, 0)):
                x, y = network.data.train.take(round_.draw.batch[k, s])
                step(k, x, y, loop.local(k, x, y))
            loop.gossip(round_.W)
    watched, judged = (recorder.network, recorder.rounds), evaluate_on(network)
    for estimate in (truth, first_order):
        ours, theirs = estimate(network, rounds, judged).value, estimate(*watched, evaluate_on(recorder.network)).value
        torch.testing.assert_close(theirs, ours, rtol=1e-7, atol=1e-12)
    ours, theirs = whole_run(network, rounds, judged), whole_run(*watched, evaluate_on(recorder.network))
    torch.testing.assert_close(theirs.by_round, ours.by_round, rtol=1e-7, atol=1e-12)
