"""Loop and sweep give the same; the automatic choice knows what can be vectorised; runs repeat bit for bit."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from engine.cases import CLASSES, CLOSE, MODELS, data, equal, last, make, model, perceptron
from torch import nn
from torch.utils.checkpoint import checkpoint

from cascadice import network as assemble
from cascadice import optimizers
from cascadice.data import from_tensors
from cascadice.engine.evaluation import evaluate_on
from cascadice.engine.fast import rows
from cascadice.engine.fast.strategies import local_work
from cascadice.engine.networks import draw, load
from cascadice.engine.simulation import simulate
from cascadice.engine.weighting import with_weights
from cascadice.influence.whole_run import whole_run
from cascadice.optimizers import OPTIMIZERS

RULES = {**{name: name for name in OPTIMIZERS}, "clipped": optimizers.clip(optimizers.momentum(weight_decay=0.1), 0.3)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_vectorised_is_loop(name, rule):
    options = {"optimizer": RULES[rule], "lr": 0.02, "nodes": 2, "mixing": "complete", "batch_size": 2}
    looped, swept = (last(make(name, strategy=s, **options), 2) for s in ("loop", "vmap"))
    torch.testing.assert_close(swept.after.theta, looped.after.theta, **CLOSE)
    torch.testing.assert_close(swept.after.state, looped.after.state, **CLOSE)
    torch.testing.assert_close(swept.loss, looped.loss, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_weights_on_samples_do_the_same_in_a_loop(name):
    """A loop multiplies the gradient of the outputs on its way back; a sweep goes through torch.func."""
    found = []
    for strategy in ("loop", "vmap"):
        network = make(name, strategy=strategy, nodes=2, mixing="complete", batch_size=4)
        samples = torch.linspace(0, 2, len(network.data.train), dtype=torch.float64)
        found.append([last(with_weights(network, samples=weights), 2) for weights in (samples, samples.flip(0))])
    (one, other), swept = found
    torch.testing.assert_close([each.after.theta for each in swept], [one.after.theta, other.after.theta], **CLOSE)
    torch.testing.assert_close([each.loss for each in swept], [one.loss, other.loss], **CLOSE)
    assert not torch.allclose(one.after.theta, other.after.theta)


@pytest.mark.parametrize("rule", RULES)
def test_vectorised_is_loop_over_several_steps(rule):
    looped, swept = (last(make(strategy=s, optimizer=RULES[rule], local_steps=3), 4) for s in ("loop", "vmap"))
    torch.testing.assert_close(swept.after, looped.after, **CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_seed_repeats_bit_for_bit(strategy, dtype):
    one, again, other = (
        list(simulate(make("cnn", seed=seed, strategy=strategy, dtype=dtype, optimizer="adam"), 4))
        for seed in (1, 1, 2)
    )
    for a, b in zip(one, again, strict=True):
        assert equal(a.after, b.after)
        assert torch.equal(a.loss, b.loss)
    assert not torch.equal(one[-1].after.theta, other[-1].after.theta)


def test_workers_keep_their_number_of_threads_whatever_others_set():
    """Or sums would be rounded differently, depending on which worker took a participant."""
    together = threading.Barrier(2)

    def asked(_):
        together.wait(10)  # so that each worker is asked once
        return torch.get_num_threads()

    mine = torch.get_num_threads()
    pool, other = (rows._pool.__wrapped__(workers, threads) for workers, threads in ((2, 1), (1, mine + 1)))
    with pool, other, ThreadPoolExecutor(1) as anybody:
        assert other.submit(torch.get_num_threads).result() == mine + 1
        assert list(pool.map(asked, range(2))) == [1, 1]
        assert anybody.submit(torch.get_num_threads).result() == mine  # as without the library


class Looked(nn.Module):
    """Logits are rows of a table, looked up by indexing it: the gradient adds up many rows of the batch."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 20 * CLASSES).view(20, CLASSES).sin())

    def forward(self, x):
        return self.table[(x.flatten(1).abs() * 1e4).long() % 20].mean(1)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_sums_do_not_depend_on_threads(strategy, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(4)  # with two participants, a loop has two threads for each
    options = {"dtype": "float32", "strategy": strategy, "nodes": 2, "mixing": "complete", "batch_size": 64}
    network = make(Looked(), data=data(samples=160), **options)
    runs = [last(network, 4).after for _ in range(15)]
    assert all(equal(run, runs[0]) for run in runs)
    found = [whole_run(network, 3, evaluate_on(network)).participants for _ in range(5)]
    assert all(torch.equal(each, found[0]) for each in found)


def test_settings_of_the_process_are_put_back_by_the_last_thread_to_leave():
    def enabled():
        return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    entered, left, before = threading.Event(), threading.Event(), enabled()

    def other():
        with rows.repeatable():
            entered.set()
            left.wait(10)
            return enabled()

    with ThreadPoolExecutor(1) as pool:
        with rows.repeatable():
            found = pool.submit(other)
            entered.wait(10)
        left.set()
        assert found.result() == (True, False)
    assert enabled() == before


def test_an_optimizer_may_keep_the_gradient_itself():
    def update(gradient, state, theta, lr):  # optimistic gradient descent
        return -lr[..., None] * (2 * gradient - state["last"]), {"last": gradient}

    optimizer = optimizers.Optimizer(lambda theta: {"last": torch.zeros_like(theta)}, update)
    looped, swept = (last(make(strategy=s, optimizer=optimizer, local_steps=3)) for s in ("loop", "vmap"))
    torch.testing.assert_close(swept.after, looped.after, **CLOSE)


def test_weights_on_samples_reach_losses_that_change_their_inputs():
    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron(nn.Tanh())

        def forward(self, x):
            return self.inner(x).view(-1, CLASSES)

    def loss(logits, y):
        logits -= logits.max(1, keepdim=True).values.detach()
        return nn.functional.cross_entropy(logits, y)

    def weighted(loss):
        network = make(View(), loss=loss)
        samples = torch.linspace(0, 2, len(network.data.train), dtype=torch.float64)
        return last(with_weights(network, samples=samples)).after.theta

    torch.testing.assert_close(weighted(loss), weighted(nn.functional.cross_entropy), **CLOSE)


def test_a_model_that_draws_in_evaluation_mode_is_refused():
    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            return nn.functional.dropout(self.inner(x), 0.5, training=True)

    with pytest.raises(ValueError, match=r"draws random numbers in evaluation mode, too.*training=self\.training"):
        make(Always())


def test_a_seed_repeats_compiled(compiler):
    one, again = (last(make(strategy="compile"), 3) for _ in range(2))
    assert equal(one.after, again.after)


SCRIPT = """
import hashlib, sys
from engine.cases import last, make
for name in ("mlp", "cnn"):
    done = last(make(name, dtype="float32", batch_size=5), 3)
    print(hashlib.sha256(done.after.theta.numpy().tobytes()).hexdigest())
"""


def elsewhere(script, threads):
    """What a fresh interpreter with so many threads prints."""
    tests = Path(__file__).parents[1]
    setting = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run([sys.executable, "-c", script], env=setting, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_loop_does_not_depend_on_the_number_of_threads():
    assert elsewhere(SCRIPT, 1) == elsewhere(SCRIPT, 2)


def test_a_loop_leaves_the_number_of_threads_alone():
    before = torch.get_num_threads()
    last(make())
    assert torch.get_num_threads() == before


def test_the_first_choice_of_a_process_is_the_later_one():
    """torch warns about itself on first use of some parts; that must not pass for a model that cannot be vectorised."""
    script = "from engine.cases import make\nprint(*[make(strategy='auto').strategy for _ in range(2)])"
    assert elsewhere(script, 1).split() == ["vmap", "vmap"]


@pytest.mark.parametrize(
    ("name", "batch_size", "expected"),
    [("mlp", 3, "vmap"), ("transformer", 3, "vmap"), ("cnn", 3, "loop"), ("resnet18", 3, "loop")],
)
def test_automatic_choice(name, batch_size, expected):
    assert make(name, batch_size=batch_size, strategy="auto").strategy == expected


def test_large_models_run_as_a_loop():
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 25_000), nn.Linear(25_000, 4))
    assert make(wide, strategy="auto", nodes=2, mixing="complete").strategy == "loop"


class Undecided(nn.Module):
    """Takes a way that depends on what it sees."""

    def __init__(self):
        super().__init__()
        self.one, self.other = perceptron(), perceptron()

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.other(x)


def test_control_flow_on_values_falls_back_to_a_loop():
    net = make(Undecided(), strategy="auto")
    assert net.strategy == "loop"
    assert torch.isfinite(last(net).loss).all()


def test_batch_statistics_run_by_the_automatic_choice():
    net, looped = (make(perceptron(nn.BatchNorm1d(6)), strategy=s) for s in ("auto", "loop"))
    torch.testing.assert_close(last(net).after.theta, last(looped).after.theta, **CLOSE)
    torch.testing.assert_close(last(net).after.buffers, last(looped).after.buffers, **CLOSE)


def test_dropout_is_noticed_and_repeats():
    net = make(perceptron(nn.Dropout(0.5)), strategy="auto")
    assert net.strategy == "loop"
    assert net.learner.stochastic
    state = torch.get_rng_state()
    one, again = last(net), last(make(perceptron(nn.Dropout(0.5)), strategy="auto"))
    assert equal(one.after, again.after)
    assert torch.equal(torch.get_rng_state(), state)
    plain = last(make(perceptron(nn.Dropout(0.0))))
    assert not torch.allclose(one.after.theta, plain.after.theta)


def test_dropout_masks_differ_between_participants_and_rounds():
    index = torch.arange(3).expand(2, 4, 1, 3).contiguous()
    net = make(perceptron(nn.Dropout(0.5)), batches=index, lr=0.0)
    first, second = (done.loss for done in simulate(net, 2))
    assert len(set(first.tolist())) == 4
    assert not torch.equal(first, second)


def test_dropout_masks_do_not_depend_on_who_else_is_there():
    net = make(perceptron(nn.Dropout(0.5)))
    drawn = draw(net, 5)
    work = local_work("loop", net.learner)
    everybody, *_ = work(net.initial, partial(load, net, drawn), None)
    some = net.initial._replace(theta=net.initial.theta[[2, 0]])
    two, *_ = work(some, lambda rows: load(net, drawn, nodes=[(2, 0)[row] for row in rows]), None)
    assert torch.equal(two.theta, everybody.theta[[2, 0]])


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers, self.reentrant = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]), reentrant

    def forward(self, x):
        for layer in self.layers:
            step = layer if self.reentrant is None else partial(checkpoint, layer, use_reentrant=self.reentrant)
            x = torch.tanh(step(x))
        return x


@pytest.mark.filterwarnings("ignore:None of the inputs")  # of passes that need no gradients
def test_checkpointed_layers_are_trained_and_scored_like_others_reentrant_or_not():
    x, y = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)).double(), torch.arange(30) % 6
    data, found = from_tensors(x[:24], y[:24], x[24:], y[24:], classes=6), []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        options = {"nodes": 2, "mixing": "complete", "batch_size": 4, "strategy": "loop", "dtype": "float64"}
        network = assemble(Checkpointed(reentrant), data, lr=0.1, **options)
        rounds = list(simulate(network, 2))
        found.append((rounds[-1].after.theta, whole_run(network, rounds, evaluate_on(network)).participants))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], **CLOSE)


def test_the_templates_are_copies():
    """Training leaves the user's own module as it was."""
    mine = model()
    before = [p.clone() for p in mine.parameters()]
    last(make(mine))
    assert all(torch.equal(p, b) for p, b in zip(mine.parameters(), before, strict=True))


FORKING = """
import os, signal
import torch
from engine.cases import last, make
network = make("mlp", strategy="loop")
here = last(network, 2)  # by threads, which the child does not have
if not (child := os.fork()):
    signal.alarm(60)
    os._exit(not torch.equal(last(network, 2).after.theta, here.after.theta))
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_of_a_process_that_trained_can_train():
    """With one thread of torch's own: where there are more, products of matrices hang in a child, ours or not."""
    assert elsewhere(FORKING, 1) == "0\n"
