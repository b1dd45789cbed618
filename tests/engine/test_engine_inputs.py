"""Whatever is drawn can be given; what cannot be right is refused in one line."""

import networkx as nx
import numpy as np
import oracles
import pytest
import torch
from engine.cases import CLASSES, CLOSE, IMAGE, data, equal, last, make, model, perceptron
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from cascadice import models, topology
from cascadice.data import from_tensors
from cascadice.engine.learner import flatten
from cascadice.engine.networks import draw, module_of
from cascadice.engine.simulation import simulate

DIMENSION = sum(p.numel() for p in model().parameters())


def test_initial_parameters_by_row():
    theta = torch.randn(4, DIMENSION, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    net = make(init=theta)
    assert torch.equal(net.initial.theta, theta)
    before = theta.clone()
    last(net)
    assert torch.equal(theta, before)


def test_initial_parameters_by_module():
    modules = [models.build("mlp", IMAGE, CLASSES, hidden=(5, 5), seed=k) for k in range(4)]
    net = make(init=modules)
    assert torch.equal(net.initial.theta, torch.stack([flatten(m).double() for m in modules]))


def test_initial_statistics_come_with_the_modules():
    modules = [perceptron(nn.BatchNorm1d(6)) for _ in range(4)]
    for k, module in enumerate(modules):
        module[2].running_mean.fill_(k)
    net = make(perceptron(nn.BatchNorm1d(6)), init=modules)
    assert net.initial.buffers["2.running_mean"][:, 0].tolist() == [0, 1, 2, 3]


def test_shared_and_own_initialisation():
    shared, own, again = make(), make(init="own"), make(init="own")
    assert torch.equal(shared.initial.theta, flatten(model()).double().expand(4, -1))
    assert len({tuple(row.tolist()) for row in own.initial.theta}) == 4
    assert torch.equal(own.initial.theta, again.initial.theta)
    assert not torch.equal(own.initial.theta, make(init="own", seed=9).initial.theta)


def test_a_function_makes_the_models():
    state = torch.get_rng_state()
    maker = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))  # noqa: E731
    shared, again, own = make(maker), make(maker), make(maker, init="own")
    assert torch.equal(shared.initial.theta, again.initial.theta)
    assert torch.equal(shared.initial.theta[0], shared.initial.theta[3])
    assert not torch.equal(own.initial.theta[0], own.initial.theta[3])
    assert torch.equal(own.initial.theta[0], shared.initial.theta[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_by_index():
    index = torch.randint(60, (4, 4, 2, 3), generator=torch.Generator().manual_seed(1))
    net = make(batches=index)
    assert all(torch.equal(draw(net, t).batch, index[t]) for t in range(4))
    for done, (_, after, _) in zip(simulate(net, 4), oracles.train(net, 4, SGD), strict=True):
        torch.testing.assert_close(done.after.theta, after, **CLOSE)
    with pytest.raises(ValueError, match=r"given for rounds 0\.\.3; round 4 was requested"):
        last(net, 5)


def test_batches_by_function():
    net = make(batches=lambda t: torch.full((4, 1, 2), t))
    assert draw(net, 7).batch.tolist() == [[[7, 7]]] * 4


def test_a_matrix_for_each_round():
    matrices = [topology.identity(4), topology.uniform(topology.complete(4))]
    net = make(mixing=lambda t: matrices[t % 2], init="own")
    first, second = simulate(net, 2)
    assert torch.equal(first.after.theta, first.half.theta)
    torch.testing.assert_close(second.after.theta, second.half.theta.mean(0).expand(4, -1), **CLOSE)


def test_a_weighted_graph_or_an_array():
    graph = nx.Graph([(0, 1, {"weight": 0.3}), (1, 2, {"weight": 0.2})])
    W = [[0.7, 0.3, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
    for mixing in (graph, W, topology.matrix(W).numpy()):
        torch.testing.assert_close(make(mixing=mixing).mixing(0), topology.matrix(W))


def test_a_partition_by_index():
    parts = [torch.arange(15 * k, 15 * k + 15) for k in range(4)]
    net = make(partition=parts)
    for t in range(6):
        assert (draw(net, t).batch.flatten(1) // 15 == torch.arange(4)[:, None]).all()


def test_weights_of_participants():
    assert make().q.tolist() == [0.25] * 4
    assert make(q=[0.1, 0.2, 0.3, 0.4]).q.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert make(q=torch.tensor([1, 0, 0, 0])).q.dtype == torch.float64


def test_a_loss_of_ones_own():
    def smoothed(output, target):
        return F.cross_entropy(output, target, label_smoothing=0.2) + 0.01 * output.square().mean()

    for strategy in ("loop", "vmap"):
        net = make(perceptron(nn.Tanh()), loss=smoothed, strategy=strategy)
        for done, (_, after, loss) in zip(simulate(net, 4), oracles.train(net, 4, SGD), strict=True):
            torch.testing.assert_close(done.after.theta, after, **CLOSE)
            torch.testing.assert_close(done.loss, loss, **CLOSE)


def test_a_participant_as_a_module():
    net = make(perceptron(nn.BatchNorm1d(6)))
    done = last(net)
    module = module_of(net, done.after, 2)
    assert not module.training
    assert torch.equal(flatten(module), done.after.theta[2])
    assert torch.equal(module[2].running_mean, done.after.buffers["2.running_mean"][2])


def test_a_tied_participant_as_a_module():
    tied = models.transformer(CLASSES, 5, width=8, heads=2, depth=1, tied=True)
    net = make(tied, data=data((5,)))
    done = last(net, 2)
    module = module_of(net, done.after, 1)
    assert torch.equal(flatten(module), done.after.theta[1])
    assert module[0].tokens.weight is module[-1].weight


class Shifted(nn.Module):
    """Keeps a constant that is not saved with its state."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()
        self.register_buffer("shift", torch.full((), 2.0), persistent=False)

    def forward(self, x):
        return self.inner(x + self.shift)


def test_buffers_that_are_not_saved():
    net = make(Shifted())
    assert net.initial.buffers["shift"].tolist() == [2.0] * 4
    done = last(net)
    assert torch.equal(flatten(module_of(net, done.after, 0)), done.after.theta[0])


class Bare(nn.Module):
    """Parameters that nothing can draw anew."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, CLASSES))

    def forward(self, x):
        return x.flatten(1) @ self.weight


LOOP_ONLY = (
    r"a model that draws random numbers \(dropout\) must run in a loop.*found strategy 'vmap'. Use 'loop' or 'auto'"
)
HALF_WEIGHTED = nx.Graph([(0, 1, {"weight": 0.5}), (1, 2)])
BAD = {
    "nodes and W": ({"mixing": torch.eye(3), "nodes": 4}, "the mixing matrix has 3 participants, nodes is 4"),
    "no nodes": ({"mixing": "ring"}, "topology 'ring' needs a number of participants: give nodes="),
    "unknown topology": ({"mixing": "rign", "nodes": 4}, "unknown topology 'rign'. Did you mean 'ring'"),
    "half weights": ({"mixing": HALF_WEIGHTED}, r"edge \(1, 2\) has no 'weight'. Set it, or use topology.uniform"),
    "W rows": ({"mixing": torch.full((2, 2), 0.4)}, "rows summing to 1; row 0 sums to 0.8"),
    "q size": ({"q": [0.5, 0.5]}, r"q must be 4 weights, at least 0, that sum to 1; found shape \(2,\), sum 1"),
    "q sum": ({"q": [0.5] * 4}, r"q must be 4 weights.*sum 2"),
    "q sign": ({"q": [1.5, -0.5, 0.0, 0.0]}, "q must be 4 weights, at least 0"),
    "q NaN": ({"q": [float("nan"), 0.0, 0.0, 1.0]}, "q must be 4 weights, at least 0"),
    "rows": (
        {"init": torch.zeros(3, DIMENSION)},
        rf"must be \[4, {DIMENSION}\], a row for each.*found \[3, {DIMENSION}\]",
    ),
    "columns": ({"init": torch.zeros(4, 7)}, r"initial parameters must be.*found \[4, 7\]"),
    "modules": ({"init": [model()] * 3}, rf"initial parameters must be.*found \[3, {DIMENSION}\]"),
    "no modules": ({"init": []}, r"initial parameters must be"),
    "init": ({"init": "share"}, "unknown initialisation 'share'. Did you mean 'shared'"),
    "strategy": ({"strategy": "vmapp"}, "unknown strategy 'vmapp'. Did you mean 'vmap'.*Known: .*loop"),
    "dtype": ({"dtype": "float16"}, "unknown dtype 'float16'. Did you mean.*Known: bfloat16, float32, float64"),
    "optimizer": ({"optimizer": "adamm"}, "unknown optimizer 'adamm'. Did you mean 'adam"),
    "partition": ({"partition": "idd"}, "unknown partition 'idd'. Did you mean 'iid'"),
    "parts": ({"partition": [torch.arange(9)] * 3}, "one part per participant; found 3 parts for 4"),
    "batch size": ({"batch_size": 16}, "participant 0 holds 15 samples, batch_size is 16"),
    "batches": (
        {"batches": torch.zeros(2, 3, 1, 2).long()},
        "must have 4 participants; found 4 in W and 3 in the ba",
    ),
    "indices": ({"batches": torch.full((1, 4, 1, 2), 60)}, "batch indices must be at least 0 and below 60"),
    "lr": ({"lr": -0.1}, "the learning rate must be finite and at least 0; found -0.1"),
    "steps": ({"local_steps": 0}, "local steps must be at least 1; found 0"),
    "stochastic": ({"name": perceptron(nn.Dropout()), "strategy": "vmap"}, LOOP_ONLY),
    "nothing": ({"name": nn.Flatten()}, "the model must have parameters to train; found none with requires_grad"),
    "own": ({"name": Bare(), "init": "own"}, "init='own' must draw new parameters; this model has no reset_parameters"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    given, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        make(**given)
    assert "\n" not in str(caught.value)


def test_batches_without_a_step_axis_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"must be \[participants, steps, batch\]; found \[4, 3\]"):
        make(batches=torch.zeros(5, 4, 3).long())


def test_a_function_of_batches_without_a_step_axis_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"must be \[participants, steps, batch\]; found \[4, 3\]"):
        make(batches=lambda t: torch.zeros(4, 3).long())


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="gpu"):
        make(device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_absent_cuda_is_refused():
    with pytest.raises(ValueError, match="CUDA was requested, but torch finds no CUDA device"):
        make(device="cuda")


def test_regression_and_integers_as_targets():
    draw_ = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 64, generator=draw_), torch.randn(60, CLASSES, generator=draw_)
    net = make(perceptron(), data=from_tensors(x, y, x, y), loss=lambda a, b: (a - b).square().mean())
    assert torch.isfinite(last(net).loss).all()


def test_a_graph_without_weights_is_uniform():
    graph = nx.path_graph(4)
    assert torch.equal(make(mixing=graph).mixing(0), topology.uniform(graph))


NOT_STOCHASTIC = torch.tensor([[0.5, 0.5], [0.5, 0.7]])
SPOILT = {
    "row of the first W": (lambda t: NOT_STOCHASTIC, "in round 0, W must have rows summing to 1; row 1 sums to 1.2"),
    "NaN in a later W": (
        lambda t: torch.full((4, 4), torch.nan if t else 0.25),
        r"in round 1, W must hold finite.* is nan",
    ),
    "size of a later W": (lambda t: torch.eye(5 if t else 4), "keep its 4 participants; in round 1 it has 5"),
}


@pytest.mark.parametrize(("schedule", "complaint"), SPOILT.values(), ids=SPOILT)
def test_a_schedule_that_is_given_is_checked_every_round(schedule, complaint):
    with pytest.raises(ValueError, match=complaint):
        last(make(mixing=schedule), 3)


def test_a_schedule_may_give_arrays_and_is_read_once_while_it_gives_the_same():
    W = np.full((4, 4), 0.25)
    net = make(mixing=lambda t: W)
    assert net.mixing(0) is net.mixing(7)
    assert torch.equal(last(net).after.theta, last(make(mixing="complete", nodes=4)).after.theta)


UNFIT = {
    "outputs": (
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 2))},
        "targets .* below 4; they raised: Target 3 is out of bounds",
    ),
    "inputs": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(5, 4))}, r"batch of inputs \[3, 1, 8, 8\].*they raised"),
    "loss": ({"loss": lambda outputs, y: outputs.sum(-1)}, r"the loss must be a scalar; found shape \[3\]"),
    "part": ({"partition": [torch.arange(9)] * 3 + [torch.arange(55, 64)]}, r"indices in 0\.\.59.*participant 3 has"),
    "batch": ({"batches": lambda t: torch.full((4, 1, 3), 60)}, r"below 60, the number of samples.*Round 0"),
    "device": ({"device": "meta"}, "the device must be 'cpu' or 'cuda'; found 'meta'"),
}


@pytest.mark.parametrize(("options", "complaint"), UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_said_before_training(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(options.pop("model", "mlp"), **options)


def test_a_partition_may_be_lists():
    lists = [list(range(15 * k, 15 * k + 15)) for k in range(4)]
    tensors = [torch.tensor(part) for part in lists]
    assert equal(last(make(partition=lists)).after, last(make(partition=tensors)).after)


@pytest.mark.usefixtures("unchecked")
def test_wrong_kinds_are_named():
    with pytest.raises(TypeError, match=r"lr must be a number or a function of the round; found '0\.1'"):
        make(lr="0.1")
    with pytest.raises(TypeError, match=r"nodes must be a whole number; found 4\.0"):
        make(mixing="ring", nodes=4.0)
    with pytest.raises(TypeError, match=r"the loss must return a tensor; found float\. Remove \.item"):
        make(loss=lambda outputs, y: outputs.sum().item())
    with pytest.raises(TypeError, match=r"the loss must be a function of \(outputs, targets\).*found 'mse'"):
        make(loss="mse")


def test_a_network_prints_on_one_line():
    assert repr(make()) == "Network(4 participants, 379 parameters each, sgd, 8 links, strategy 'loop', cpu)"
    several = make(optimizer=["sgd", "adam", "sgd", "momentum"], mixing="pairwise-gossip", nodes=4)
    assert "sgd and adam and momentum, links that change, strategy" in str(several)
