"""What is sent may be compressed: replayed exactly, differentiated through what was decoded."""

import pytest
import torch
from influence.cases import CLOSE, NODES, small, window

from cascadice import influence
from cascadice.engine import simulate
from cascadice.engine.compression import COMPRESSIONS


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_what_is_sent_is_decoded_from_the_code(name):
    network, plain = small(compression=name), small()
    (first,), (same,) = simulate(network, 1), simulate(plain, 1)
    decoded = COMPRESSIONS[name].apply(same.update)
    torch.testing.assert_close(first.update, decoded, **CLOSE)
    assert not torch.allclose(first.update, same.update, rtol=1e-4, atol=0)


def test_eight_bits_hold_255_values_of_each_row():
    rows = torch.randn(3, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decoded = COMPRESSIONS["8-bit"].apply(rows)
    assert all(len(row.unique()) <= 255 for row in decoded)
    assert ((decoded - rows).abs() <= rows.abs().amax(1, keepdim=True) / 254 + 1e-12).all()
    assert not COMPRESSIONS["8-bit"].apply(torch.zeros(2, 3)).any()


def test_top_k_keeps_the_largest_tenth():
    rows = torch.arange(1.0, 41.0).view(1, 40)
    assert COMPRESSIONS["top-k"].apply(rows).nonzero()[:, 1].tolist() == [36, 37, 38, 39]


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_truth_skips_the_update_and_sweeps_are_transposes(name):
    network = small(compression=name)
    rounds, evaluation = window(network, 3), influence.evaluate_on(network)
    truth = influence.truth(network, rounds[:1], evaluation)
    for source in range(NODES):
        theta = rounds[0].half.theta.clone()
        theta[source] = rounds[0].before.theta[source]
        without = rounds[0]._replace(half=rounds[0].half._replace(theta=theta))
        expected = rounds[0].W[:, source, None] * (rounds[0].half.theta - without.half.theta)[source]
        assert (truth.value[1, source] != 0).tolist() == (expected.abs().amax(1) > 0).tolist()
    forwards = influence.first_order(network, rounds, evaluation).total
    adjoint = influence.reverse_gossip(network, rounds, evaluation)
    torch.testing.assert_close(influence.by_participant(rounds[0], adjoint), forwards, **CLOSE)


def test_unknown_codes_are_listed():
    with pytest.raises(ValueError, match=r"unknown compression '8bit'\. Did you mean '8-bit'\?"):
        small(compression="8bit")
