"""TracIn among the rivals: dot products of gradients, as loops and captum compute them."""

import pytest
import torch
from influence.cases import NODES, data, small, smooth
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from cascadice.engine import module_of, simulate
from cascadice.influence import evaluate_on
from cascadice_experiments import rivals

ROUNDS = 4
CLOSE = {"rtol": 1e-8, "atol": 1e-12}


@pytest.fixture(scope="module")
def run():
    network = small()
    return network, list(simulate(network, ROUNDS)), evaluate_on(network)


def gradient(network, participants, k, x, y):
    model = module_of(network, participants, k)
    loss = network.learner.loss(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def test_tracin_is_a_dot_product_at_the_own_model(run):
    network, rounds, evaluation = run
    train = network.data.train
    by_update, by_data = torch.zeros(2, NODES, dtype=torch.float64)
    by_sample = torch.zeros(len(train), dtype=torch.float64)
    for round_ in rounds:
        for k in range(NODES):
            own = network.q[k] * gradient(network, round_.before, k, evaluation.x, evaluation.y)
            by_update[k] += own @ round_.update[k]
            part = network.partition[k]
            by_data[k] -= round_.draw.lr * own @ gradient(network, round_.before, k, train.x[part], train.y[part])
            for i in (batch := round_.draw.batch[k, 0]):
                rate = round_.draw.lr / len(batch)
                by_sample[i] -= rate * own @ gradient(network, round_.before, k, train.x[i, None], train.y[i, None])
    assert_close(rivals.tracin(network, rounds, evaluation).scores, by_update, **CLOSE)
    assert_close(rivals.tracin_samples(network, rounds, evaluation).scores, by_sample, **CLOSE)
    assert_close(rivals.tracin_checkpoints(network, rounds, evaluation, every=1).scores, by_data, **CLOSE)
    summed = torch.stack([by_sample[part].sum() for part in network.partition])
    assert_close(by_update, summed, **CLOSE)


def test_checkpoints_stand_for_the_rounds_around_them(run):
    network, rounds, evaluation = run
    each = [rivals.tracin_checkpoints(network, [round_], evaluation, every=1).scores for round_ in rounds]
    found = rivals.tracin_checkpoints(network, rounds, evaluation, every=2)
    assert_close(found.scores, 2 * (each[1] + each[3]), **CLOSE)
    assert found.evaluations == 2 * 2 * 3 * NODES


def test_tracin_of_participants_with_state_and_unequal_data():
    parts = [torch.arange(0, 8), torch.arange(8, 14), torch.arange(14, 30), torch.arange(30, 48)]
    network = small(partition=parts, optimizer="momentum", lr=[0.1, 0.2, 0.1, 0.3], local_steps=2, batch_size=3)
    rounds, evaluation, train = list(simulate(network, 2)), evaluate_on(network), network.data.train
    by_update, by_data = torch.zeros(2, NODES, dtype=torch.float64)
    for round_ in rounds:
        for k, part in enumerate(parts):
            own = network.q[k] * gradient(network, round_.before, k, evaluation.x, evaluation.y)
            by_update[k] += own @ round_.update[k]
            step = gradient(network, round_.before, k, train.x[part], train.y[part])
            by_data[k] -= 2 * round_.draw.lr[k] * own @ step
    assert_close(rivals.tracin(network, rounds, evaluation).scores, by_update, **CLOSE)
    assert_close(rivals.tracin_checkpoints(network, rounds, evaluation, every=1).scores, by_data, **CLOSE)


@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients:UserWarning")
def test_captum(tmp_path):
    influence = pytest.importorskip("captum.influence", reason="captum is not installed: make peers")
    alone = small(mixing=torch.ones(1, 1), batch_size=48, lr=lambda t: 0.2 / (1 + t), data=data(), model=smooth())
    rounds = list(simulate(alone, 3))
    for done in rounds:
        model = module_of(alone, done.before, 0)
        torch.save({"model": model.state_dict(), "lr": done.draw.lr}, tmp_path / f"{done.t}.pt")

    def restore(model, checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        return saved["lr"]

    train, test = alone.data.train, alone.data.test
    theirs = influence.TracInCP(
        model,
        DataLoader(TensorDataset(train.x, train.y), batch_size=17),
        checkpoints=[str(path) for path in sorted(tmp_path.iterdir())],
        checkpoints_load_func=restore,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        sample_wise_grads_per_batch=True,
    ).influence((test.x, test.y), aggregate=True)[0] / (len(train) * len(test))  # fmt: skip
    evaluation = evaluate_on(alone)
    assert_close(rivals.tracin_samples(alone, rounds, evaluation).scores, -theirs, rtol=1e-5, atol=1e-12)
    found = rivals.tracin_checkpoints(alone, rounds, evaluation, every=1).scores
    assert_close(found, -theirs.sum()[None], rtol=1e-5, atol=1e-12)
