"""On a CUDA device: the same numbers as on CPU by every strategy, bit for bit every time, graphs and rings included."""

import pytest
import torch
from engine.cases import MODELS, equal, last, make
from torch import nn

import cascadice as cd
from cascadice.data import from_tensors
from cascadice.engine import evaluate
from cascadice.engine.simulation import LOOK_EVERY, DivergedError, simulate

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("default"),  # of the compiler and its parts, which differ from machine to machine
]

CLOSE = {"rtol": 0, "atol": 1e-9}
STRATEGIES = ["loop", "vmap", "compile"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_cuda_is_cpu(name, strategy):
    options = {"optimizer": "momentum", "lr": 0.02}
    here = last(make(name, **options), 5)
    there = last(make(name, device="cuda", strategy=strategy, **options), 5)
    torch.testing.assert_close(there.after.theta.cpu(), here.after.theta, **CLOSE)
    torch.testing.assert_close(there.loss.cpu(), here.loss, **CLOSE)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_seed_repeats_bit_for_bit_in_float32(name, strategy):
    one, again = (last(make(name, device="cuda", dtype="float32", strategy=strategy), 6) for _ in range(2))
    assert equal(one.after, again.after)


def images(nodes):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (nodes * 256, 3, 32, 32), generator=draw, dtype=torch.uint8)
    y = torch.randint(10, (len(x),), generator=draw)
    return from_tensors(x, y, x[:16], y[:16], classes=10, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
def test_full_size_models_repeat_bit_for_bit(name):
    module = cd.models.build(name, (3, 32, 32), 10)
    runs = [last(cd.network(module, images(4), nodes=4, batch_size=64, device="cuda"), 4) for _ in range(2)]
    assert equal(runs[0].after, runs[1].after)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("window", [None, 0, 2])
def test_a_ring_of_memory_changes_nothing(window, optimizer):
    kept = []
    net = make("mlp", device="cuda", strategy="compile", optimizer=optimizer, dtype="float32")
    for done in simulate(net, 9, window=window):
        kept.append(done.after.theta.clone())
    swept = make("mlp", device="cuda", strategy="vmap", optimizer=optimizer, dtype="float32")
    plain = [done.after.theta for done in simulate(swept, 9)]
    torch.testing.assert_close(torch.stack(kept), torch.stack(plain), rtol=1e-4, atol=1e-5)


def test_kept_rounds_stay_as_they_were():
    net = make("mlp", device="cuda", strategy="compile")
    rounds = [(done, done.half.theta.clone(), done.after.theta.clone()) for done in simulate(net, 6)]
    for done, half, after in rounds:
        assert torch.equal(done.half.theta, half)
        assert torch.equal(done.after.theta, after)


def test_buffers_travel_through_graphs():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    here = last(make(model), 8)
    there = last(make(model, device="cuda", strategy="compile"), 8, window=0)
    torch.testing.assert_close(there.after.theta.cpu(), here.after.theta, **CLOSE)
    for name, value in here.after.buffers.items():
        torch.testing.assert_close(there.after.buffers[name].cpu(), value, **CLOSE)


def test_attackers_and_a_changing_learning_rate_survive_capture():
    options = {
        "behaviours": [
            cd.Behaviour("sign-flipper", (1,), range(2, 5), 3.0),
            cd.Behaviour("noise-sender", (2,), range(3, 4)),
        ],
        "corruptions": [cd.Corruption("noise", (0,), range(1, 4), 2.0)],
        "lr": lambda t: 0.05 / (1 + t),
    }
    here, there = last(make(**options), 7), last(make(device="cuda", strategy="compile", **options), 7, window=0)
    # noise is drawn in the precision of the parameters, on the CPU, wherever they are
    torch.testing.assert_close(there.after.theta.cpu(), here.after.theta, **CLOSE)


def test_divergence_is_named_exactly_though_seen_late():
    with pytest.raises(DivergedError) as here:
        last(make(lr=1e200), 60)
    with pytest.raises(DivergedError) as there:
        last(make(device="cuda", strategy="compile", lr=1e200), 60)
    assert (there.value.t, there.value.node) == (here.value.t, here.value.node)
    assert LOOK_EVERY["cuda"] > 1


def test_evaluation_and_bfloat16():
    net = make(device="cuda", dtype="bfloat16", strategy="compile")
    done = last(net, 5)
    assert done.after.theta.dtype == torch.float32
    found = evaluate(net, done.after)
    exact = evaluate(make(device="cuda", dtype="float32"), done.after)
    torch.testing.assert_close(found.loss, exact.loss, rtol=0.05, atol=0.05)


def test_gossip_is_not_rounded_to_tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        theta = torch.randn(16, 4096, device="cuda")
        W = cd.topology.uniform(cd.topology.exponential(16))
        mixed = cd.topology.gossip(W, theta)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(mixed.double(), W.cuda() @ theta.double(), rtol=0, atol=1e-6)
