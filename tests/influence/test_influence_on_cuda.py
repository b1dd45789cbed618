"""On a GPU, vectorised or compiled: the numbers of the CPU."""

import pytest
import torch
from engine.cases import make

from cascadice import influence
from cascadice.applications.forget.idea import Removal, forget
from cascadice.engine import Behaviour, simulate
from cascadice.engine.exchange.robust import trimmed_mean

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.usefixtures("unchecked"),
    pytest.mark.filterwarnings("default"),  # of the compiler and its parts, which differ from machine to machine
]
HOPS, ROUNDS = 2, 4


def found(name, **options):
    network = make(name, lr=0.3, **options)
    evaluation = influence.evaluate_on(network)
    rounds = simulate(network, ROUNDS, window=HOPS, taped=True)
    scored = list(
        influence.score_rounds(network, rounds, evaluation, hops=HOPS, kinds=["first-order", "shares"], samples=True)
    )
    kept = list(simulate(network, ROUNDS))
    true = influence.truth(network, kept[:HOPS], evaluation).value
    horizon = list(influence.full_horizon(network, reversed(kept), evaluation))
    return [
        *(value.cpu() for one in scored for value in (*one.samples.values(), *one.participants.values())),
        *(one.samples.cpu() for one in horizon),
        true.cpu(),
    ]


@pytest.mark.parametrize("strategy", ["vmap", "compile", "loop"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_equal_to_the_cpu(name, strategy):
    expected = found(name, device="cpu")
    for here, there in zip(found(name, device="cuda", strategy=strategy), expected, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-7, atol=1e-11)


DIFFERENT = {
    "optimizers, rates and batches": {
        "optimizer": ["sgd", "adam", "momentum", "sgd"], "lr": [0.3, 0.02, 0.1, 0.2], "batch_size": [3, 2, 3, 3],
        "local_steps": [1, 1, 2, 1],
    },
    "8-bit": {"lr": 0.3, "compression": "8-bit"},
    "misbehaviour": {
        "lr": 0.3,
        "behaviours": [Behaviour("sign-flipper", (1,)), Behaviour("noise-sender", (2,), range(1, 2), 0.01)],
    },
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["vmap", "compile", "loop"])
@pytest.mark.parametrize("options", DIFFERENT.values(), ids=DIFFERENT)
def test_participants_that_differ(options, strategy):
    values = []
    for place in ({"device": "cpu", "strategy": "vmap"}, {"device": "cuda", "strategy": strategy}):
        network = make("mlp", **options, **place)
        rounds, evaluation = list(simulate(network, ROUNDS)), influence.evaluate_on(network)
        adjoint = influence.reverse_gossip(network, rounds[:HOPS], evaluation)
        values.append([
            rounds[-1].after.theta, influence.truth(network, rounds[:HOPS], evaluation).value,
            influence.by_sample(network, rounds[0], adjoint), influence.shares(network, rounds[:HOPS], evaluation),
            *(scores.samples for scores in influence.full_horizon(network, reversed(rounds), evaluation)),
            forget(network, rounds, Removal(nodes=(1,)), "path-integrated").participants.theta,
        ])  # fmt: skip
    for here, there in zip(*values, strict=True):
        torch.testing.assert_close(there.cpu(), here.cpu(), rtol=1e-6, atol=1e-10)


def test_a_rule_that_does_not_average():
    values = []
    for device in ("cpu", "cuda"):
        network = make("mlp", lr=0.1, device=device, strategy="vmap")
        rounds, evaluation = list(simulate(network, 2, rule=trimmed_mean())), influence.evaluate_on(network)
        adjoint = influence.reverse_gossip(network, rounds, evaluation)
        values.append(
            [influence.truth(network, rounds, evaluation).value, influence.by_participant(rounds[0], adjoint)]
        )
    for here, there in zip(*values, strict=True):
        torch.testing.assert_close(there.cpu(), here.cpu(), rtol=1e-6, atol=1e-10)


def test_the_horizon_of_a_rule_by_compiled_sweeps():
    values = []
    for place in ({"device": "cpu", "strategy": "vmap"}, {"device": "cuda", "strategy": "compile"}):
        network = make("mlp", lr=0.1, **place)
        rounds, evaluation = list(simulate(network, 3, rule=trimmed_mean())), influence.evaluate_on(network)
        values.append([scores.samples for scores in influence.full_horizon(network, reversed(rounds), evaluation)])
    for here, there in zip(*values, strict=True):
        torch.testing.assert_close(there.cpu(), here.cpu(), rtol=1e-6, atol=1e-10)
