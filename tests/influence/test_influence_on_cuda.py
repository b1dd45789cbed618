"""On a GPU, vectorised or compiled: the numbers of the CPU."""

import pytest
import torch
from engine.cases import make

from cascadice import influence
from cascadice.engine import simulate

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
