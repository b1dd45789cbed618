"""One participant that talks to nobody: sample scores are those of other libraries of data attribution.

TracIn takes both gradients at the checkpoint: −η/B ∇ℓ_i(θ^t)ᵀ ∇L(θ^t), which is the direct effect, hop 0. Reverse
gossip over one round scores hop 0 and hop 1 together; hop 1, ∇L at θ^{t+1}, is taken away before they are compared.
"""

from pathlib import Path

import pytest
import torch
from engine.cases import data, make
from engine.rows import gradients as slopes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cascadice import models
from cascadice.engine import load, module_of, simulate
from cascadice.influence import by_sample, evaluate_on, reverse_gossip

SAMPLES, TESTS, ROUNDS = 60, 9, 3
CLOSE = {"rtol": 1e-5, "atol": 1e-12}
WITHOUT = "is not installed: make peers"
MODELS = {
    "mlp": lambda: models.build("mlp", (1, 8, 8), 4, hidden=(5, 5)),
    "cnn": lambda: models.build("cnn", (1, 8, 8), 4, channels=(2, 3, 4)),
}


@pytest.fixture(params=list(MODELS))
def alone(request):
    """One participant whose batch is all of its data, so that every checkpoint scores every sample."""
    return make(
        MODELS[request.param](), data=data(), mixing=torch.ones(1, 1), batch_size=SAMPLES, lr=lambda t: 0.2 / (1 + t)
    )


def direct(network, done):
    """Reverse gossip over this round, less what arrives at hop 1."""
    yardstick = evaluate_on(network)
    both = reverse_gossip(network, [done], yardstick)
    _, hop_1 = slopes(network, yardstick, done.after.theta, done.after.buffers, [0])
    return both._replace(theta=both.theta - hop_1)


def ours(network, rounds):
    """The direct effect of every sample, summed over the rounds."""
    found = torch.zeros(SAMPLES, dtype=torch.float64)
    for done in rounds:
        scores = by_sample(network, done, direct(network, done))
        found.index_add_(0, done.draw.batch[0, 0], scores[0])
    return found


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients:UserWarning")
def test_captum(alone, tmp_path, at_once):
    influence = pytest.importorskip("captum.influence", reason=f"captum {WITHOUT}")
    rounds = list(simulate(alone, ROUNDS))
    for done in rounds:
        model = module_of(alone, done.before, 0)
        torch.save({"model": model.state_dict(), "lr": done.draw.lr}, tmp_path / f"{done.t}.pt")
    train, test = alone.data.train, alone.data.test
    tracin = influence.TracInCP(
        model,
        DataLoader(TensorDataset(train.x, train.y), batch_size=17),
        checkpoints=[str(path) for path in sorted(tmp_path.iterdir())],
        checkpoints_load_func=restore,
        loss_fn=nn.CrossEntropyLoss(reduction="sum" if at_once else "none"),
        sample_wise_grads_per_batch=at_once,
    )
    theirs = tracin.influence((test.x, test.y), aggregate=True)[0]
    torch.testing.assert_close(ours(alone, rounds), -theirs / (SAMPLES * TESTS), **CLOSE)


def restore(model, checkpoint):
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    return saved["lr"]


@pytest.mark.filterwarnings("ignore:.*GradScaler.*:FutureWarning")
def test_kronfluence(alone, tmp_path, benchmark_peers):
    analyzer = pytest.importorskip("kronfluence.analyzer", reason=f"kronfluence {WITHOUT}")
    *_, done = simulate(alone, ROUNDS)
    train, test = alone.data.train, alone.data.test
    task, (factor, score) = benchmark_peers.classification(), benchmark_peers.arguments(train.x)
    model = analyzer.prepare_model(module_of(alone, done.before, 0), task)
    analysis = analyzer.Analyzer("peer", model, task, cpu=True, disable_tqdm=True, output_dir=str(tmp_path))
    samples, queries = TensorDataset(train.x, train.y), TensorDataset(test.x, test.y)
    analysis.fit_all_factors("identity", samples, per_device_batch_size=17, factor_args=factor)
    analysis.compute_pairwise_scores(
        "scores", "identity", queries, samples, TESTS, per_device_train_batch_size=17, score_args=score
    )
    theirs = analysis.load_pairwise_scores("scores")["all_modules"][0]
    torch.testing.assert_close(ours(alone, [done]), -done.draw.lr / SAMPLES * theirs, **CLOSE)


@pytest.mark.parametrize("library", ["captum", "kronfluence"])
def test_what_is_timed(alone, benchmark_peers, library):
    pytest.importorskip(library, reason=f"{library} {WITHOUT}")
    *_, done = simulate(alone, ROUNDS)
    inputs, test = load(alone, done.draw), alone.data.test
    model = module_of(alone, done.before, 0)
    setup = getattr(benchmark_peers, f"{library}_scores")
    scores = setup(model, inputs.x[0, 0], inputs.y[0, 0], test.x, test.y, done.draw.lr)
    wanted = by_sample(alone, done, direct(alone, done))[0]
    for _ in range(2):  # calls leave nothing behind
        torch.testing.assert_close(scores(), wanted, **CLOSE)


@pytest.fixture
def benchmark_peers(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import peers

    return peers
