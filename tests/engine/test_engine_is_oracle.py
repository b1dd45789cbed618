"""The engine is Algorithm 1: the same parameters as modules, torch.optim and a double loop."""

import oracles
import pytest
import torch
from engine.cases import CLASSES, CLOSE, IMAGE, MODELS, data, last, make, perceptron
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW

from cascadice import learning_rates, optimizers, topology
from cascadice.data import batches as batch_plans
from cascadice.engine.simulation import simulate
from cascadice.optimizers import OPTIMIZERS

# name -> ours, torch's, its clipping
RULES = {
    "sgd": (optimizers.sgd(), SGD, None),
    "sgd, decay": (optimizers.sgd(0.1), lambda p: SGD(p, weight_decay=0.1), None),
    "momentum": (optimizers.momentum(), lambda p: SGD(p, momentum=0.9), None),
    "nesterov": (optimizers.nesterov(), lambda p: SGD(p, momentum=0.9, nesterov=True), None),
    "adam": (optimizers.adam(), Adam, None),
    "adam, decay": (optimizers.adam(weight_decay=0.1), lambda p: Adam(p, weight_decay=0.1), None),
    "adamw": (optimizers.adamw(), AdamW, None),
    "momentum, clipped": (optimizers.clip(optimizers.momentum(), 0.3), lambda p: SGD(p, momentum=0.9), 0.3),
    "adam, clipped": (optimizers.clip(optimizers.adam(), 0.3), Adam, 0.3),
}


def assert_like_oracle(net, rounds, optimizer=SGD, max_norm=None):
    """Every round, before and after gossip."""
    for done, (half, after, loss) in zip(
        simulate(net, rounds), oracles.train(net, rounds, optimizer, max_norm), strict=True
    ):
        torch.testing.assert_close(done.half.theta, half, **CLOSE)
        torch.testing.assert_close(done.after.theta, after, **CLOSE)
        torch.testing.assert_close(done.loss, loss, **CLOSE)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_every_optimizer(rule, steps):
    ours, theirs, max_norm = RULES[rule]
    net = make(optimizer=ours, local_steps=steps, lr=0.05)
    assert_like_oracle(net, 10, theirs, max_norm)


@pytest.mark.parametrize("name", MODELS)
def test_every_model(name):
    net = make(name, optimizer="momentum", lr=0.05, local_steps=2)
    assert_like_oracle(net, 3, lambda p: SGD(p, momentum=0.9))


@pytest.mark.parametrize("name", topology.TOPOLOGIES)
def test_every_topology(name):
    assert_like_oracle(make(mixing=name, nodes=6), 5)


def test_a_learning_rate_schedule():
    assert_like_oracle(make(lr=learning_rates.step_decay(0.2, 2, 0.5)), 6)


def test_directed_lossy_row_stochastic_gossip():
    W = topology.matrix([[0.5, 0.3, 0.2, 0], [0, 1, 0, 0], [0.1, 0.1, 0.1, 0.7], [0, 0, 0.6, 0.4]])
    assert_like_oracle(make(mixing=topology.link_loss(topology.constant(W), 0.4, seed=5)), 10)


def test_batch_statistics_travel_and_counts_stay():
    net = make(perceptron(nn.BatchNorm1d(6), nn.ReLU()), strategy="loop", init="own")
    modules = oracles.modules_of(net)
    helpers = [SGD(module.parameters()) for module in modules]
    for done in simulate(net, 4):
        for module, helper, batches in zip(modules, helpers, done.draw.batch, strict=True):
            oracles.step(net, module, helper, batches[0], 0.1)
        oracles.gossip(done.W, modules)
        torch.testing.assert_close(done.after.theta, oracles.rows_of(modules), **CLOSE)
        for name, values in done.after.buffers.items():
            torch.testing.assert_close(values, torch.stack([m.get_buffer(name) for m in modules]), **CLOSE)
    assert done.after.buffers["2.num_batches_tracked"].tolist() == [4] * 4
    assert not done.after.buffers["2.num_batches_tracked"].is_floating_point()
    assert len(net.initial.buffers) == 3


def test_frozen_statistics_of_a_second_run():
    """Running a network does not change it: templates and initial values are as before."""
    net = make(perceptron(nn.BatchNorm1d(6)))
    first, second = last(net), last(net)
    assert torch.equal(first.after.theta, second.after.theta)
    assert torch.equal(first.after.buffers["2.running_mean"], second.after.buffers["2.running_mean"])


def test_alone_is_plain_training():
    net = make(mixing=torch.ones(1, 1), batch_size=5, optimizer="adam", lr=0.01)
    module = oracles.modules_of(net)[0]
    helper = Adam(module.parameters())
    for done in simulate(net, 10):
        oracles.step(net, module, helper, done.draw.batch[0, 0], 0.01)
        torch.testing.assert_close(done.after.theta, oracles.rows_of([module]), **CLOSE)


def test_without_links_nobody_influences_anybody():
    """Other batches for participant 0 change participant 0 and nobody else."""
    index = torch.arange(4 * 4 * 3).view(4, 4, 1, 3)
    other = index.clone()
    other[:, 0] = 59 - other[:, 0]
    one, two = (last(make(mixing="alone", nodes=4, batches=plan), 4).after.theta for plan in (index, other))
    assert torch.equal(one[1:], two[1:])
    assert not torch.equal(one[0], two[0])


def test_complete_uniform_gossip_is_federated_averaging():
    done = last(make(mixing="complete", nodes=5, init="own"), 1)
    assert not torch.equal(done.half.theta[0], done.half.theta[1])
    torch.testing.assert_close(done.after.theta, done.half.theta.mean(0).expand(5, -1), **CLOSE)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@given(order=st.permutations(range(4)), seed=st.integers(0, 100))
@settings(max_examples=8)
def test_permuting_participants_permutes_the_run(strategy, order, seed):
    draw = torch.Generator().manual_seed(seed)
    W = topology.matrix(torch.rand(4, 4, generator=draw), normalize=True)
    theta = torch.randn(4, make().learner.size, generator=draw, dtype=torch.float64)
    index = torch.randint(60, (3, 4, 1, 3), generator=draw)
    at = torch.tensor(order)
    options = {"strategy": strategy, "optimizer": "momentum"}
    plain = last(make(mixing=W, init=theta, batches=index, **options))
    moved = last(make(mixing=W[at][:, at], init=theta[at], batches=index[:, at], **options))
    torch.testing.assert_close(moved.after.theta, plain.after.theta[at], **CLOSE)
    torch.testing.assert_close(moved.loss, plain.loss[at], **CLOSE)


def test_thousands_on_a_sparse_graph():
    """4,096 participants of about 10k parameters, two rounds; one row by hand, with all it heard from."""
    nodes = 4096
    images = data(samples=nodes)
    plan = batch_plans.epochs([torch.tensor([k]) for k in range(nodes)], 1)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 150), nn.ReLU(), nn.Linear(150, CLASSES))
    net = make(wide, data=images, mixing="exponential", nodes=nodes, batches=plan, dtype="float32", strategy="auto")
    assert net.mixing(0).layout == torch.sparse_csr
    first, second = simulate(net, 2)
    receivers, sources, weights = topology.links(second.W)
    heard = receivers == 17
    expected = sum(w * row(second, wide, images, j) for w, j in zip(weights[heard], sources[heard], strict=True))
    torch.testing.assert_close(second.after.theta[17].double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(first.half.theta[17].double(), row(first, wide, images, 17), rtol=0, atol=1e-5)


def row(done, template, images, j):
    """Participant j's parameters after its own step in this round, in float64."""
    nn.utils.vector_to_parameters(done.before.theta[j].double(), template.double().parameters())
    template.zero_grad()
    x, y = images.train.take(done.draw.batch[j, 0])
    nn.functional.cross_entropy(template(x), y).backward()
    stepped = [(p - 0.1 * p.grad).detach().reshape(-1) for p in template.parameters()]
    return torch.cat(stepped)


def test_every_rule_is_here():
    assert set(OPTIMIZERS) <= set(RULES)
    assert data().train.shape == IMAGE
