"""Local epochs: within a round, the last batch is smaller, as that of a DataLoader is, and learning rates change."""

from functools import cache, partial

import pytest
import torch
from influence.cases import CLOSE, NODES, changing, small, smooth
from influence.own_loops import Loop, assert_differentiated, batch
from torch import nn

from cascadice.engine import DivergedError, Operator, simulate
from cascadice.engine.weighting import with_weights
from cascadice.influence import evaluate_on, truth, whole_run
from cascadice.influence.checks import check_recording
from cascadice.runs.store import load_round, save_round

pytestmark = pytest.mark.usefixtures("one_thread")

LR = 0.2
EPOCHS = [  # sizes of everybody's batches, step by step, in each round
    [[4, 4, 2], [3, 1], [4, 4], [2]],
    [[1, 4], [], [4, 4], [2]],
]


def trained(loop, recorder=None, part=None, without=None, decay=1.0):
    """The loop after these rounds, `part` of everybody's learning rate, without the work of (round, participant).

    The learning rate of participants 0 and 1 is multiplied by `decay` after each step of an epoch.
    """
    for t, sizes in enumerate(EPOCHS):
        W = changing()(t)
        with nothing() if recorder is None else recorder.round(W) as step:
            for k, own in enumerate(sizes):
                for s, size in enumerate([] if without == (t, k) else own):
                    rate = LR * (decay**s if k < 2 else 1.0) * (1.0 if part is None else part[k])
                    loop.optimizers[k].param_groups[0]["lr"] = rate
                    x, y = (values[:size] for values in batch(loop, k, t + s))
                    step(k, x, y, loop.local(k, x, y))
            loop.gossip(W)
    return loop


class nothing:
    """In place of a recorder's round: nobody watches."""

    def __enter__(self):
        return lambda *_: None

    def __exit__(self, *_):
        return None


def losses(loop):
    """q_k L(θ_k) of everybody, by its own module."""
    test, q = loop.network.data.test, loop.network.q
    with torch.no_grad():
        each = [loop.network.learner.loss(model(test.x), test.y) for model in loop.models]
    return q * torch.stack(each)


@cache
def watched(model=None, decay=1.0, **options):
    loop = Loop(small(model, strategy="loop" if model else "vmap"), lr=LR, **options)
    recorder = loop.recorder(verify=9)
    trained(loop, recorder, decay=decay)
    return recorder


def test_epochs_with_smaller_batches_are_replayed_and_differentiated():
    recorder = watched(momentum=0.9)
    sizes = (recorder.rounds[0].draw.batch >= 0).sum(2)
    assert sizes.tolist() == [[4, 4, 2], [3, 1, 0], [4, 4, 0], [2, 0, 0]]
    assert_differentiated(recorder)
    told = torch.stack([round_.loss for round_ in recorder.rounds])
    torch.testing.assert_close(torch.stack([round_.loss for round_ in simulate(recorder.network, 2)]), told, **CLOSE)


def test_the_truth_is_that_of_the_loop_run_without_the_update():
    recorder = watched()
    true = truth(recorder.network, recorder.rounds, evaluate_on(recorder.network)).value[-1]
    whole = losses(trained(Loop(small(), lr=LR)))
    for k in range(NODES):
        torch.testing.assert_close(true[k], whole - losses(trained(Loop(small(), lr=LR), without=(0, k))), **CLOSE)


def test_learning_rates_may_change_from_step_to_step(tmp_path):
    recorder = watched(decay=0.5, momentum=0.9)
    rates = recorder.rounds[0].draw.lr
    torch.testing.assert_close(rates[:, 1] / rates[:, 0], torch.tensor([0.5, 0.5, 1, 1], dtype=torch.float64))
    assert_differentiated(recorder)
    save_round(tmp_path, recorder.rounds[0])
    assert torch.equal(load_round(tmp_path, 0).draw.lr, rates)
    network, judged, half = recorder.network, evaluate_on(recorder.network), torch.full((NODES,), 0.5)
    ends = whole_run(network, recorder.rounds, judged, at=half, samples=False).value
    loop = trained(Loop(small(), lr=LR, momentum=0.9), part=half.double(), decay=0.5)
    assert ends == pytest.approx(float(losses(loop).sum()), rel=1e-9)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1.0), (0.9, 1.0), (0.0, 0.5)])
def test_the_whole_run_is_a_finite_difference_of_the_loop(momentum, decay):
    recorder, step = watched(momentum=momentum, decay=decay), 1e-5
    scores = whole_run(recorder.network, recorder.rounds, evaluate_on(recorder.network), samples=not momentum)
    for k in (0, 2):
        more = step * torch.eye(NODES, dtype=torch.float64)[k]
        fresh = partial(Loop, small(), lr=LR, momentum=momentum)
        up, down = (losses(trained(fresh(), part=part, decay=decay)).sum() for part in (1 + more, 1 - more))
        torch.testing.assert_close(scores.participants[k], (up - down) / (2 * step), rtol=1e-6, atol=1e-9)
    if not momentum:
        torch.testing.assert_close(scores.samples.sum((0, 2)), scores.participants)
        assert (scores.drawn >= 0).sum(2).tolist() == [[sum(own) for own in sizes] for sizes in EPOCHS]


def test_samples_of_every_batch_have_the_score_of_their_weight():
    recorder, step = watched(), 1e-5
    network, rounds, judged = recorder.network, recorder.rounds, evaluate_on(recorder.network)
    scores = whole_run(network, rounds, judged)
    for k, place in [(0, 9), (1, 2)]:  # in the last and in the first batch of an epoch
        number, ends = int(rounds[0].draw.batch[k].flatten()[place]), []
        for sign in (1, -1):
            weights = torch.ones(len(network.data.train), dtype=torch.float64)
            weights[number] += sign * step
            *_, last = simulate(with_weights(network, samples=weights), 2)
            ends.append(network.q @ Operator(network).losses(judged, last.after, range(NODES)))
        torch.testing.assert_close(scores.samples[0, k, place], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-9)


class Counted(nn.Module):
    """Scales by the number of batches that it has seen, which it keeps in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones((), dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return x * self.seen.sqrt()


def test_dropout_and_buffers_go_on_from_batch_to_batch(tmp_path):
    torch.manual_seed(0)
    recorder = watched(smooth(nn.Dropout(0.5), Counted()))
    assert_differentiated(recorder)
    save_round(tmp_path, recorder.rounds[0])
    check_recording(recorder.network, [load_round(tmp_path, 0)])


def test_a_batch_without_a_loss_is_told_from_divergence():
    recorder = watched.__wrapped__()
    recorder.network.data.train.x[recorder.rounds[0].draw.batch[0, 2, 1]] = torch.nan
    with pytest.raises(DivergedError, match="is there a NaN in the data"):
        list(simulate(recorder.network, 1))
